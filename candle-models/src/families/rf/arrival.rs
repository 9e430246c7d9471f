//! When a signal arrives: differences of delay and frequency between receivers, and the place that they say.
//!
//! Two receivers hear the same signal, one later than the other and at a frequency of its own. Where their product at a lag and a frequency is greatest lie
//! both differences (Stein 1981): first on a grid, from short blocks; then over the whole signals near that place. What lies outside of the signal's band is
//! left out, or its noise would be all there is to correlate.

use super::geometry::LIGHT;
use crate::{Error, Result};
use rustfft::num_complex::Complex64;
use rustfft::{Fft, FftPlanner};
use std::f64::consts::TAU;
use std::sync::Arc;

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// Samples a second.
    pub rate: f64,
    /// Width of the signal's band around the centre, Hz.
    pub bandwidth: f64,
    /// The greatest difference of delays, s.
    pub most_delay: f64,
    /// The greatest difference of frequencies, Hz.
    pub most_offset: f64,
}

/// How a signal differs from another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// How much later it arrives, s.
    pub delay: f64,
    /// How much higher it is, Hz.
    pub offset: f64,
    /// How alike both are then, from 0 to 1.
    pub coherence: f64,
}

/// Samples around the place on the grid over which it is looked for again.
const NEAR: i64 = 3;

impl Search {
    fn validate(&self, samples: usize) -> Result<()> {
        let within = |field: &str, value: f64, least: f64, most: f64| {
            if value > least && value <= most {
                Ok(())
            } else {
                Err(Error::config(field, format!("expected above {least} to {most}, found {value}")))
            }
        };
        within("rate", self.rate, 0.0, 1e12)?;
        within("bandwidth", self.bandwidth, 0.0, self.rate)?;
        within("most_delay", self.most_delay, 0.0, 0.25 * samples as f64 / self.rate)?;
        within("most_offset", self.most_offset, 0.0, self.rate / 64.0)
    }

    /// How `b` differs from `a`.
    ///
    /// # Errors
    /// If a value is out of range, the signals have other lengths, or one is not finite or has no power.
    pub fn between(&self, a: &[Complex64], b: &[Complex64]) -> Result<Difference> {
        if a.len() != b.len() {
            return Err(Error::Input(format!("two signals: expected as many samples, found {} and {}", a.len(), b.len())));
        }
        self.validate(a.len())?;
        let [a, b] = [self.in_band(a)?, self.in_band(b)?];
        let (lag, offset) = self.coarse(&a, &b);
        let n = a.len() as i64;
        // Without the difference of frequencies, over all samples at a lag.
        let at = |offset: f64, lag: i64| {
            let (first, last) = (0.max(-lag), n.min(n - lag));
            let turn = Complex64::cis(-TAU * offset / self.rate);
            let mut phase = Complex64::cis(-TAU * offset * (first + lag) as f64 / self.rate);
            let mut sum = Complex64::default();
            for i in first..last {
                sum += b[(i + lag) as usize] * a[i as usize].conj() * phase;
                phase *= turn;
                // Rounding makes a phase longer or shorter in time.
                if i % 1024 == 0 {
                    phase /= phase.norm();
                }
            }
            sum
        };
        // The greatest of three lies at the vertex of a parabola, nearly: the product is smooth over many samples and over a bin.
        let vertex = |[below, here, above]: [f64; 3]| {
            let bend = below - 2.0 * here + above;
            if bend < 0.0 { (0.5 * (below - above) / bend).clamp(-1.0, 1.0) } else { 0.0 }
        };
        let bin = 0.25 * self.rate / a.len() as f64;
        let climb = |offset: f64, lag: i64, step: f64| {
            offset + step * vertex([-1.0, 0.0, 1.0].map(|side| at(offset + side * step, lag).norm_sqr()))
        };
        let offset = climb(climb(offset, lag, 4.0 * bin), lag, bin);
        let near: Vec<f64> = (-NEAR..=NEAR).map(|apart| at(offset, lag + apart).norm_sqr()).collect();
        let best = (1..near.len() - 1).fold(NEAR as usize, |best, i| if near[i] > near[best] { i } else { best });
        let lag = lag + best as i64 - NEAR;
        let delay = lag as f64 + vertex([near[best - 1], near[best], near[best + 1]]);
        let power = |x: &[Complex64]| x.iter().map(Complex64::norm_sqr).sum::<f64>();
        Ok(Difference { delay: delay / self.rate, offset, coherence: (near[best] / (power(&a) * power(&b))).sqrt() })
    }

    /// The least deviation of a difference of delays, s, between two receivers of a signal that is given here without noise; each has that ratio of its power
    /// to the noise's in the band (Stein 1981, with the signal's own spectrum in place of a flat one).
    pub fn least_error(&self, clean: &[Complex64], snr: f64) -> f64 {
        let (mut bins, n) = (clean.to_vec(), clean.len());
        FftPlanner::new().plan_fft_forward(n).process(&mut bins);
        let hertz = |i: usize| if i > n / 2 { i as f64 - n as f64 } else { i as f64 } * self.rate / n as f64;
        let total: f64 = bins.iter().map(Complex64::norm_sqr).sum();
        let square = bins.iter().enumerate().map(|(i, x)| (TAU * hertz(i)).powi(2) * x.norm_sqr()).sum::<f64>() / total;
        let effective = 2.0 / (2.0 / snr + 1.0 / (snr * snr));
        1.0 / (square * self.bandwidth * (n as f64 / self.rate) * effective).sqrt()
    }

    /// The signal without what lies outside of its band.
    fn in_band(&self, signal: &[Complex64]) -> Result<Vec<Complex64>> {
        if let Some(at) = signal.iter().position(|x| !x.is_finite()) {
            return Err(Error::Input(format!("sample {at}: expected finite numbers, found {}", signal[at])));
        }
        let (mut planner, n, mut bins) = (FftPlanner::new(), signal.len(), signal.to_vec());
        planner.plan_fft_forward(n).process(&mut bins);
        let edge = 0.5 * self.bandwidth / self.rate * n as f64;
        for (i, x) in bins.iter_mut().enumerate() {
            let distance = i.min(n - i) as f64;
            *x = if distance <= edge { *x / n as f64 } else { Complex64::default() };
        }
        planner.plan_fft_inverse(n).process(&mut bins);
        if bins.iter().all(|x| x.norm_sqr() == 0.0) {
            return Err(Error::Input("a signal without power in its band".to_owned()));
        }
        Ok(bins)
    }

    /// The lag in samples and the frequency on a grid: products of blocks at every lag, and the frequency at which they add up.
    fn coarse(&self, a: &[Complex64], b: &[Complex64]) -> (i64, f64) {
        let most = (self.most_delay * self.rate).ceil() as usize + 1;
        let block = ((0.25 * self.rate / self.most_offset) as usize).clamp(16, a.len());
        let blocks = a.len() / block;
        let size = (block + 2 * most).next_power_of_two();
        let lags = 2 * most + 1;
        let (mut planner, zero) = (FftPlanner::new(), Complex64::default());
        let (forward, inverse): (Arc<dyn Fft<f64>>, Arc<dyn Fft<f64>>) = (planner.plan_fft_forward(size), planner.plan_fft_inverse(size));
        let turns = (4 * blocks).next_power_of_two();
        let mut series = vec![zero; lags * turns];
        let (mut own, mut other) = (vec![zero; size], vec![zero; size]);
        for k in 0..blocks {
            own.fill(zero);
            own[..block].copy_from_slice(&a[k * block..][..block]);
            for (i, x) in other.iter_mut().enumerate() {
                let at = (k * block + i).checked_sub(most).filter(|_| i < block + 2 * most);
                *x = at.and_then(|at| b.get(at)).copied().unwrap_or(zero);
            }
            for bins in [&mut own, &mut other] {
                forward.process(bins);
            }
            own.iter_mut().zip(&other).for_each(|(a, b)| *a = b * a.conj());
            inverse.process(&mut own);
            // Place i is the lag i - most.
            (0..lags).for_each(|lag| series[lag * turns + k] = own[lag]);
        }
        let spectrum = planner.plan_fft_forward(turns);
        let (mut best, mut greatest) = ((0, 0.0), f64::NEG_INFINITY);
        for (lag, series) in series.chunks_exact_mut(turns).enumerate() {
            spectrum.process(series);
            for (bin, x) in series.iter().enumerate() {
                let signed = if bin > turns / 2 { bin as f64 - turns as f64 } else { bin as f64 };
                let offset = signed / turns as f64 * self.rate / block as f64;
                if x.norm_sqr() > greatest && offset.abs() <= self.most_offset {
                    (best, greatest) = ((lag as i64 - most as i64, offset), x.norm_sqr());
                }
            }
        }
        best
    }
}

/// The place on a plane from which a signal reaches receivers with these delays (s, of any clock that they share): that with the least squares of what is left.
/// Places are in kilometres; the search begins at the middle of the receivers and at points around it.
///
/// # Errors
/// If there are fewer than three receivers, or not as many delays.
pub fn locate(receivers: &[[f64; 2]], delays: &[f64]) -> Result<[f64; 2]> {
    if receivers.len() < 3 || receivers.len() != delays.len() {
        return Err(Error::Input(format!(
            "a place by arrival: expected at least 3 receivers and a delay of each, found {} and {}",
            receivers.len(),
            delays.len()
        )));
    }
    let ranges: Vec<f64> = delays.iter().map(|delay| delay * LIGHT / 1000.0).collect();
    let n = receivers.len() as f64;
    let middle = [0, 1].map(|i| receivers.iter().map(|receiver| receiver[i]).sum::<f64>() / n);
    let reach = receivers.iter().map(|at| (at[0] - middle[0]).hypot(at[1] - middle[1])).fold(0.0, f64::max);
    let starts = (0..8).map(|i| Complex64::cis(TAU * f64::from(i) / 8.0) * 0.7 * reach).map(|way| [middle[0] + way.re, middle[1] + way.im]);
    let (mut best, mut least) = (middle, f64::INFINITY);
    for start in std::iter::once(middle).chain(starts) {
        let (place, left) = descend(receivers, &ranges, start);
        if left < least {
            (best, least) = (place, left);
        }
    }
    Ok(best)
}

/// Steps of Gauss and Newton with the damping of Levenberg and Marquardt; returns the place and the squares that are left.
fn descend(receivers: &[[f64; 2]], ranges: &[f64], start: [f64; 2]) -> ([f64; 2], f64) {
    // What is left of each range, and its gradient, both without their mean: nobody knows when the signal was sent.
    let residuals = |place: [f64; 2]| {
        let ways = receivers.iter().zip(ranges).map(|(at, range)| {
            let [x, y] = [place[0] - at[0], place[1] - at[1]];
            let distance = x.hypot(y).max(1e-9);
            [distance - range, x / distance, y / distance]
        });
        let mut rows: Vec<[f64; 3]> = ways.collect();
        let mean = [0, 1, 2].map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64);
        rows.iter_mut().for_each(|row| (0..3).for_each(|i| row[i] -= mean[i]));
        rows
    };
    let squares = |rows: &[[f64; 3]]| rows.iter().map(|row| row[0] * row[0]).sum::<f64>();
    let (mut place, mut damping) = (start, 1e-3);
    let mut rows = residuals(place);
    for _ in 0..100 {
        let sum = |i: usize, j: usize| rows.iter().map(|row| row[i] * row[j]).sum::<f64>();
        let ([xx, xy, yy], [gx, gy]) = ([sum(1, 1), sum(1, 2), sum(2, 2)], [sum(0, 1), sum(0, 2)]);
        let (dx, dy) = (xx * (1.0 + damping) + 1e-12, yy * (1.0 + damping) + 1e-12);
        let determinant = dx * dy - xy * xy;
        let step = [-(dy * gx - xy * gy) / determinant, -(dx * gy - xy * gx) / determinant];
        let next = [place[0] + step[0], place[1] + step[1]];
        let found = residuals(next);
        if squares(&found) < squares(&rows) {
            (place, rows, damping) = (next, found, damping * 0.3);
            if step[0].hypot(step[1]) < 1e-7 {
                break;
            }
        } else {
            damping *= 4.0;
        }
    }
    (place, squares(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::rf::Complex32;
    use crate::rf::geometry::{Measured, least_error};
    use crate::rf::synthesis::{Content, Digital, Modulation, Physical, Reception};
    use crate::rf::wide;

    const RATE: f64 = 200e3;
    const SEARCH: Search = Search { rate: RATE, bandwidth: 17e3, most_delay: 1e-3, most_offset: 100.0 };

    /// Symbols at 12.5 kHz, for an eighth of a second, with nothing but delays, frequencies and noise.
    fn scenario() -> Physical {
        let content = Content::Digital(Digital { modulation: Modulation::Qpsk, samples_per_symbol: 16 });
        Physical { samples: 25_000, content, ..Physical::ideal() }
    }

    /// Signals of receivers with these delays, of so many dB over the noise of the whole band.
    fn signals(event: u64, delays: &[f64], snr_db: f64) -> Vec<Vec<Complex64>> {
        let config = scenario();
        let reception = |i: usize| Reception { frequency_offset_hz: 20.0 - 15.0 * i as f64, power_dbm: -80.0, snr_db };
        let receptions: Vec<Reception> = (0..delays.len()).map(reception).collect();
        let mut out = vec![Complex32::default(); delays.len() * config.samples];
        config.generate(Random::new(5).at(event), &receptions, delays, &mut out).unwrap();
        out.chunks(config.samples).map(|signal| signal.iter().map(|x| wide(*x)).collect()).collect()
    }

    /// The bound of a difference of delays; noise of the whole band is less in that of the signal.
    fn bound(snr_db: f64, clean: &[Complex64]) -> f64 {
        SEARCH.least_error(clean, 10f64.powf(snr_db / 10.0) * RATE / SEARCH.bandwidth)
    }

    #[test]
    fn differences_are_as_good_as_can_be() {
        let (snr_db, n) = (5.0, 24);
        let errors = (0..n).map(|event| {
            let delay = 0.9e-3 * f64::from(Random::new(6).uniform(event));
            let heard = signals(event, &[0.3e-3, delay], snr_db);
            let found = SEARCH.between(&heard[0], &heard[1]).unwrap();
            assert!((found.offset + 15.0).abs() < 0.5 && found.coherence > 0.8, "{found:?}");
            found.delay - (delay - 0.3e-3)
        });
        let found = (errors.map(|error| error * error).sum::<f64>() / n as f64).sqrt();
        let best = bound(snr_db, &signals(1000, &[0.0], 200.0)[0]);
        // Two standard errors of a deviation from 24 draws are 29%.
        assert!(found < 1.4 * best, "{:.1} ns, at best {:.1}", found * 1e9, best * 1e9);
    }

    #[test]
    fn emitters_are_located_by_arrival() {
        let receivers = [[0.0, 0.0], [100.0, 0.0], [0.0, 100.0], [100.0, 100.0], [40.0, 130.0]];
        let (mut squares, mut best, n, snr_db) = (0.0, 0.0, 12, 5.0);
        let clean = bound(snr_db, &signals(1000, &[0.0], 200.0)[0]);
        for event in 0..n {
            let emitter = [0, 1].map(|i| 20.0 + 70.0 * f64::from(Random::new(7).at(event).uniform(i)));
            let distances = receivers.map(|at: [f64; 2]| (emitter[0] - at[0]).hypot(emitter[1] - at[1]));
            let heard = signals(100 + event, &distances.map(|km| 1000.0 * km / LIGHT), snr_db);
            let delays: Vec<f64> = heard.iter().map(|one| SEARCH.between(&heard[0], one).unwrap().delay).collect();
            let found = locate(&receivers, &delays).unwrap();
            squares += (found[0] - emitter[0]).powi(2) + (found[1] - emitter[1]).powi(2);
            // A difference has the errors of two.
            let deviation = clean * LIGHT / 1000.0 / 2f64.sqrt();
            best += least_error(emitter, &receivers, Measured::Arrival { deviation }).powi(2);
        }
        assert!(
            squares < 1.5f64.powi(2) * best,
            "{:.1} m, at best {:.1}",
            1000.0 * (squares / n as f64).sqrt(),
            1000.0 * (best / n as f64).sqrt()
        );
    }

    #[test]
    fn exact_delays_give_the_place() {
        let receivers = [[0.0, 0.0], [100.0, 0.0], [0.0, 100.0], [80.0, 90.0]];
        for emitter in [[30.0f64, 60.0], [50.0, 50.0], [120.0, 20.0]] {
            let delays: Vec<f64> =
                receivers.iter().map(|at| (emitter[0] - at[0]).hypot(emitter[1] - at[1]) * 1000.0 / LIGHT + 0.1).collect();
            let found = locate(&receivers, &delays).unwrap();
            assert!((found[0] - emitter[0]).hypot(found[1] - emitter[1]) < 1e-3, "{emitter:?} {found:?}");
        }
        assert!(locate(&receivers[..2], &[0.0; 2]).is_err() && locate(&receivers, &[0.0; 3]).is_err());
    }

    #[test]
    fn what_has_no_difference_is_refused() {
        let one = vec![Complex64::new(1.0, 0.0); 100];
        let refused = |search: Search, a: &[Complex64], b: &[Complex64], why: &str| {
            let error = search.between(a, b).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let short = Search { most_delay: 1e-4, ..SEARCH };
        refused(short, &one, &one[..99], "as many samples, found 100 and 99");
        refused(SEARCH, &one, &one, "most_delay");
        refused(Search { bandwidth: 0.0, ..short }, &one, &one, "bandwidth");
        refused(short, &one, &[Complex64::default(); 100], "without power");
        refused(short, &one, &[Complex64::new(f64::NAN, 0.0); 100], "sample 0: expected finite numbers");
    }
}
