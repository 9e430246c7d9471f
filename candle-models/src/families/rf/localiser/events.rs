//! Events that receivers hear: the published generator of training data, whose powers say where an emitter is.
//!
//! An emitter of 37 dBm at 145 MHz stands in the receivers' box (70%) or up to half a degree outside. A receiver d km away has
//! `P = 37 - (20 lg d + 20 lg 145 + 32.44) - terrain - U(5, 15) + 10 lg(2 Exp(1))` dBm; the terrain costs nothing, U(10, 25) or U(25, 40) dB by how far the
//! difference of altitudes goes beyond the distance. It is heard from 3 dB above a noise of -120 dBm on. An event counts if three receivers or more hear it,
//! from directions that are not all alike.

use super::Heard;
use crate::random::Random;
use crate::rf::geometry::Place;
use crate::{Error, Result};
use std::ops::Range;

/// The published receivers.
pub const RECEIVERS: [Place; 7] = [
    Place::new(45.03, 7.27, 600.0),
    Place::new(45.234, 7.857, 300.0),
    Place::new(45.044, 7.672, 250.0),
    Place::new(45.048, 7.238, 700.0),
    Place::new(44.561, 8.956, 480.0),
    Place::new(44.395, 8.956, 100.0),
    Place::new(45.478, 9.123, 120.0),
];

/// Power of an emitter, dBm, and its altitude, m.
const EMITTED_DBM: f64 = 37.0;
const ALTITUDE: f64 = 300.0;
const MHZ: f64 = 145.0;
/// Power of the noise, dBm, and by how much a signal must exceed it, dB.
const NOISE_DBM: f64 = -120.0;
const LEAST_SNR: f64 = 3.0;
/// Receivers that must hear an event.
const LEAST_HEARD: usize = 3;
/// The share of emitters within the receivers' box, and how far outside the others may be, degrees.
const INSIDE: f64 = 0.7;
const MARGIN: f64 = 0.5;
/// Losses in towns, dB, uniform.
const TOWN: Range<f64> = 5.0..15.0;

/// What is drawn from: receivers and what lies between them and an emitter.
#[derive(Debug, Clone)]
pub struct Events {
    receivers: Vec<Place>,
    /// South-west and north-east corner.
    corners: [[f64; 2]; 2],
    losses: [Losses; 3],
}

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Where the emitter is.
    pub emitter: Place,
    /// What each receiver has.
    pub receptions: Vec<Heard>,
}

impl Event {
    /// What is heard: the receptions that stand out of the noise.
    pub fn heard(&self) -> Vec<Heard> {
        self.receptions.iter().copied().filter(is_heard).collect()
    }
}

fn is_heard(reception: &Heard) -> bool {
    reception.snr_db >= LEAST_SNR
}

/// Which loss the terrain has.
fn terrain(altitude: f64, distance_km: f64) -> usize {
    let score = (ALTITUDE - altitude).abs() / 100.0 - distance_km / 50.0;
    if score > 0.0 {
        0
    } else if score > -2.0 {
        1
    } else {
        2
    }
}

/// Losses of the terrain, dB, uniform.
const TERRAIN: [Range<f64>; 3] = [0.0..0.0, 10.0..25.0, 25.0..40.0];

/// What is received without terrain, towns and fading.
fn free_space(distance_km: f64) -> f64 {
    // Next to the receiver the formula would have more power than was sent.
    EMITTED_DBM - (20.0 * distance_km.max(1e-3).log10() + 20.0 * MHZ.log10() + 32.44)
}

impl Default for Events {
    fn default() -> Self {
        Self::new(RECEIVERS.to_vec())
    }
}

impl Events {
    fn new(receivers: Vec<Place>) -> Self {
        let bounds = |of: fn(&Place) -> f64| {
            receivers.iter().map(of).fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| [low.min(x), high.max(x)])
        };
        let ([south, north], [west, east]) = (bounds(|place| place.latitude), bounds(|place| place.longitude));
        Self { corners: [[south, west], [north, east]], losses: TERRAIN.map(Losses::new), receivers }
    }

    /// The receivers.
    pub fn receivers(&self) -> &[Place] {
        &self.receivers
    }

    /// The event at an address: the first of those drawn there that counts.
    pub fn draw(&self, random: Random) -> Event {
        let mut attempt = 0;
        loop {
            let event = self.attempt(random.at(attempt));
            if self.counts(&event) {
                return event;
            }
            attempt += 1;
        }
    }

    fn attempt(&self, random: Random) -> Event {
        let place = random.stream("emitter");
        let uniform = |index: u64, low: f64, high: f64| low + (high - low) * f64::from(place.uniform(index));
        let margin = if uniform(0, 0.0, 1.0) < INSIDE { 0.0 } else { MARGIN };
        let [[south, west], [north, east]] = self.corners;
        let emitter = Place::new(uniform(1, south - margin, north + margin), uniform(2, west - margin, east + margin), ALTITUDE);
        let reception = |(i, receiver): (usize, &Place)| {
            let draws = random.stream("receiver").at(i as u64);
            let uniform = |index: u64, of: &Range<f64>| of.start + (of.end - of.start) * f64::from(draws.uniform(index));
            let distance = receiver.distance_km(&emitter);
            let fading = 10.0 * (-2.0 * (1.0 - f64::from(draws.uniform(2))).ln()).max(1e-12).log10();
            let loss = uniform(0, &TERRAIN[terrain(receiver.altitude, distance)]) + uniform(1, &TOWN);
            let power_dbm = free_space(distance) - loss + fading;
            Heard { receiver: *receiver, power_dbm, snr_db: power_dbm - NOISE_DBM, frequency_offset_hz: uniform(3, &(-50.0..50.0)) }
        };
        Event { emitter, receptions: self.receivers.iter().enumerate().map(reception).collect() }
    }

    fn counts(&self, event: &Event) -> bool {
        let heard: Vec<&Place> = event.receptions.iter().filter(|one| is_heard(one)).map(|one| &one.receiver).collect();
        heard.len() >= LEAST_HEARD && spread_out(&event.emitter, &heard)
    }

    /// The logarithm of how likely receptions are if the emitter stands there, and zero probability where such an event would not count. Of what is not
    /// heard it is known that it is not heard, or its power as well.
    pub fn log_likelihood(&self, emitter: &Place, receptions: &[Heard], all_powers: bool) -> f64 {
        let heard: Vec<&Place> = receptions.iter().filter(|one| is_heard(one)).map(|one| &one.receiver).collect();
        if !spread_out(emitter, &heard) {
            return f64::NEG_INFINITY;
        }
        let one = |reception: &Heard| {
            let distance = reception.receiver.distance_km(emitter);
            let (losses, free) = (&self.losses[terrain(reception.receiver.altitude, distance)], free_space(distance));
            if all_powers || is_heard(reception) {
                losses.density(reception.power_dbm - free).ln()
            } else {
                losses.below(NOISE_DBM + LEAST_SNR - free).ln()
            }
        };
        receptions.iter().map(one).sum()
    }

    /// How likely it is to stand at a place, up to a factor.
    pub fn prior(&self, place: &Place) -> f64 {
        let [[south, west], [north, east]] = self.corners;
        let within = |margin: f64| {
            let inside =
                (south - margin..=north + margin).contains(&place.latitude) && (west - margin..=east + margin).contains(&place.longitude);
            f64::from(u8::from(inside)) / ((north - south + 2.0 * margin) * (east - west + 2.0 * margin))
        };
        INSIDE * within(0.0) + (1.0 - INSIDE) * within(MARGIN)
    }

    /// Where emitters can stand, in steps of so many degrees.
    ///
    /// # Errors
    /// If the step is no positive number or makes too many places.
    pub fn grid(&self, step: f64) -> Result<Vec<Place>> {
        let [[south, west], [north, east]] = self.corners;
        let count = |low: f64, high: f64| ((high - low + 2.0 * MARGIN) / step).floor() as usize;
        if !(1e-3..=1.0).contains(&step) {
            return Err(Error::config("step", format!("expected from 0.001 to 1 degree, found {step}")));
        }
        let at = |low: f64, i: usize| low - MARGIN + (i as f64 + 0.5) * step;
        let rows = count(south, north);
        Ok((0..rows).flat_map(|i| (0..count(west, east)).map(move |j| Place::new(at(south, i), at(west, j), ALTITUDE))).collect())
    }
}

/// Whether no two neighbouring directions from the emitter make the published measure of geometry too bad.
fn spread_out(emitter: &Place, heard: &[&Place]) -> bool {
    const WORST: f64 = 100.0;
    let mut angles: Vec<f64> =
        heard.iter().map(|place| (place.longitude - emitter.longitude).atan2(place.latitude - emitter.latitude)).collect();
    angles.sort_by(f64::total_cmp);
    let next = angles.iter().cycle().skip(1);
    let gap = angles.iter().zip(next).map(|(a, b)| (b - a).rem_euclid(std::f64::consts::TAU)).fold(f64::INFINITY, f64::min);
    let dilution = if gap < 0.1 {
        50.0
    } else if gap < 0.5 {
        20.0 / gap
    } else {
        10.0 / (heard.len() as f64).sqrt()
    };
    dilution <= WORST
}

/// How much more is received than in free space, dB: the distribution of fading less what towns and terrain cost, in a table.
#[derive(Debug, Clone)]
struct Losses {
    density: Vec<f64>,
    below: Vec<f64>,
}

/// The table's range and its steps, dB.
const TABLE: Range<f64> = -140.0..20.0;
const STEP: f64 = 0.02;

impl Losses {
    fn new(terrain: Range<f64>) -> Self {
        // The probability of fading below x, and of fading less a town's loss between x and x + dx.
        let fading = |x: f64| 1.0 - (-0.5 * 10f64.powf(x / 10.0)).exp();
        let town = |x: f64| (fading(x + TOWN.end) - fading(x + TOWN.start)) / (TOWN.end - TOWN.start);
        let count = ((TABLE.end - TABLE.start) / STEP) as usize;
        let at = |i: usize| TABLE.start + i as f64 * STEP;
        let towns: Vec<f64> = (0..count).map(|i| town(at(i))).collect();
        let (first, width) = ((terrain.start / STEP).round() as usize, ((terrain.end - terrain.start) / STEP).round() as usize);
        let of = |i: usize| towns.get(i).copied().unwrap_or(0.0);
        let mut sums = vec![0.0];
        towns.iter().for_each(|x| sums.push(sums[sums.len() - 1] + x));
        let sum = |i: usize| sums[i.min(count)];
        let density: Vec<f64> = if width == 0 {
            towns.clone()
        } else {
            // The mean over the terrain's losses: the ends count half.
            let mean = |i: usize| sum(i + first + width) - sum(i + first) + 0.5 * (of(i + first + width) - of(i + first));
            (0..count).map(|i| mean(i) / width as f64).collect()
        };
        let mut below = vec![0.0];
        density.windows(2).for_each(|pair| below.push(below[below.len() - 1] + 0.5 * (pair[0] + pair[1]) * STEP));
        Self { density, below }
    }

    fn look(table: &[f64], x: f64) -> f64 {
        let at = ((x - TABLE.start) / STEP).clamp(0.0, (table.len() - 2) as f64);
        let i = at as usize;
        table[i] + (at - i as f64) * (table[i + 1] - table[i])
    }

    fn density(&self, x: f64) -> f64 {
        Self::look(&self.density, x).max(1e-300)
    }

    fn below(&self, x: f64) -> f64 {
        Self::look(&self.below, x).max(1e-300)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_distributions() {
        for losses in TERRAIN.map(Losses::new) {
            assert!((losses.below.last().unwrap() - 1.0).abs() < 1e-4, "{:?}", losses.below.last());
        }
    }

    /// Drawn powers fall into tenths of their distribution alike.
    #[test]
    fn drawn_powers_have_the_distribution_of_the_likelihood() {
        let events = Events::default();
        let mut tenths = [0usize; 10];
        let n = 3000;
        for i in 0..n {
            let event = events.attempt(Random::new(1).at(i));
            for reception in &event.receptions {
                let distance = reception.receiver.distance_km(&event.emitter);
                let losses = &events.losses[terrain(reception.receiver.altitude, distance)];
                tenths[(losses.below(reception.power_dbm - free_space(distance)) * 10.0).min(9.0) as usize] += 1;
            }
        }
        let expected = n as f64 * 0.7;
        // Seven receivers share an emitter and are independent otherwise: three standard errors.
        assert!(tenths.iter().all(|count| (*count as f64 - expected).abs() < 3.5 * (0.9 * expected).sqrt()), "{tenths:?}");
    }

    #[test]
    fn an_event_is_heard_by_three_and_the_same_again() {
        let events = Events::default();
        for i in 0..50 {
            let event = events.draw(Random::new(2).at(i));
            assert!(event.heard().len() >= 3 && event == events.draw(Random::new(2).at(i)));
            assert!(events.prior(&event.emitter) > 0.0 && events.log_likelihood(&event.emitter, &event.receptions, true).is_finite());
        }
    }

    #[test]
    fn a_grid_covers_where_emitters_stand() {
        let events = Events::default();
        let grid = events.grid(0.1).unwrap();
        assert_eq!(grid.len(), 20 * 28);
        assert!(grid.iter().all(|place| events.prior(place) > 0.0));
        assert!(events.grid(0.0).is_err() && events.grid(f64::NAN).is_err());
    }
}
