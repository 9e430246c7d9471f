//! Codebooks: fixed sets of unit-norm beams.
//!
//! ```
//! use candle_models::beam::{Array, Codebook};
//! # fn main() -> candle_models::Result<()> {
//! let beams = Codebook::dft(&Array::Ula { elements: 4 }, 1, 4)?;
//! let (a, b) = (beams.beam(0), beams.beam(1));
//! let inner: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum(); // the real part of their inner product
//! assert!(inner.abs() < 1e-6); // beams of a DFT are orthogonal
//! # Ok(())
//! # }
//! ```

use super::array::{Array, MAX_ELEMENTS, phasor};
use super::complex::{normalise, squared_norm};
use super::within;
use crate::random::Random;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f32::consts::TAU;

/// Most beams of a codebook.
pub const MAX_BEAMS: usize = 4096;

/// How a codebook is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum CodebookConfig {
    /// Steering vectors on the uniform grid of the direction cosine, `u_c = -1 + (2 c + 1) / count`: orthogonal where `count`
    /// is at most the number of elements and divides it. Over a planar array a Kronecker product of two grids.
    Dft {
        /// Beams.
        count: usize,
        /// Rows of beams, one above the other; 1 for a linear array.
        #[serde(default = "one")]
        rows: usize,
    },
    /// Steering vectors at angles evenly spaced from -90 to 90 degrees, both included: as published. The first and the last
    /// beam are the same.
    Published {
        /// Beams.
        count: usize,
    },
    /// Independent complex normal numbers, normalised.
    Random {
        /// Beams.
        count: usize,
        /// The seed: beam c depends on it and on c.
        seed: u64,
    },
    /// Wide beams with a quadratic phase: the direction cosine runs evenly through `sectors` of `count` sectors from the first
    /// element to the last, centred on the beam's own. No direction in there is in a null.
    ///
    /// With 1 sector a beam is a sector's own, which serves feedback of an index (8 beams of 32 elements, three paths: a
    /// ceiling of 22.3 dB, the DFT grid's is 19.9). Joint estimation wants every direction in many measurements: from 16 at 10 dB
    /// with random receive beams the most probable three paths lose 5.2 +- 0.7 dB to the genie with 1 sector, 1.7 +- 0.4
    /// with 2, 1.0 +- 0.2 with 3, 0.6 +- 0.1 with 4, 0.7 +- 0.2 with 8; with random transmit beams 0.5 +- 0.1, with the DFT grid
    /// 11.9 +- 0.9. (Limits: the search for the mode also started from the true angles.)
    Wide {
        /// Beams.
        count: usize,
        /// Sectors that a beam covers, 1 to `count`; more than the space has wrap around.
        sectors: usize,
    },
}

fn one() -> usize {
    1
}

impl CodebookConfig {
    /// Number of beams.
    pub fn count(&self) -> usize {
        match *self {
            Self::Dft { count, .. } | Self::Published { count } | Self::Random { count, .. } | Self::Wide { count, .. } => count,
        }
    }
}

/// Unit-norm beams `[C, N, 2]`.
///
/// ```
/// use candle_models::beam::{Array, Codebook};
/// # fn main() -> candle_models::Result<()> {
/// let beams = Codebook::dft(&Array::Ula { elements: 8 }, 1, 8)?;
/// let power: f32 = beams.beam(3).iter().map(|x| x * x).sum();
/// assert_eq!((beams.count(), beams.elements()), (8, 8));
/// assert!((power - 1.0).abs() < 1e-6); // beams have unit norm
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Codebook {
    elements: usize,
    beams: Vec<f32>,
}

impl Codebook {
    /// A codebook of given beams `[C, N, 2]`, which it normalises.
    ///
    /// # Errors
    /// No beam, too many, a size that is no multiple of `elements`, or a beam that is zero or not finite.
    pub fn new(elements: usize, mut beams: Vec<f32>) -> Result<Self> {
        within("codebook.elements", elements, 1..=MAX_ELEMENTS)?;
        if !beams.len().is_multiple_of(2 * elements) {
            return Err(Error::tensor("codebook", format!("[C, {elements}, 2]"), format!("{} numbers", beams.len())));
        }
        within("codebook.count", beams.len() / (2 * elements), 1..=MAX_BEAMS)?;
        for (c, beam) in beams.chunks_exact_mut(2 * elements).enumerate() {
            let norm = squared_norm(beam);
            if norm == 0. || !norm.is_finite() {
                return Err(Error::tensor("codebook", "beams with a finite norm above 0", format!("beam {c} with {}", norm.sqrt())));
            }
            normalise(beam);
        }
        Ok(Self { elements, beams })
    }

    /// The codebook of a configuration for an array.
    ///
    /// # Errors
    /// A count out of range, or a grid that does not fit the array; the message names the field.
    pub fn generate(config: &CodebookConfig, array: &Array) -> Result<Self> {
        array.validate("array")?;
        within("codebook.count", config.count(), 1..=MAX_BEAMS)?;
        match *config {
            CodebookConfig::Dft { count, rows } => {
                check_rows(count, rows, array)?;
                Self::dft(array, rows, count / rows)
            }
            CodebookConfig::Published { count } => Self::published(array, count),
            CodebookConfig::Random { count, seed } => Self::random(array.elements(), count, seed),
            CodebookConfig::Wide { count, sectors } => Self::wide(array, count, sectors),
        }
    }

    /// The DFT grid: `rows` direction cosines in elevation by `columns` in azimuth.
    ///
    /// # Errors
    /// No beam, or too many.
    pub fn dft(array: &Array, rows: usize, columns: usize) -> Result<Self> {
        within("codebook.count", rows.saturating_mul(columns), 1..=MAX_BEAMS)?;
        let mut beams = vec![0.; 2 * array.elements() * rows * columns];
        for (c, beam) in beams.chunks_exact_mut(2 * array.elements()).enumerate() {
            // A single row looks at the horizon, which is where its grid's centre lies.
            array.response(centre(c % columns, columns), centre(c / columns, rows), beam);
        }
        Self::new(array.elements(), beams)
    }

    fn published(array: &Array, count: usize) -> Result<Self> {
        within("codebook.count", count, 2..=MAX_BEAMS)?;
        let mut beams = vec![0.; 2 * array.elements() * count];
        for (c, beam) in beams.chunks_exact_mut(2 * array.elements()).enumerate() {
            let azimuth = (c as f64 / (count - 1) as f64 - 0.5) * std::f64::consts::PI;
            array.steering(azimuth, 0., beam);
        }
        Self::new(array.elements(), beams)
    }

    fn random(elements: usize, count: usize, seed: u64) -> Result<Self> {
        let mut beams = vec![0.; 2 * elements * count];
        let random = Random::new(seed).stream("codebook");
        for (c, beam) in (0..).zip(beams.chunks_exact_mut(2 * elements)) {
            random.at(c).fill_normal(0, beam);
        }
        Self::new(elements, beams)
    }

    /// The direction cosine of element n is `u_c + width (n / (N - 1) - 1/2)`; its sum along the array is the phase.
    fn wide(array: &Array, count: usize, sectors: usize) -> Result<Self> {
        let Array::Ula { elements } = *array else {
            return Err(Error::config("codebook.kind", "wide beams are made for linear arrays only"));
        };
        within("codebook.sectors", sectors, 1..=count)?;
        let width = 2. * sectors as f64 / count as f64;
        let start = |c: usize| centre(c, count) - width / 2.;
        let phase = |c: usize, n: f64| n * start(c) + width * n * n / (2. * (elements - 1) as f64);
        let beam = |c: usize| (0..elements).flat_map(move |n| phasor(phase(c, n as f64)).map(|x| x as f32));
        Self::new(elements, (0..count).flat_map(beam).collect())
    }

    /// Number of beams, C.
    pub fn count(&self) -> usize {
        self.beams.len() / (2 * self.elements)
    }

    /// Elements of the array it is for, N.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The beams `[C, N, 2]`.
    pub fn beams(&self) -> &[f32] {
        &self.beams
    }

    /// Beam `c`, `[N, 2]`.
    ///
    /// # Panics
    /// If there is none.
    pub fn beam(&self, c: usize) -> &[f32] {
        &self.beams[2 * self.elements * c..2 * self.elements * (c + 1)]
    }

    /// An error that names `field` if the codebook is for another number of elements.
    pub fn check_elements(&self, field: &str, elements: usize) -> Result<()> {
        if self.elements == elements {
            return Ok(());
        }
        Err(Error::config(field, format!("beams of {} elements for an array of {elements}", self.elements)))
    }

    /// The same phases with equal amplitudes: beams of a phased array.
    #[must_use]
    pub fn constant_modulus(mut self) -> Self {
        self.beams.chunks_exact_mut(2 * self.elements).for_each(to_constant_modulus);
        self
    }

    /// Equal amplitudes and phases on a grid of `2^bits`.
    ///
    /// # Errors
    /// `bits` outside 1 to 16.
    pub fn phase_quantised(mut self, bits: u32) -> Result<Self> {
        self.beams.chunks_exact_mut(2 * self.elements).try_for_each(|beam| to_quantised_phases(beam, bits))?;
        Ok(self)
    }
}

/// Centre of sector `i` of `count` in the direction cosine.
fn centre(i: usize, count: usize) -> f64 {
    -1. + (2 * i + 1) as f64 / count as f64
}

fn check_rows(count: usize, rows: usize, array: &Array) -> Result<()> {
    within("codebook.rows", rows, 1..=count)?;
    if !count.is_multiple_of(rows) {
        return Err(Error::config("codebook.rows", format!("{rows} does not divide the {count} beams")));
    }
    match array {
        Array::Ula { .. } if rows > 1 => Err(Error::config("codebook.rows", format!("{rows} rows of beams for a linear array"))),
        _ => Ok(()),
    }
}

/// Gives every element of a beam `[N, 2]` the modulus `1 / sqrt(N)`; an element of zero has phase 0.
pub fn to_constant_modulus(beam: &mut [f32]) {
    let modulus = (2. / beam.len() as f32).sqrt();
    for pair in beam.chunks_exact_mut(2) {
        let r = pair[0].hypot(pair[1]);
        let [re, im] = if r > 0. && r.is_finite() { [pair[0] / r, pair[1] / r] } else { [1., 0.] };
        pair.copy_from_slice(&[re * modulus, im * modulus]);
    }
}

/// Rounds every phase of a beam `[N, 2]` to a multiple of `2 pi / 2^bits`, with the modulus `1 / sqrt(N)`.
///
/// # Errors
/// `bits` outside 1 to 16.
pub fn to_quantised_phases(beam: &mut [f32], bits: u32) -> Result<()> {
    within("bits", bits, 1..=16)?;
    let (levels, modulus) = ((1u32 << bits) as f32, (2. / beam.len() as f32).sqrt());
    for pair in beam.chunks_exact_mut(2) {
        let level = nearest_phase(pair, bits);
        let [cos, sin] = phasor(f64::from(2. * level / levels));
        pair.copy_from_slice(&[cos as f32 * modulus, sin as f32 * modulus]);
    }
    Ok(())
}

/// Which of the phases `2 pi level / 2^bits` is nearest to that of a complex number; negative for those below the real axis.
pub(super) fn nearest_phase(pair: &[f32], bits: u32) -> f32 {
    (pair[1].atan2(pair[0]) / TAU * (1u32 << bits) as f32).round()
}

#[cfg(test)]
mod tests {
    use super::super::complex::inner;
    use super::*;

    const ULA: Array = Array::Ula { elements: 32 };

    #[test]
    fn the_dft_grid_is_orthonormal() {
        let planar = Array::Planar { rows: 4, columns: 8 };
        for codebook in [Codebook::dft(&ULA, 1, 32).unwrap(), Codebook::dft(&ULA, 1, 8).unwrap(), Codebook::dft(&planar, 4, 8).unwrap()] {
            for a in 0..codebook.count() {
                for b in 0..codebook.count() {
                    let [re, im] = inner(codebook.beam(a), codebook.beam(b));
                    let expected = f32::from(u8::from(a == b));
                    assert!((re - expected).abs() < 1e-5 && im.abs() < 1e-5, "beams {a}, {b}: {re} {im}");
                }
            }
        }
    }

    #[test]
    fn a_planar_grid_is_a_kronecker_product() {
        let (rows, columns) = (Codebook::dft(&Array::Ula { elements: 3 }, 1, 6), Codebook::dft(&Array::Ula { elements: 5 }, 1, 4));
        let (rows, columns) = (rows.unwrap(), columns.unwrap());
        let config = CodebookConfig::Dft { count: 24, rows: 6 };
        let planar = Codebook::generate(&config, &Array::Planar { rows: 3, columns: 5 }).unwrap();
        assert_eq!(planar.count(), 24);
        for c in 0..24 {
            let (row, column) = (rows.beam(c / 4), columns.beam(c % 4));
            for (n, pair) in planar.beam(c).chunks_exact(2).enumerate() {
                let part = |beam: &[f32], i: usize| [beam[2 * i], beam[2 * i + 1]];
                let expected = super::super::complex::product(part(row, n / 5), part(column, n % 5));
                assert!((pair[0] - expected[0]).abs() < 1e-6 && (pair[1] - expected[1]).abs() < 1e-6, "beam {c}, element {n}");
            }
        }
    }

    #[test]
    fn the_published_grid_has_seven_distinct_beams() {
        let published = Codebook::generate(&CodebookConfig::Published { count: 8 }, &ULA).unwrap();
        let same = |a: usize, b: usize| inner(published.beam(a), published.beam(b))[0] > 1. - 1e-5;
        let pairs: Vec<_> = (0..8).flat_map(|a| (0..a).map(move |b| (a, b))).filter(|(a, b)| same(*a, *b)).collect();
        assert_eq!(pairs, [(7, 0)]);
    }

    /// Every direction is seen: by one beam where beams cover a sector each, by several where they overlap. The beams of a
    /// coarse DFT grid have nulls in common.
    #[test]
    fn wide_beams_leave_no_direction_out() {
        // The share of the power of `seen` ideal beams that the `seen` best beams bring to the worst direction.
        let worst = |config: CodebookConfig, seen: usize| {
            let codebook = Codebook::generate(&config, &ULA).unwrap();
            let mut response = vec![0.; 64];
            let shares = (0..1000).map(|i| {
                ULA.response(f64::from(i) / 500. - 1., 0., &mut response);
                let gain = |c: usize| inner(&response, codebook.beam(c)).iter().map(|x| x * x).sum::<f32>();
                let mut gains: Vec<f32> = (0..8).map(gain).collect();
                gains.sort_by(f32::total_cmp);
                gains[8 - seen..].iter().sum::<f32>() / 8.
            });
            shares.fold(f32::INFINITY, f32::min)
        };
        let wide = |sectors| CodebookConfig::Wide { count: 8, sectors };
        let found = [worst(wide(1), 1), worst(wide(4), 4), worst(wide(8), 8), worst(CodebookConfig::Dft { count: 8, rows: 1 }, 8)];
        assert!(found[0] > 0.15 && found[1] > 0.5 && found[2] > 0.5 && found[3] < 1e-3, "{found:?}");
    }

    #[test]
    fn projections_keep_phases() {
        let random = Codebook::generate(&CodebookConfig::Random { count: 8, seed: 3 }, &ULA).unwrap();
        let constant = random.clone().constant_modulus();
        for (a, b) in random.beams().chunks_exact(2).zip(constant.beams().chunks_exact(2)) {
            assert!((a[1].atan2(a[0]) - b[1].atan2(b[0])).abs() < 1e-5 && (b[0].hypot(b[1]) - 32f32.sqrt().recip()).abs() < 1e-6);
        }
        for bits in [1, 2, 3, 6, 16] {
            let quantised = random.clone().phase_quantised(bits).unwrap();
            let step = TAU / (1u32 << bits) as f32;
            for (a, b) in random.beams().chunks_exact(2).zip(quantised.beams().chunks_exact(2)) {
                let (before, after) = (a[1].atan2(a[0]), b[1].atan2(b[0]));
                let moved = ((before - after) / TAU + 0.5).rem_euclid(1.) - 0.5;
                assert!(moved.abs() * TAU <= step / 2. + 1e-5, "{bits} bits: {before} to {after}");
                assert!((after / step - (after / step).round()).abs() < 1e-2 && (b[0].hypot(b[1]) - 32f32.sqrt().recip()).abs() < 1e-6);
            }
        }
        assert_eq!(random.phase_quantised(0).unwrap_err().to_string(), "config: bits: 0 is outside 1..=16");
        let mut zero = [0.; 4];
        to_constant_modulus(&mut zero);
        assert_eq!(zero, [0.5f32.sqrt(), 0., 0.5f32.sqrt(), 0.]);
    }

    #[test]
    fn bad_codebooks_name_the_field() {
        let generate = |config: CodebookConfig| Codebook::generate(&config, &ULA).unwrap_err().to_string();
        assert_eq!(generate(CodebookConfig::Dft { count: 0, rows: 1 }), "config: codebook.count: 0 is outside 1..=4096");
        assert_eq!(generate(CodebookConfig::Dft { count: 8, rows: 0 }), "config: codebook.rows: 0 is outside 1..=8");
        assert_eq!(generate(CodebookConfig::Dft { count: 8, rows: 3 }), "config: codebook.rows: 3 does not divide the 8 beams");
        assert_eq!(generate(CodebookConfig::Dft { count: 8, rows: 2 }), "config: codebook.rows: 2 rows of beams for a linear array");
        assert_eq!(generate(CodebookConfig::Published { count: 1 }), "config: codebook.count: 1 is outside 2..=4096");
        assert_eq!(generate(CodebookConfig::Wide { count: 5000, sectors: 1 }), "config: codebook.count: 5000 is outside 1..=4096");
        assert_eq!(generate(CodebookConfig::Wide { count: 8, sectors: 9 }), "config: codebook.sectors: 9 is outside 1..=8");
        for beams in [vec![0.; 4], vec![1., f32::NAN, 0., 0.], vec![1.; 3], vec![]] {
            assert!(Codebook::new(2, beams).unwrap_err().to_string().contains("codebook"));
        }
        let codebook = Codebook::dft(&ULA, 1, 8).unwrap();
        assert_eq!(
            codebook.check_elements("codebook", 16).unwrap_err().to_string(),
            "config: codebook: beams of 32 elements for an array of 16"
        );
    }

    #[test]
    fn random_beams_have_unit_norm_and_addresses() {
        let make = |count, seed| Codebook::generate(&CodebookConfig::Random { count, seed }, &ULA).unwrap();
        let (few, many) = (make(8, 1), make(16, 1));
        assert_eq!(few.beams(), &many.beams()[..few.beams().len()]);
        assert_ne!(few, make(8, 2));
        assert!((0..16).all(|c| (squared_norm(many.beam(c)) - 1.).abs() < 1e-6));
    }
}
