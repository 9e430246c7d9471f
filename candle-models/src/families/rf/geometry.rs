//! Where things are on the earth, and how well they can be located at best.

use serde::{Deserialize, Serialize};

/// The earth's radius, km.
const EARTH_KM: f64 = 6371.0;
/// The speed of light, m/s.
pub const LIGHT: f64 = 299_792_458.0;

/// A place: degrees and metres.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
    /// Metres above the sea.
    pub altitude: f64,
}

impl Place {
    /// A place.
    pub const fn new(latitude: f64, longitude: f64, altitude: f64) -> Self {
        Self { latitude, longitude, altitude }
    }

    /// The way to another one along the earth, km (haversine).
    pub fn distance_km(&self, other: &Self) -> f64 {
        let half = |from: f64, to: f64| ((to - from).to_radians() / 2.0).sin().powi(2);
        let [a, b] = [self, other].map(|place| place.latitude.to_radians().cos());
        let a = half(self.latitude, other.latitude) + a * b * half(self.longitude, other.longitude);
        2.0 * EARTH_KM * a.sqrt().atan2((1.0 - a).sqrt())
    }

    /// How far east and north of here another one is, km: on a plane that touches the earth here, which over 300 km is wrong by a few hundred metres.
    pub fn plane_km(&self, other: &Self) -> [f64; 2] {
        let north = (other.latitude - self.latitude).to_radians() * EARTH_KM;
        let east = (other.longitude - self.longitude).to_radians() * EARTH_KM * self.latitude.to_radians().cos();
        [east, north]
    }

    /// The place so far east and north of here, at this height.
    pub fn at_km(&self, [east, north]: [f64; 2]) -> Self {
        let latitude = self.latitude + (north / EARTH_KM).to_degrees();
        let longitude = self.longitude + (east / (EARTH_KM * self.latitude.to_radians().cos())).to_degrees();
        Self { latitude, longitude, altitude: self.altitude }
    }
}

/// What is measured of an emitter, and the standard deviation of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measured {
    /// Received powers that fall by 10 n dB in a tenfold distance, with so many dB of deviation.
    Power {
        /// The exponent n of the path loss.
        exponent: f64,
        /// Of a power, dB.
        deviation_db: f64,
        /// Whether the emitter's power is known.
        known: bool,
    },
    /// Times of arrival at a common clock, of which only differences count.
    Arrival {
        /// Of a range, in the units of the places.
        deviation: f64,
    },
    /// Angles of arrival.
    Angle {
        /// Of an angle, radians.
        deviation: f64,
    },
}

/// The least root mean square error with which an emitter on a plane can be located without bias (the bound of Cramer and Rao), in the units of the places;
/// infinite where it cannot be located.
pub fn least_error(emitter: [f64; 2], receivers: &[[f64; 2]], measured: Measured) -> f64 {
    let ways = receivers.iter().map(|receiver| {
        let way = [emitter[0] - receiver[0], emitter[1] - receiver[1]];
        (way, way[0].hypot(way[1]))
    });
    // The rows of the measurements' gradients over their deviation, and whether their mean tells nothing.
    let (rows, centred): (Vec<[f64; 2]>, bool) = match measured {
        Measured::Power { exponent, deviation_db, known } => {
            let slope = 10.0 * exponent / std::f64::consts::LN_10 / deviation_db;
            (ways.map(|(way, distance)| way.map(|x| -slope * x / distance.powi(2))).collect(), !known)
        }
        Measured::Arrival { deviation } => (ways.map(|(way, distance)| way.map(|x| x / distance / deviation)).collect(), true),
        Measured::Angle { deviation } => {
            (ways.map(|([x, y], distance)| [-y, x].map(|t| t / distance.powi(2) / deviation)).collect(), false)
        }
    };
    let n = rows.len() as f64;
    let mean = if centred { [0, 1].map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / n) } else { [0.0; 2] };
    let information = |i: usize, j: usize| rows.iter().map(|row| (row[i] - mean[i]) * (row[j] - mean[j])).sum::<f64>();
    let [xx, xy, yy] = [information(0, 0), information(0, 1), information(1, 1)];
    let determinant = xx * yy - xy * xy;
    if determinant > 1e-12 * (xx + yy).powi(2) { ((xx + yy) / determinant).sqrt() } else { f64::INFINITY }
}

/// The least deviation of the difference between two times of arrival, seconds, of a signal with a flat spectrum of that bandwidth (Hz) that lasts so
/// long (s), with these ratios of signal to noise in its bandwidth (Stein 1981).
pub fn least_delay_error(bandwidth: f64, seconds: f64, [a, b]: [f64; 2]) -> f64 {
    let effective = 2.0 / (1.0 / a + 1.0 / b + 1.0 / (a * b));
    1.0 / (std::f64::consts::PI * bandwidth / 3f64.sqrt() * (bandwidth * seconds * effective).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORNERS: [[f64; 2]; 4] = [[0.0, 0.0], [100.0, 0.0], [0.0, 100.0], [100.0, 100.0]];

    #[test]
    fn places_are_as_far_apart_as_they_are() {
        let (turin, milan) = (Place::new(45.044, 7.672, 250.0), Place::new(45.478, 9.123, 120.0));
        assert!((turin.distance_km(&milan) - 123.4).abs() < 0.5, "{}", turin.distance_km(&milan));
        let [east, north] = turin.plane_km(&milan);
        assert!((east.hypot(north) - turin.distance_km(&milan)).abs() < 0.5);
        let back = turin.at_km([east, north]);
        assert!((back.latitude - milan.latitude).abs() < 1e-12 && (back.longitude - milan.longitude).abs() < 1e-12);
        assert_eq!(turin.distance_km(&turin), 0.0);
    }

    #[test]
    fn bounds_are_the_golden_ones() {
        let at = |place, measured| least_error(place, &CORNERS, measured);
        let power = |known| Measured::Power { exponent: 2.0, deviation_db: 8.0, known };
        for (place, known, expected) in
            [([50.0, 50.0], true, 65.127), ([50.0, 50.0], false, 65.127), ([30.0, 60.0], true, 64.000), ([30.0, 60.0], false, 64.028)]
        {
            assert!((at(place, power(known)) - expected).abs() < 5e-4, "{place:?} {}", at(place, power(known)));
        }
        let arrival = Measured::Arrival { deviation: 21.2 };
        assert!((at([50.0, 50.0], arrival) - 21.2).abs() < 1e-9 && (at([30.0, 60.0], arrival) - 21.561).abs() < 5e-4);
        let angle = Measured::Angle { deviation: 1f64.to_radians() };
        assert!((at([50.0, 50.0], angle) - 1.234_13).abs() < 5e-6 && (at([30.0, 60.0], angle) - 1.212_77).abs() < 5e-6);
        assert_eq!(least_error([1.0, 1.0], &CORNERS[..1], arrival), f64::INFINITY);
        let snr = 10f64.powf(1.5);
        assert!((least_delay_error(12.5e3, 1.0, [snr; 2]) * 1e9 - 70.7).abs() < 0.05);
    }
}
