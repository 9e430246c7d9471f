//! What nobody can do better: the most likely modulation of symbols whose phase, timing, power and noise are known.
//!
//! With all modulations alike, symbols drawn evenly from their points and white noise, the one under which the symbols are most likely is right more often
//! than any other choice (maximum likelihood).

use super::greatest;
use crate::rf::Complex64;
use crate::rf::synthesis::Modulation;
use crate::{Error, Result};

/// Modulations and the noise that their symbols have.
#[derive(Debug, Clone)]
pub struct Ceiling {
    points: Vec<Vec<Complex64>>,
}

impl Ceiling {
    /// Between these modulations.
    ///
    /// # Errors
    /// If one has no points: the symbols of frequency shifts depend on each other.
    pub fn new(modulations: &[Modulation]) -> Result<Self> {
        let points: Vec<Vec<Complex64>> = modulations.iter().map(|modulation| modulation.points()).collect();
        if let Some(i) = points.iter().position(Vec::is_empty) {
            return Err(Error::Input(format!("{:?}: expected a modulation whose symbols are points", modulations[i])));
        }
        Ok(Self { points })
    }

    /// The logarithm of how likely the symbols are under each modulation; `noise` is the power of their noise, where that of the points is 1.
    pub fn log_likelihoods(&self, symbols: &[Complex64], noise: f64) -> Vec<f64> {
        let one = |points: &Vec<Complex64>, symbol: &Complex64| {
            let exponents = points.iter().map(|point| -(symbol - point).norm_sqr() / noise);
            let most = exponents.clone().fold(f64::NEG_INFINITY, f64::max);
            most + (exponents.map(|x| (x - most).exp()).sum::<f64>() / points.len() as f64).ln()
        };
        self.points.iter().map(|points| symbols.iter().map(|symbol| one(points, symbol)).sum()).collect()
    }

    /// Which modulation is the most likely, the first of equal ones.
    pub fn classify(&self, symbols: &[Complex64], noise: f64) -> usize {
        greatest(&self.log_likelihoods(symbols, noise))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Published shares of 1500 draws (BPSK, QPSK, 8PSK, 16QAM, 64QAM), to three standard errors of both.
    #[test]
    fn most_likely_modulations_are_right_as_often_as_measured() {
        let modulations = &Modulation::ALL[..5];
        let ceiling = Ceiling::new(modulations).unwrap();
        let n = 1500;
        for (symbols, snr_db, expected) in [(16, -10.0, 0.24), (16, 0.0, 0.39), (16, 8.0, 0.77), (16, 14.0, 0.97), (128, 4.0, 0.79)] {
            let noise = 10f64.powf(-snr_db / 10.0);
            let right = |i: u64| {
                let (class, random) = ((i % 5) as usize, Random::new(3).stream("draw").at(i));
                let points = modulations[class].points();
                let symbol = |k: u64| {
                    let noise = [0, 1].map(|part| (noise / 2.0).sqrt() * f64::from(random.stream("noise").normal(2 * k + part)));
                    points[random.stream("symbols").below(k, points.len() as u32) as usize] + Complex64::new(noise[0], noise[1])
                };
                ceiling.classify(&(0..symbols).map(symbol).collect::<Vec<_>>(), noise) == class
            };
            let found = (0..n).filter(|i| right(*i)).count() as f64 / n as f64;
            let error = 3.0 * (2.0 * expected * (1.0 - expected) / n as f64).sqrt() + 0.005;
            assert!((found - expected).abs() < error, "{symbols} symbols at {snr_db} dB: {found}, expected {expected}");
        }
    }

    #[test]
    fn frequency_shifts_have_no_points() {
        let error = Ceiling::new(&[Modulation::Bpsk, Modulation::Gfsk]).unwrap_err().to_string();
        assert!(error.contains("Gfsk"), "{error}");
    }
}
