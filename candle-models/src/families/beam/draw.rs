//! Drawing the paths of one channel. Every number has its place in the channel's streams, so that an option that needs more of
//! them does not move the others.

use super::array::{direction_cosines, phasor};
use super::cdl::RAY_OFFSETS;
use super::setting::{Cdl, ChannelConfig, ChannelModel, Geometric, Mobility};
use crate::random::Random;

// The streams of a channel.
const GAINS: u64 = 0;
const ANGLES: u64 = 1;
const MOTION: u64 = 2;
const COUPLING: u64 = 3;

/// A path; angles in half turns (1 is 180 degrees), as (azimuth, elevation).
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub(super) gain: [f64; 2],
    departure: [f64; 2],
    arrival: [f64; 2],
    /// Doppler shift in half turns per step, change of the two azimuths per step.
    shift: f64,
    drift: [f64; 2],
}

impl Path {
    fn new(gain: [f64; 2], departure: [f64; 2], arrival: [f64; 2]) -> Self {
        Self { gain, departure, arrival, shift: 0., drift: [0.; 2] }
    }

    /// The path some steps later.
    pub(super) fn after(mut self, steps: usize) -> Self {
        if steps > 0 {
            let steps = steps as f64;
            let ([re, im], [cos, sin]) = (self.gain, phasor(self.shift * steps));
            self.gain = [re * cos - im * sin, re * sin + im * cos];
            self.departure[0] += self.drift[0] * steps;
            self.arrival[0] += self.drift[1] * steps;
        }
        self
    }

    /// Direction cosines at the transmit array.
    pub(super) fn departure(&self) -> (f64, f64) {
        direction_cosines(self.departure[0], self.departure[1])
    }

    /// Direction cosines at the receive array.
    pub(super) fn arrival(&self) -> (f64, f64) {
        direction_cosines(self.arrival[0], self.arrival[1])
    }
}

/// A configuration, ready to draw from.
pub(super) struct Source<'a> {
    model: Model<'a>,
    mobility: Option<Mobility>,
}

enum Model<'a> {
    Geometric {
        geometric: &'a Geometric,
        /// Standard deviation of the two parts of a gain, and the amplitude of a first path that has a fixed one.
        deviation: f64,
        first: Option<f64>,
    },
    Cdl {
        cdl: &'a Cdl,
        clusters: Vec<Cluster>,
    },
}

/// A cluster with the amplitude of each of its rays; angles in half turns: azimuths of departure and arrival, elevations.
struct Cluster {
    amplitude: f64,
    angles: [f64; 4],
    rays: usize,
}

impl<'a> Source<'a> {
    pub(super) fn new(config: &'a ChannelConfig) -> Self {
        let model = match &config.model {
            ChannelModel::Geometric(geometric) => {
                let (deviation, first) = amplitudes(geometric);
                Model::Geometric { geometric, deviation, first }
            }
            ChannelModel::Cdl(cdl) => Model::Cdl { cdl, clusters: clusters(cdl) },
        };
        Self { model, mobility: config.mobility }
    }

    /// Paths of every channel.
    pub(super) fn paths(&self) -> usize {
        match &self.model {
            Model::Geometric { geometric, .. } => geometric.paths,
            Model::Cdl { clusters, .. } => clusters.iter().map(|c| c.rays).sum(),
        }
    }

    /// Appends the paths of the channel whose stream is `random`.
    pub(super) fn draw(&self, random: Random, paths: &mut Vec<Path>) {
        match &self.model {
            Model::Geometric { geometric, deviation, first } => draw_geometric(geometric, *deviation, *first, random, paths),
            Model::Cdl { cdl, clusters } => draw_cdl(cdl, clusters, random, paths),
        }
        if let Some(mobility) = &self.mobility {
            set_moving(mobility, random.at(MOTION), paths);
        }
    }
}

/// Uniform to either side of zero, up to `range`.
fn to_either_side(random: Random, index: u64, range: f64) -> f64 {
    (2. * f64::from(random.uniform(index)) - 1.) * range
}

fn half_turns(degrees: f32) -> f64 {
    f64::from(degrees) / 180.
}

/// The total power is L, or 1 if normalised; with a Rician factor K the first path has K/(K + 1) of it and the others share
/// the rest.
fn amplitudes(geometric: &Geometric) -> (f64, Option<f64>) {
    let paths = geometric.paths as f64;
    let total = if geometric.normalise { 1. } else { paths };
    match geometric.rician_db {
        None => ((total / paths / 2.).sqrt(), None),
        Some(_) if geometric.paths == 1 => (0., Some(total.sqrt())),
        Some(db) => {
            let k = 10f64.powf(f64::from(db) / 10.);
            ((total / (k + 1.) / (paths - 1.) / 2.).sqrt(), Some((total * k / (k + 1.)).sqrt()))
        }
    }
}

fn draw_geometric(geometric: &Geometric, deviation: f64, first: Option<f64>, random: Random, paths: &mut Vec<Path>) {
    let (gains, angles) = (random.at(GAINS), random.at(ANGLES));
    let (azimuth, elevation) = (half_turns(geometric.azimuth), half_turns(geometric.elevation));
    for l in 0..geometric.paths as u64 {
        let [re, im] = [0, 1].map(|part| f64::from(gains.normal(2 * l + part)));
        let scale = match first {
            // The phase of a complex normal number is uniform. It is zero with a probability of 2^-46 at most.
            Some(amplitude) if l == 0 => amplitude / (re * re + im * im).sqrt().max(f64::MIN_POSITIVE),
            _ => deviation,
        };
        let angle = |part: u64, range: f64| to_either_side(angles, 4 * l + part, range);
        let (departure, arrival) = ([angle(0, azimuth), angle(1, elevation)], [angle(2, azimuth), angle(3, elevation)]);
        paths.push(Path::new([re * scale, im * scale], departure, arrival));
    }
}

fn clusters(cdl: &Cdl) -> Vec<Cluster> {
    let power = |db: f32| 10f64.powf(f64::from(db) / 10.);
    let table = cdl.profile.clusters();
    let total: f64 = table.iter().map(|c| power(c[0])).sum();
    let cluster = |(i, &[db, aod, aoa, zod, zoa]): (usize, &[f32; 5])| {
        let rays = if i == 0 && cdl.profile.line_of_sight() { 1 } else { cdl.rays };
        let angles = [half_turns(aod), half_turns(aoa), 0.5 - half_turns(zod), 0.5 - half_turns(zoa)];
        Cluster { amplitude: (power(db) / total / rays as f64).sqrt(), angles, rays }
    };
    table.iter().enumerate().map(cluster).collect()
}

fn draw_cdl(cdl: &Cdl, clusters: &[Cluster], random: Random, paths: &mut Vec<Path>) {
    let (phases, angles) = (random.at(GAINS), random.at(ANGLES));
    let [turn_departure, turn_arrival] = [0, 1].map(|side| to_either_side(angles, side, half_turns(cdl.rotation)));
    // Zenith spreads count upwards, elevations downwards: the offsets are symmetric, so that it makes no difference.
    let spreads = cdl.profile.spreads().map(half_turns);
    for (c, cluster) in (0..).zip(clusters) {
        // Each angle's offsets fall on the rays in an order of their own (TR 38.901, step 8). A single ray has none.
        let order = |angle: u64| random.at(COUPLING).at(4 * c + angle).permutation(cluster.rays);
        let orders = if cluster.rays > 1 { [0, 1, 2, 3].map(order) } else { [const { Vec::new() }; 4] };
        for ray in 0..cluster.rays {
            let offset = |angle: usize| orders[angle].get(ray).map_or(0., |i| spreads[angle] * f64::from(RAY_OFFSETS[*i as usize]));
            let [aod, aoa, eod, eoa] = [0, 1, 2, 3].map(|angle| cluster.angles[angle] + offset(angle));
            let phase = phasor(2. * f64::from(phases.uniform(paths.len() as u64)));
            paths.push(Path::new(phase.map(|x| x * cluster.amplitude), [aod + turn_departure, eod], [aoa + turn_arrival, eoa]));
        }
    }
}

fn set_moving(mobility: &Mobility, random: Random, paths: &mut [Path]) {
    let heading = 2. * f64::from(random.uniform(0));
    for (l, path) in (0..).zip(paths) {
        let [azimuth, elevation] = path.arrival;
        // The cosine of the angle between the movement and the direction that the path comes from.
        let towards = phasor(azimuth - heading)[0] * phasor(elevation)[0];
        path.shift = 2. * f64::from(mobility.doppler) * towards;
        path.drift = [1, 2].map(|end| to_either_side(random, 2 * l + end, half_turns(mobility.drift)));
    }
}
