//! What tests measure.

use crate::families;
use crate::family;
use crate::network::Network;
use crate::trainee::Trainee;
use clap::ArgMatches;
use std::path::Path;
use std::sync::Arc;

/// The usual network of a kind, with random weights below `directory`.
pub(crate) fn network(kind: &str, directory: &Path) -> Network {
    Network::random(&families::shipped(), kind, &ArgMatches::default(), directory).unwrap()
}

/// Its training.
pub(crate) fn trainee(kind: &str) -> Arc<dyn Trainee> {
    family::usual_trainee(&families::shipped(), kind, &ArgMatches::default()).unwrap()
}

/// The training of a small model of every family that trains, of the first one that `candle-train` makes data for.
pub(crate) fn small_trainees() -> Vec<Arc<dyn Trainee>> {
    let small = |family: &'static dyn family::BenchFamily| {
        let examples = family.examples().unwrap();
        let mut trainees = examples.iter().filter_map(|manifest| family.trainee(manifest).unwrap());
        trainees.find(|trainee| trainee.program(&trainee.case(2, 4, 1)).is_ok())
    };
    families::shipped().iter().filter_map(small).collect()
}

/// Small networks of every architecture of every family, with random weights below `directory`.
pub(crate) fn examples(directory: &Path) -> Vec<Network> {
    let mut networks = Vec::new();
    for family in families::shipped().iter() {
        for (i, manifest) in family.examples().unwrap().iter().enumerate() {
            networks.push(Network::untrained(family, manifest, &directory.join(format!("{}-{i}", family.name()))).unwrap());
        }
    }
    networks
}
