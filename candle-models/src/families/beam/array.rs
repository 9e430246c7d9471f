//! Antenna arrays and their steering vectors.
//!
//! Elements are isotropic and half a wavelength apart. A linear array lies along the horizontal axis, a planar one in the
//! plane of that axis and the vertical one, both facing azimuth 0, elevation 0. With the direction cosines
//!
//! ```text
//! u = sin(azimuth) cos(elevation)        v = sin(elevation)
//! a_n       = exp(j pi n u)              linear, n = 0..N
//! a_(r, c)  = exp(j pi (c u + r v))      planar, element r * columns + c: a Kronecker product, rows by columns
//! ```
//!
//! A steering vector is not normalised: its squared norm is the number of elements.
//!
//! ```
//! use candle_models::beam::Array;
//!
//! let array = Array::Ula { elements: 4 };
//! let mut broadside = [0.0; 8];
//! array.steering(0.0, 0.0, &mut broadside); // straight ahead: the same phase everywhere
//! assert!(broadside.chunks(2).all(|x| x[0] == broadside[0] && x[1].abs() < 1e-6));
//! assert_eq!(array.elements(), 4);
//! ```

use super::within;
use crate::Result;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Most elements of an array.
pub const MAX_ELEMENTS: usize = 1024;

/// An antenna array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Array {
    /// A uniform linear array along the horizontal axis.
    Ula {
        /// Elements.
        elements: usize,
    },
    /// A uniform rectangular array.
    Planar {
        /// Elements of a column.
        rows: usize,
        /// Elements of a row.
        columns: usize,
    },
}

impl Array {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        let (rows, columns) = self.shape();
        rows * columns
    }

    /// Rows and columns; a linear array is one row.
    pub fn shape(&self) -> (usize, usize) {
        match *self {
            Self::Ula { elements } => (1, elements),
            Self::Planar { rows, columns } => (rows, columns),
        }
    }

    /// An array has 2 to 1024 elements; `field` is what an error calls it (`transmit`).
    pub fn validate(&self, field: &str) -> Result<()> {
        match *self {
            Self::Ula { elements } => within(&format!("{field}.elements"), elements, 2..=MAX_ELEMENTS),
            Self::Planar { rows, columns } => {
                within(&format!("{field}.rows"), rows, 1..=MAX_ELEMENTS)?;
                within(&format!("{field}.columns"), columns, 1..=MAX_ELEMENTS)?;
                within(&format!("{field}.rows * {field}.columns"), rows * columns, 2..=MAX_ELEMENTS)
            }
        }
    }

    /// Writes the steering vector `[N, 2]` of a direction in radians.
    ///
    /// # Panics
    /// If `out` has another length than `2 * elements()`.
    pub fn steering(&self, azimuth: f64, elevation: f64, out: &mut [f32]) {
        let (u, v) = direction_cosines(azimuth / PI, elevation / PI);
        self.response(u, v, out);
    }

    /// Writes the steering vector `[N, 2]` of the direction cosines `u` (horizontal) and `v` (vertical).
    ///
    /// # Panics
    /// If `out` has another length than `2 * elements()`.
    pub fn response(&self, u: f64, v: f64, out: &mut [f32]) {
        let (rows, columns) = self.shape();
        assert_eq!(out.len(), 2 * rows * columns, "a steering vector of {} elements", rows * columns);
        let [mut row_phasor, row_step] = [[1., 0.], phasor(v)];
        for row in out.chunks_exact_mut(2 * columns) {
            write_powers(row_phasor, phasor(u), row);
            row_phasor = product(row_phasor, row_step);
        }
    }
}

/// The direction cosines `(u, v)` of azimuth and elevation, both in half turns (1 is 180 degrees).
pub(super) fn direction_cosines(azimuth: f64, elevation: f64) -> (f64, f64) {
    let ([_, sin_azimuth], [cos_elevation, sin_elevation]) = (phasor(azimuth), phasor(elevation));
    (sin_azimuth * cos_elevation, sin_elevation)
}

/// `first * z^n` for n = 0, 1, ... Four running products, so that one multiplication need not wait for the last; in f64, where
/// 1024 of them lose less than half a unit of f32's last place.
fn write_powers(first: [f64; 2], z: [f64; 2], out: &mut [f32]) {
    let z2 = product(z, z);
    let z4 = product(z2, z2);
    let second = product(first, z);
    let mut powers = [first, second, product(first, z2), product(second, z2)];
    for group in out.chunks_mut(8) {
        for (pair, power) in group.chunks_exact_mut(2).zip(&mut powers) {
            pair.copy_from_slice(&power.map(|x| x as f32));
            *power = product(*power, z4);
        }
    }
}

fn product([a, b]: [f64; 2], [c, d]: [f64; 2]) -> [f64; 2] {
    [a * c - b * d, a * d + b * c]
}

/// `exp(j pi x)` as `[cos, sin]`: Taylor series on an eighth of a turn to either side, exact to f64. The standard library's
/// differ between platforms in the last bit, and channels must not.
pub(super) fn phasor(x: f64) -> [f64; 2] {
    // Quarter turns: x = quarters / 2 + rest with |rest| <= 1/4. Both steps are exact.
    let quarters = (2. * x).round();
    let angle = (x - quarters / 2.) * PI;
    let z = angle * angle;
    // 1 - z/(2 3) (1 - z/(4 5) (1 - ...)) and 1 - z/(1 2) (1 - z/(3 4) (1 - ...)).
    let series = |first: u32| (0..8).rev().fold(1., |sum, k| 1. - sum * z / f64::from((first + 2 * k) * (first + 2 * k + 1)));
    let (cos, sin) = (series(1), angle * series(2));
    match quarters.rem_euclid(4.) as u8 {
        0 => [cos, sin],
        1 => [-sin, cos],
        2 => [-cos, -sin],
        _ => [sin, -cos],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn phasors_are_exact() {
        for i in 0..100_000 {
            let x = f64::from(Random::new(1).uniform(i)) * 16. - 8.;
            let [cos, sin] = phasor(x);
            // The reduced argument is exact here, the oracle's product x * pi is not: hence 1e-14.
            assert!((cos - (x * PI).cos()).abs() < 1e-14 && (sin - (x * PI).sin()).abs() < 1e-14, "{x}: {cos} {sin}");
        }
        assert_eq!([0., 0.5, 1., 1.5, -0.5].map(phasor), [[1., 0.], [0., 1.], [-1., 0.], [0., -1.], [0., -1.]]);
    }

    #[test]
    fn steering_follows_its_definition() {
        let arrays = [Array::Ula { elements: 1024 }, Array::Ula { elements: 5 }, Array::Planar { rows: 3, columns: 7 }];
        for (i, array) in (0..).zip(arrays.repeat(40)) {
            let random = Random::new(2);
            let [azimuth, elevation] = [0, 1].map(|k| (f64::from(random.uniform(2 * i + k)) - 0.5) * PI);
            let mut out = vec![0.; 2 * array.elements()];
            array.steering(azimuth, elevation, &mut out);
            let columns = array.shape().1;
            for (n, pair) in out.chunks_exact(2).enumerate() {
                let phase = (n % columns) as f64 * azimuth.sin() * elevation.cos() + (n / columns) as f64 * elevation.sin();
                let expected = [(PI * phase).cos(), (PI * phase).sin()];
                for (found, expected) in pair.iter().zip(expected) {
                    assert!((f64::from(*found) - expected).abs() < 1e-7, "{array:?} element {n}: {pair:?}, not {expected:?}");
                }
            }
        }
    }

    #[test]
    fn sizes_out_of_range_name_the_field() {
        for (array, field) in [
            (Array::Ula { elements: 1 }, "transmit.elements"),
            (Array::Ula { elements: 1025 }, "transmit.elements"),
            (Array::Planar { rows: 0, columns: 8 }, "transmit.rows"),
            (Array::Planar { rows: 1, columns: 1 }, "transmit.rows * transmit.columns"),
            (Array::Planar { rows: 64, columns: 64 }, "transmit.rows * transmit.columns"),
            (Array::Planar { rows: 2, columns: usize::MAX }, "transmit.columns"),
        ] {
            let error = array.validate("transmit").unwrap_err().to_string();
            assert!(error.starts_with(&format!("config: {field}: ")), "{array:?}: {error}");
        }
        Array::Ula { elements: 2 }.validate("transmit").unwrap();
        Array::Planar { rows: 32, columns: 32 }.validate("transmit").unwrap();
    }
}
