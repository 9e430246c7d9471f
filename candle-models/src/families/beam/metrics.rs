//! What a set of gains amounts to. The headline number is the mean of the gains in dB; the mean gain in dB is 1 to 10 dB
//! higher, and papers often do not say which of the two they give.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// What a gain of zero counts as, in dB, so that one channel without power does not make a mean infinite.
pub const FLOOR_DB: f64 = -200.;
/// A link is satisfied when gain and SNR together reach this, in dB.
pub const SATISFIED_DB: f64 = 20.;
/// The percentiles of a [`Summary`].
pub const PERCENTILES: [f64; 5] = [1., 10., 50., 90., 99.];

/// `10 log10 G`, at least -200 dB.
pub fn decibels(gain: f32) -> f64 {
    (10. * f64::from(gain).log10()).max(FLOOR_DB)
}

/// Beamforming gains in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Channels.
    pub count: usize,
    /// Mean of the gains in dB.
    pub mean_db: f64,
    /// Standard error of that mean, in dB; 0 for a single channel.
    pub error_db: f64,
    /// The mean gain, in dB.
    pub db_of_mean: f64,
    /// Gains in dB that 1, 10, 50, 90 and 99 per cent of the channels stay below.
    pub percentiles_db: [f64; 5],
    /// Share of channels with `G_dB + SNR_dB >= 20`.
    pub satisfaction: f64,
}

impl Summary {
    /// Summary of gains `G = |w^H H f|^2` `[B]` at an SNR.
    ///
    /// # Errors
    /// No gain at all, a gain that is negative or not finite, an SNR that is not finite.
    pub fn new(gains: &[f32], snr_db: f32) -> Result<Self> {
        super::channel::noise_deviation(snr_db)?;
        if gains.is_empty() {
            return Err(Error::Input("gains: expected at least one".into()));
        }
        if let Some(i) = gains.iter().position(|g| !(g.is_finite() && *g >= 0.)) {
            return Err(Error::Input(format!("gains: expected finite numbers of 0 or more, found {} at {i}", gains[i])));
        }
        let mut db: Vec<f64> = gains.iter().map(|g| decibels(*g)).collect();
        let n = db.len() as f64;
        let mean_db = db.iter().sum::<f64>() / n;
        let squares: f64 = db.iter().map(|x| (x - mean_db).powi(2)).sum();
        let satisfied = db.iter().filter(|x| **x + f64::from(snr_db) >= SATISFIED_DB).count();
        let mean = gains.iter().map(|g| f64::from(*g)).sum::<f64>() / n;
        db.sort_by(f64::total_cmp);
        Ok(Self {
            count: db.len(),
            mean_db,
            error_db: (squares / (n - 1.).max(1.) / n).sqrt(),
            db_of_mean: (10. * mean.log10()).max(FLOOR_DB),
            percentiles_db: PERCENTILES.map(|p| percentile(&db, p)),
            satisfaction: satisfied as f64 / n,
        })
    }
}

/// The value that `p` per cent of the sorted numbers stay below, linear between neighbours.
fn percentile(sorted: &[f64], p: f64) -> f64 {
    let place = p / 100. * (sorted.len() - 1) as f64;
    let (below, part) = (place as usize, place.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + part * (sorted[above] - sorted[below])
}

/// The mean of `G / ||H||_F^2`, what training with the ratio maximises; a channel without power counts as 0.
///
/// # Errors
/// Lists of different lengths, or empty ones.
pub fn mean_ratio(gains: &[f32], power: &[f32]) -> Result<f64> {
    if gains.len() != power.len() || gains.is_empty() {
        return Err(Error::tensor("power", format!("one number for each of {} gains", gains.len()), format!("{} numbers", power.len())));
    }
    let ratio = |(g, p): (&f32, &f32)| if *p > 0. { f64::from(*g) / f64::from(*p) } else { 0. };
    Ok(gains.iter().zip(power).map(ratio).sum::<f64>() / gains.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_which_mean_it_is() {
        let summary = Summary::new(&[1., 10., 100., 1000.], 0.).unwrap();
        assert!((summary.mean_db - 15.).abs() < 1e-9 && (summary.db_of_mean - 10. * 277.75f64.log10()).abs() < 1e-9);
        // Deviations -15, -5, 5, 15: variance 500 / 3.
        assert!((summary.error_db - (500f64 / 3. / 4.).sqrt()).abs() < 1e-9);
        assert!((summary.percentiles_db[2] - 15.).abs() < 1e-9 && (summary.percentiles_db[1] - 3.).abs() < 1e-9);
        assert_eq!((summary.count, summary.satisfaction), (4, 0.5));
        assert_eq!(Summary::new(&[1., 10., 100., 1000.], 10.).unwrap().satisfaction, 0.75);
    }

    #[test]
    fn gains_of_zero_stay_finite_and_bad_ones_are_named() {
        let summary = Summary::new(&[0., 100.], 10.).unwrap();
        assert_eq!((summary.mean_db, summary.satisfaction), (-90., 0.5));
        assert_eq!(Summary::new(&[0.], 10.).unwrap().db_of_mean, FLOOR_DB);
        let message = |gains: &[f32], snr| Summary::new(gains, snr).unwrap_err().to_string();
        assert_eq!(message(&[], 0.), "gains: expected at least one");
        assert_eq!(message(&[1., f32::NAN], 0.), "gains: expected finite numbers of 0 or more, found NaN at 1");
        assert!(message(&[1.], f32::INFINITY).starts_with("config: snr_db: inf"));
        assert_eq!(mean_ratio(&[1., 0.], &[2., 0.]).unwrap(), 0.25);
        assert!(mean_ratio(&[1.], &[]).is_err());
    }
}
