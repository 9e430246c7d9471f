//! Recorded episodes: safetensors files with the inputs of an agent's description and the actions that were taken.
//!
//! | tensor | dtype | shape |
//! |---|---|---|
//! | each input, by its name | floats, or integers for indices | `[T, ...]` |
//! | `action`, where components have classes | integers | `[T, columns]` |
//! | each Gaussian component, by its name | floats | `[T, columns]` |
//! | `reset`, may be left out | integers 0 and 1 | `[T]` |
//!
//! Observation t is what was seen when action t was chosen. Where `reset` is 1 another episode begins, and the first frame always begins one. All
//! tensors of a file may have an axis of sequences before that of frames, `[N, T, ...]`: none of them goes on in another. What else lies in a
//! file is not read.
//!
//! Episodes stay on the disk ([`Dataset`]). They are read once before a run begins, every value checked and hashed: the hash is a part of what the
//! run is, so that it is not continued with other recordings. From then on the frames of the batches under way are all that is in memory.

use crate::dataset::{Contents, Dataset};
use candle_core::DType;
use candle_models::agent::{AgentConfig, Component, Observation};
use candle_models::random::Random;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// What one file holds.
#[derive(Debug)]
pub struct Recording {
    /// The file's name.
    pub name: String,
    /// SHA-256 of its values, in hexadecimal.
    pub hash: String,
    /// All files, and the place of this one.
    data: Arc<Dataset>,
    part: usize,
    /// The mean squares of its tensors.
    mean_squares: Vec<f64>,
    /// Tensors that the description does not name.
    pub unused: Vec<String>,
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is damaged, a tensor is missing or has another dtype or shape, or a value is none that the description allows: with the file, the tensor
    /// and the row, which is the frame, counted on through the sequences.
    pub fn open(path: &Path, config: &AgentConfig) -> Result<Self> {
        Self::only(Dataset::open(path, &specs(config))?)
    }

    /// The same from tensors in memory, under a name.
    ///
    /// # Errors
    /// As [`Self::open`], without the file.
    pub fn new(name: &str, tensors: &NamedTensors, config: &AgentConfig) -> Result<Self> {
        Self::only(Dataset::new(name, tensors, &specs(config))?)
    }

    fn only(data: Dataset) -> Result<Self> {
        let path = data.parts().first().map(|part| part.name()).unwrap_or_default();
        Self::all(data)?.pop().ok_or_else(|| Error::file(path, "expected one file, found none"))
    }

    fn all(data: Dataset) -> Result<Vec<Self>> {
        let (contents, data) = (data.contents()?, Arc::new(data));
        let of = |(part, Contents { hash, mean_squares }): (usize, Contents)| {
            let file = &data.parts()[part];
            Self { name: file.name(), hash, unused: file.unused().to_vec(), data: data.clone(), part, mean_squares }
        };
        Ok(contents.into_iter().enumerate().map(of).collect())
    }

    fn episodes(&self) -> &[Range<usize>] {
        self.data.parts()[self.part].episodes()
    }

    /// Frames of all its episodes.
    pub fn frames(&self) -> usize {
        self.data.parts()[self.part].rows()
    }
}

/// The tensors of a file in the description's order: the classes of the action, if it has some, its Gaussian components, and the inputs.
fn specs(config: &AgentConfig) -> Vec<TensorSpec> {
    let classes = (config.columns() > 0).then(|| TensorSpec::u32("action", &[config.columns()]).below(&config.classes()));
    let numbers = config.action.iter().filter_map(Component::recorded);
    classes.into_iter().chain(numbers).chain(config.observation.iter().map(Observation::spec)).collect()
}

/// The place of the classes among them.
const ACTION: usize = 0;

/// The files of a folder in the order of their names, or one file.
///
/// # Errors
/// If there are none, or one cannot be read.
pub fn open(path: &Path, config: &AgentConfig) -> Result<Vec<Arc<Recording>>> {
    Ok(Recording::all(Dataset::open(path, &specs(config))?)?.into_iter().map(Arc::new).collect())
}

/// Where rows are written: n rows each.
pub struct Rows<'a> {
    /// Of the Gaussian components and of the inputs of floats, in the description's order.
    pub floats: Vec<&'a mut [f32]>,
    /// Of the inputs of indices, in the description's order.
    pub indices: Vec<&'a mut [u32]>,
    /// The classes that were taken, `[n, columns]`, if there are some.
    pub action: Option<&'a mut [u32]>,
    /// The classes before, `[n, columns]`, if they are wanted.
    pub previous: Option<&'a mut [u32]>,
}

/// One episode of a file: the file's place in [`Episodes`], and the frames in the file.
pub type Episode = (usize, Range<usize>);

/// Some episodes, to train or to measure on.
#[derive(Debug, Clone)]
pub struct Episodes {
    recordings: Vec<Arc<Recording>>,
    all: Vec<Episode>,
    /// The action before the first frame.
    neutral: Vec<u32>,
    /// Gaussian numbers of an action.
    numbers: usize,
}

impl Episodes {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Frames of each.
    pub fn lengths(&self) -> Vec<usize> {
        self.all.iter().map(|(_, frames)| frames.len()).collect()
    }

    /// Frames of all.
    pub fn frames(&self) -> usize {
        self.all.iter().map(|(_, frames)| frames.len()).sum()
    }

    /// Which they are: file and frames of each, and the hash of the file's values.
    pub fn list(&self) -> Vec<Listed> {
        let listed = |(file, frames): &Episode| {
            let Recording { name, hash, .. } = &*self.recordings[*file];
            Listed { file: name.clone(), hash: hash.clone(), frames: frames.clone() }
        };
        self.all.iter().map(listed).collect()
    }

    /// The actions of an episode: classes `[frames, columns]` and Gaussian numbers `[frames, numbers]`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn actions(&self, episode: usize) -> Result<(Vec<u32>, Vec<f32>)> {
        let (file, frames) = &self.all[episode];
        let Recording { data, part, .. } = &*self.recordings[*file];
        let mut classes = vec![0; frames.len() * self.neutral.len()];
        if !classes.is_empty() {
            data.read((*part, ACTION), frames.clone(), &mut classes)?;
        }
        let (mut numbers, mut start) = (vec![0.0; frames.len() * self.numbers], 0);
        for (tensor, spec) in data.specs().iter().enumerate().skip(self.classes()) {
            if start == self.numbers {
                break;
            }
            let mut values = vec![0.0; frames.len() * spec.width()];
            data.read((*part, tensor), frames.clone(), &mut values)?;
            for (row, values) in numbers.chunks_mut(self.numbers).zip(values.chunks(spec.width())) {
                row[start..start + values.len()].copy_from_slice(values);
            }
            start += spec.width();
        }
        Ok((classes, numbers))
    }

    /// Gaussian numbers of an action.
    pub fn numbers(&self) -> usize {
        self.numbers
    }

    /// Tensors of classes: one or none, before all others.
    fn classes(&self) -> usize {
        usize::from(!self.neutral.is_empty())
    }

    /// The action before the first frame of an episode.
    pub fn neutral(&self) -> &[u32] {
        &self.neutral
    }

    /// Writes rows of an episode behind `at` rows that are there.
    ///
    /// # Errors
    /// If the file has changed since it was opened, or cannot be read.
    pub fn read(&self, episode: usize, rows: Range<usize>, at: usize, to: &mut Rows) -> Result<()> {
        let (file, frames) = &self.all[episode];
        let (Recording { data, part, .. }, columns) = (&*self.recordings[*file], self.neutral.len());
        let (from, n) = (frames.start + rows.start, rows.len());
        let (mut floats, mut indices) = (to.floats.iter_mut(), to.indices.iter_mut());
        for (tensor, spec) in data.specs().iter().enumerate().skip(self.classes()) {
            let (place, values) = ((*part, tensor), at * spec.width()..(at + n) * spec.width());
            match spec.dtype() {
                DType::F32 => floats.next().map_or(Ok(()), |to| data.read(place, from..from + n, &mut to[values]))?,
                _ => indices.next().map_or(Ok(()), |to| data.read(place, from..from + n, &mut to[values]))?,
            }
        }
        if let Some(action) = &mut to.action {
            data.read((*part, ACTION), from..from + n, &mut action[at * columns..(at + n) * columns])?;
        }
        if let Some(previous) = &mut to.previous {
            // Row r has the action of row r - 1.
            let first = usize::from(rows.start == 0);
            if first == 1 {
                previous[at * columns..(at + 1) * columns].copy_from_slice(&self.neutral);
            }
            let behind = &mut previous[(at + first) * columns..(at + n) * columns];
            data.read((*part, ACTION), from + first - 1..from + n - 1, behind)?;
        }
        Ok(())
    }
}

/// An episode as a run notes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The file's name.
    pub file: String,
    /// SHA-256 of the file's values.
    pub hash: String,
    /// Its frames in the file.
    pub frames: Range<usize>,
}

/// Divides episodes by file, those of a single file one by one: to train on, and held out to measure on, about a share of them, at least
/// one where the share is not 0 and there are two.
pub fn split(recordings: &[Arc<Recording>], config: &AgentConfig, share: f64, random: Random) -> [Episodes; 2] {
    let episodes = |file: usize| recordings[file].episodes().iter().map(move |frames| (file, frames.clone())).collect::<Vec<Episode>>();
    let units: Vec<Vec<Episode>> = match recordings {
        [_] => episodes(0).into_iter().map(|episode| vec![episode]).collect(),
        _ => (0..recordings.len()).map(episodes).collect(),
    };
    let most = units.len().saturating_sub(1);
    let held = if share > 0.0 { ((share * units.len() as f64).round() as usize).max(1).min(most) } else { 0 };
    let held: BTreeSet<u32> = random.permutation(units.len()).into_iter().take(held).collect();
    [false, true].map(|wanted| {
        let all = units.iter().enumerate().filter(|(unit, _)| held.contains(&(*unit as u32)) == wanted);
        let all = all.flat_map(|(_, unit)| unit.clone()).collect();
        Episodes { recordings: recordings.to_vec(), all, neutral: config.neutral(), numbers: config.numbers() }
    })
}

/// The root mean square of each Gaussian component and of each input of floats.
pub fn magnitudes(recordings: &[Arc<Recording>], config: &AgentConfig) -> Vec<(String, f64)> {
    let frames: usize = recordings.iter().map(|recording| recording.frames()).sum();
    let of = |(i, spec): (usize, TensorSpec)| {
        // Each file's mean by its frames.
        let squares: f64 = recordings.iter().map(|recording| recording.mean_squares[i] * recording.frames() as f64).sum();
        (spec.dtype() == DType::F32).then(|| (spec.name, (squares / frames.max(1) as f64).sqrt()))
    };
    specs(config).into_iter().enumerate().filter_map(of).collect()
}
