//! What a beam controller is run on: channels, or what was measured on them.

use crate::families::beam::channel::noise_deviation;
use crate::families::beam::{BeamConfig, Channels};
use crate::random::Random;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::DType;
use std::ops::Range;
use std::path::Path;

/// What a file may hold beside channels or measurements, and what a run gives for them: what it gives can be run again.
const KNOWN: [&str; 10] = ["channels", "measurements", "beams", "start", "snr_db", "receive", "transmit", "index", "gain_db", "satisfied"];
/// How far the norm of a recorded beam may be from one.
const ROUNDING: f32 = 1e-3;

/// Where measurements come from.
enum Source {
    /// Channel matrices `[B, S, N_RX, N_TX, 2]` of so many steps.
    Matrices(usize, Vec<f32>),
    /// The channels of a stream.
    Drawn(Random),
    /// Measurements `[B, T, 2]`, and the beams `[B, T, 2 N_RX]` that they were made with where they are known.
    Recorded(Vec<f32>, Option<Vec<f32>>),
}

/// Sweeps of a codebook, one for each of so many users.
pub struct Sweeps {
    pub count: usize,
    /// Measurements of a sweep.
    pub measurements: usize,
    /// The beam of the codebook that each begins with.
    pub start: Vec<u32>,
    /// Signal-to-noise ratio of each.
    pub snr_db: Vec<f32>,
    source: Source,
}

impl Sweeps {
    /// Over channels like those that the model was trained on.
    pub fn drawn(config: &BeamConfig, count: usize, random: Random, snr_db: f32) -> Self {
        let (start, source) = (starts(config, count, random), Source::Drawn(random.stream("channels")));
        Self { count, measurements: config.measurements, start, snr_db: vec![snr_db; count], source }
    }

    /// Of a file's tensors: `channels` or `measurements`, and what belongs to them.
    pub fn of(tensors: &NamedTensors, config: &BeamConfig, random: Random, snr_db: f32) -> Result<Self> {
        if let Some((name, _)) = tensors.iter().find(|(name, _)| !KNOWN.contains(name)) {
            return Err(Error::tensor(name, format!("one of {}", KNOWN.join(", ")), "a tensor of another name"));
        }
        let (count, measurements, source) = match (tensors.contains("channels"), tensors.contains("measurements")) {
            (true, false) => channels(tensors, config)?,
            (false, true) => recorded(tensors, config)?,
            (true, true) => return Err(Error::tensor("measurements", "channels, or measurements made on them", "both")),
            (false, false) => {
                let names: Vec<&str> = tensors.iter().map(|(name, _)| name).collect();
                return Err(Error::tensor(
                    "channels",
                    "to be present, or measurements, or features",
                    format!("only [{}]", names.join(", ")),
                ));
            }
        };
        let start = match (tensors.contains("start"), &source) {
            (true, _) => start(tensors, config, count)?,
            (false, Source::Recorded(..)) => vec![0; count],
            (false, _) => starts(config, count, random),
        };
        let snr_db = match tensors.contains("snr_db") {
            true => floats(tensors, "snr_db", &[Some(count)])?.1,
            false => vec![snr_db; count],
        };
        snr_db.iter().try_for_each(|snr| noise_deviation(*snr).map(drop))?;
        Ok(Self { count, measurements, start, snr_db, source })
    }

    /// The channels of some of the sweeps; nothing where measurements were recorded.
    pub fn channels(&self, rows: &Range<usize>, config: &BeamConfig) -> Result<Option<Channels>> {
        let (receive, transmit) = (&config.channel.receive, &config.channel.transmit);
        match &self.source {
            Source::Matrices(steps, matrices) => {
                let width = matrices.len() / self.count;
                let matrices = &matrices[rows.start * width..rows.end * width];
                Channels::from_matrices(rows.len(), *steps, receive, transmit, matrices).map(Some)
            }
            Source::Drawn(random) => {
                Channels::generate(&config.channel, *random, rows.start as u64, rows.len(), self.measurements).map(Some)
            }
            Source::Recorded(..) => Ok(None),
        }
    }

    /// Whether channels are drawn, so that their paths are known.
    pub fn has_paths(&self) -> bool {
        matches!(self.source, Source::Drawn(_))
    }

    /// The numbers of the beams that the measurements of a sweep are sent with.
    pub fn sent(&self, sweep: usize, config: &BeamConfig) -> Vec<usize> {
        (0..self.measurements).map(|step| config.sent(self.start[sweep], step)).collect()
    }

    /// What was measured, where that was recorded.
    pub fn measured(&self, sweep: usize, step: usize) -> Option<[f32; 2]> {
        let Source::Recorded(measurements, _) = &self.source else { return None };
        let at = 2 * (sweep * self.measurements + step);
        Some([measurements[at], measurements[at + 1]])
    }

    /// The beam that it was measured with, where that was recorded.
    pub fn beam(&self, sweep: usize, step: usize) -> Option<&[f32]> {
        let Source::Recorded(_, Some(beams)) = &self.source else { return None };
        let width = beams.len() / (self.count * self.measurements);
        Some(&beams[(sweep * self.measurements + step) * width..][..width])
    }
}

/// The beams that sweeps begin with, as in training.
fn starts(config: &BeamConfig, count: usize, random: Random) -> Vec<u32> {
    (0..count as u64).map(|i| config.start(random, i)).collect()
}

fn channels(tensors: &NamedTensors, config: &BeamConfig) -> Result<(usize, usize, Source)> {
    let [receive, transmit] = [&config.channel.receive, &config.channel.transmit].map(|array| Some(array.elements()));
    let (dims, matrices) = floats(tensors, "channels", &[None, None, receive, transmit, Some(2)])?;
    let (steps, measurements) = (dims[1], config.measurements);
    if steps != 1 && steps < measurements {
        return Err(Error::tensor("channels", format!("1 step or {measurements} of them"), format!("{steps} steps")));
    }
    Ok((dims[0], measurements, Source::Matrices(steps, matrices)))
}

fn recorded(tensors: &NamedTensors, config: &BeamConfig) -> Result<(usize, usize, Source)> {
    let (dims, measurements) = floats(tensors, "measurements", &[None, None, Some(2)])?;
    let (count, steps, most) = (dims[0], dims[1], config.measurements);
    if steps > most {
        return Err(Error::tensor("measurements", format!("at most {most} of a sweep"), steps));
    }
    if !tensors.contains("beams") {
        return Ok((count, steps, Source::Recorded(measurements, None)));
    }
    let width = config.receive_width();
    let (_, beams) = floats(tensors, "beams", &[Some(count), Some(steps), Some(width)])?;
    for (i, beam) in beams.chunks_exact(width).enumerate() {
        let norm = beam.iter().map(|x| x * x).sum::<f32>().sqrt();
        if (norm - 1.0).abs() > ROUNDING {
            return Err(Error::tensor("beams", "norms of 1", format!("{norm} in sweep {}, step {}", i / steps, i % steps)));
        }
    }
    Ok((count, steps, Source::Recorded(measurements, Some(beams))))
}

fn start(tensors: &NamedTensors, config: &BeamConfig, count: usize) -> Result<Vec<u32>> {
    let tensor = tensors.get("start")?;
    if tensor.dtype() != DType::U32 || tensor.dims() != [count] {
        return Err(Error::tensor("start", format!("U32 [{count}]"), format!("{:?} {:?}", tensor.dtype(), tensor.dims())));
    }
    let (start, beams) = (tensor.to_vec1::<u32>()?, config.codebook.count());
    match start.iter().position(|start| *start as usize >= beams) {
        Some(i) => Err(Error::tensor("start", format!("beams of a codebook of {beams}"), format!("{} at {i}", start[i]))),
        None => Ok(start),
    }
}

/// A tensor of floats of that shape, in which nothing stands for any number from 1 on. Reading has found them to be finite.
fn floats(tensors: &NamedTensors, name: &str, shape: &[Option<usize>]) -> Result<(Vec<usize>, Vec<f32>)> {
    let tensor = tensors.get(name)?;
    let dims = tensor.dims().to_vec();
    let fits = dims.len() == shape.len() && dims.iter().zip(shape).all(|(n, expected)| expected.map_or(*n > 0, |m| *n == m));
    if !fits || tensor.dtype() != DType::F32 {
        let shape: Vec<String> = shape.iter().map(|n| n.map_or("1 or more".to_owned(), |n| n.to_string())).collect();
        return Err(Error::tensor(name, format!("F32 [{}]", shape.join(", ")), format!("{:?} {dims:?}", tensor.dtype())));
    }
    Ok((dims, tensor.flatten_all()?.to_vec1()?))
}

/// An error in a sweep of a file.
pub fn at(path: &Path, sweep: usize) -> impl Fn(Error) -> Error {
    move |e| Error::file(path, format!("episode {sweep}: {e}"))
}
