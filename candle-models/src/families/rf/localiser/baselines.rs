//! What a localiser is measured against: centroids, and the posterior on a grid, which nothing can beat.

use super::Heard;
use super::events::{Event, Events};
use crate::Result;
use crate::rf::geometry::Place;

/// The mean of places with weights.
fn weighted(places: impl Iterator<Item = (Place, f64)>) -> Place {
    let (mut total, mut sum) = (0.0, [0.0; 3]);
    for (place, weight) in places {
        total += weight;
        for (sum, x) in sum.iter_mut().zip([place.latitude, place.longitude, place.altitude]) {
            *sum += weight * x;
        }
    }
    let [latitude, longitude, altitude] = sum.map(|sum| sum / total);
    Place::new(latitude, longitude, altitude)
}

/// The middle of the receivers that hear something.
pub fn centroid(heard: &[Heard]) -> Place {
    weighted(heard.iter().map(|one| (one.receiver, 1.0)))
}

/// The same, each receiver weighted by the amplitude that it hears.
pub fn weighted_centroid(heard: &[Heard]) -> Place {
    let most = heard.iter().map(|one| one.power_dbm).fold(f64::NEG_INFINITY, f64::max);
    weighted(heard.iter().map(|one| (one.receiver, 10f64.powf((one.power_dbm - most) / 20.0))))
}

/// The exact posterior of an event on a grid, by the distributions that it was drawn from.
#[derive(Debug, Clone)]
pub struct Posterior<'a> {
    events: &'a Events,
    grid: Vec<Place>,
    all_powers: bool,
}

impl<'a> Posterior<'a> {
    /// On a grid of so many degrees. The powers of receivers that hear nothing are known as well, or only that they hear nothing.
    ///
    /// # Errors
    /// If the step is out of range.
    pub fn new(events: &'a Events, step: f64, all_powers: bool) -> Result<Self> {
        Ok(Self { grid: events.grid(step)?, events, all_powers })
    }

    /// The mean, which has the least mean square error, and the most likely place.
    pub fn of(&self, event: &Event) -> [Place; 2] {
        let log = |place: &Place| self.events.prior(place).ln() + self.events.log_likelihood(place, &event.receptions, self.all_powers);
        let logs: Vec<f64> = self.grid.iter().map(log).collect();
        let (best, most) = logs.iter().enumerate().fold((0, f64::NEG_INFINITY), |most, (i, x)| if *x > most.1 { (i, *x) } else { most });
        // A degree of longitude is shorter than one of latitude everywhere alike: what counts is the place's own area.
        let mean = weighted(self.grid.iter().zip(&logs).map(|(place, log)| (*place, (log - most).exp())));
        [mean, self.grid[best]]
    }
}

/// Root mean square, mean and quantiles (50, 68, 95%) of distances, km.
pub fn errors(mut distances: Vec<f64>) -> [f64; 5] {
    distances.sort_by(f64::total_cmp);
    let n = distances.len() as f64;
    let quantile = |share: f64| distances[((share * n) as usize).min(distances.len() - 1)];
    let square = distances.iter().map(|x| x * x).sum::<f64>() / n;
    [square.sqrt(), distances.iter().sum::<f64>() / n, quantile(0.5), quantile(0.68), quantile(0.95)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// On 3000 events the spec's own script had root mean squares of 29.1 for the posterior with all powers, 42.7 and 64.9 for the centroids.
    #[test]
    fn baselines_are_as_good_as_they_were_measured() {
        let events = Events::default();
        let (posterior, n) = (Posterior::new(&events, 0.1, true).unwrap(), 300);
        let drawn: Vec<Event> = (0..n).map(|i| events.draw(Random::new(3).at(i))).collect();
        let error =
            |locate: &dyn Fn(&Event) -> Place| errors(drawn.iter().map(|event| locate(event).distance_km(&event.emitter)).collect())[0];
        let found = [
            error(&|event| posterior.of(event)[0]),
            error(&|event| weighted_centroid(&event.heard())),
            error(&|event| centroid(&event.heard())),
        ];
        for (found, expected) in found.into_iter().zip([29.1, 42.7, 64.9]) {
            // 300 events: a root mean square is known to about 5%.
            assert!((found / expected - 1.0).abs() < 0.15, "{found} {expected}");
        }
    }
}
