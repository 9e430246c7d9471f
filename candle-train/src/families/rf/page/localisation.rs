//! Localisers beside the exact posterior and centroids.

use super::Seeds;
use crate::families::rf::config::RunConfig;
use crate::families::rf::localisation::{Found, Localisation};
use crate::parallel::Single;
use crate::report::sections::{Section, of_seeds};
use candle_core::Device;
use candle_models::Result;
use candle_models::random::Random;
use candle_models::rf::geometry::Place;
use candle_models::rf::localiser::baselines::{Posterior, centroid, errors, weighted_centroid};
use candle_models::rf::localiser::events::{Event, Events};
use candle_models::rf::localiser::map_svg;
use candle_models::rf::{Localiser, LocaliserConfig};
use rayon::prelude::*;

/// Degrees from a place of the posterior's grid to the next.
const GRID: f64 = 0.02;
/// Events whose maps are drawn.
const MAPS: u64 = 2;

/// The table, and maps of some events.
pub fn section(models: &[Seeds<LocaliserConfig, Localiser>], random: Random, count: usize, say: &dyn Fn(&str)) -> Result<Section> {
    let events = Events::default();
    let drawn: Vec<Event> = (0..count as u64).into_par_iter().map(|i| events.draw(random.at(i))).collect();
    let mut text = format!(
        "\n## Where an emitter is, by how strongly it is heard\n\n{count} events of the published generator: an emitter of 37 dBm at 145 MHz, seven receivers around Turin and \
         Genoa, at least three of which hear it. Distances from the emitter in km. The exact posterior knows every distribution that was drawn from, on a grid of {GRID} \
         degrees: its mean has the least mean square error that there can be. A network's answer is a mixture; \"in 50%\" is the share of emitters within the \
         mixture's least region that should hold 50%.\n\n\
         | | root mean square | mean | 50% | 68% | 95% | in 50% | in 90% |\n|---|---|---|---|---|---|---|---|\n"
    );
    let row = |name: &str, found: Vec<f64>| {
        let [rmse, mean, p50, p68, p95] = errors(found);
        format!("| {name} | {rmse:.2} | {mean:.2} | {p50:.2} | {p68:.2} | {p95:.2} | | |\n")
    };
    for (all_powers, name) in [(true, "powers of all receivers known"), (false, "powers known that are heard")] {
        say(&format!("exact posterior, {name}"));
        let posterior = Posterior::new(&events, GRID, all_powers)?;
        let found: Vec<[f64; 2]> =
            drawn.par_iter().map(|event| posterior.of(event).map(|place| place.distance_km(&event.emitter))).collect();
        text += &row(&format!("exact posterior, {name}"), found.iter().map(|one| one[0]).collect());
        if all_powers {
            text += &row("its most likely place", found.iter().map(|one| one[1]).collect());
        }
    }
    let mut maps = Vec::new();
    for Seeds { config, networks } in models {
        say(&config.name());
        // Its events and how they are encoded; the run's own figures do not matter.
        let task = Localisation::new(&RunConfig::localiser("standard")?, config, &Single)?;
        let found = networks
            .iter()
            .map(|network| task.measure(network, random, count, &Device::Cpu, &Single))
            .collect::<Result<Vec<Vec<Found>>>>()?;
        let of = |index: usize| {
            of_seeds(
                &found.iter().map(|found| errors(found.iter().map(|one| f64::from(one.error_km)).collect())[index]).collect::<Vec<_>>(),
                2,
            )
        };
        let within = |level: f32| {
            let share = |found: &Vec<Found>| 100.0 * found.iter().filter(|one| one.level <= level).count() as f64 / found.len() as f64;
            of_seeds(&found.iter().map(share).collect::<Vec<_>>(), 1)
        };
        text += &format!(
            "| **{}** ({}) | **{}** | {} | {} | {} | {} | {}% | {}% |\n",
            config.name(),
            if networks.len() == 1 { "one seed".to_owned() } else { format!("{} seeds", networks.len()) },
            of(0),
            of(1),
            of(2),
            of(3),
            of(4),
            within(0.5),
            within(0.9)
        );
        if maps.is_empty() {
            maps = (0..MAPS).map(|i| map(&task, &networks[0], random, i, &drawn[i as usize])).collect::<Result<_>>()?;
        }
    }
    let of = |locate: &dyn Fn(&Event) -> Place| drawn.iter().map(|event| locate(event).distance_km(&event.emitter)).collect();
    text += &row("middle of the receivers, weighted by amplitude", of(&|event| weighted_centroid(&event.heard())));
    text += &row("middle of the receivers that hear it", of(&|event| centroid(&event.heard())));
    text += "\nTwo of the events as the network sees them: receivers with what they hear, the mixture (darker: more likely), its mean (circle) and the emitter (cross).\n\n";
    text.extend(maps.iter().map(|(name, _)| format!("![{name}]({name})\n")));
    Ok(Section { text, figures: maps })
}

fn map(task: &Localisation, network: &Localiser, random: Random, number: u64, event: &Event) -> Result<(String, String)> {
    let mixture = task.mixture(network, random, number)?;
    Ok((format!("map-{}.svg", number + 1), map_svg(task.middle(), &event.heard(), &mixture, Some(&event.emitter))))
}
