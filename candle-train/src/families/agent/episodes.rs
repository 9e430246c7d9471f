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
//! file is not read. Episodes stay in memory.

use crate::identity::hex;
use candle_core::{DType, Tensor};
use candle_models::agent::{AgentConfig, Component, Observation};
use candle_models::random::Random;
use candle_models::signature::{TensorSpec, Values};
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the files of a folder are called.
const EXTENSION: &str = "safetensors";

/// The values of an input, one frame behind the other.
#[derive(Debug, Clone)]
pub enum Column {
    /// Floats of so many a frame.
    Floats(Vec<f32>, usize),
    /// Indices of so many a frame.
    Indices(Vec<u32>, usize),
}

/// What one file holds.
#[derive(Debug)]
pub struct Recording {
    /// The file's name.
    pub name: String,
    /// SHA-256 of its values, in hexadecimal.
    pub hash: String,
    /// The inputs in the description's order.
    inputs: Vec<Column>,
    /// `[frames, columns]`.
    action: Vec<u32>,
    /// Those of all Gaussian components side by side, `[frames, numbers]`.
    numbers: Vec<f32>,
    /// Frames of each episode.
    episodes: Vec<Range<usize>>,
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
        let tensors = NamedTensors::load_safetensors(path)?;
        let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        Self::new(&name, &tensors, config).map_err(|e| Error::file(path, e))
    }

    /// The same from tensors in memory, under a name.
    ///
    /// # Errors
    /// As [`Self::open`], without the file.
    pub fn new(name: &str, tensors: &NamedTensors, config: &AgentConfig) -> Result<Self> {
        let classes = (config.columns() > 0).then(|| TensorSpec::u32("action", &[config.columns()]).below(&config.classes()));
        let gaussian: Vec<TensorSpec> = config.action.iter().filter_map(Component::recorded).collect();
        let actions: Vec<&TensorSpec> = classes.iter().chain(&gaussian).collect();
        let Some(TensorSpec { name: first, shape, .. }) = actions.first() else {
            return Err(Error::config("action", "expected at least one component"));
        };
        let leading = match tensors.get(first)?.dims() {
            dims @ ([_, _] | [_, _, _]) => dims[..dims.len() - 1].to_vec(),
            dims => return Err(Error::tensor(first, format!("[frames, {}]", shape[0]), format!("{dims:?}"))),
        };
        if leading.contains(&0) {
            return Err(Error::tensor(first, "at least one frame", format!("{leading:?}")));
        }
        let read = |spec: &TensorSpec| column(tensors.get(&spec.name)?, spec, &leading);
        let inputs = config.observation.iter().map(|input| read(&input.spec())).collect::<Result<Vec<_>>>()?;
        let (mut action, mut numbers) = (Vec::new(), Vec::new());
        for spec in &actions {
            match read(spec)? {
                Column::Indices(values, _) => action = values,
                Column::Floats(values, width) => numbers.push((values, width)),
            }
        }
        let numbers = joined(&numbers, leading.iter().product());
        let episodes = episodes(tensors, &leading)?;
        let known: BTreeSet<&str> = config.observation.iter().map(Observation::name).chain(["reset"]).collect();
        let is_known = |name: &str| known.contains(name) || actions.iter().any(|spec| spec.name == name);
        let unused = tensors.iter().map(|(name, _)| name).filter(|name| !is_known(name)).map(str::to_owned).collect();
        let hash = hash(&inputs, (&action, &numbers), &episodes);
        Ok(Self { name: name.to_owned(), hash, inputs, action, numbers, episodes, unused })
    }

    /// Frames of all its episodes.
    pub fn frames(&self) -> usize {
        self.episodes.iter().map(ExactSizeIterator::len).sum()
    }
}

/// A tensor of the shape `[leading..., ...]` with values that its spec allows.
fn column(tensor: &Tensor, spec: &TensorSpec, leading: &[usize]) -> Result<Column> {
    let expected: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
    let wants = if matches!(spec.values(), Values::Floats { .. }) { "floats" } else { "integers" };
    if tensor.dims() != expected || tensor.dtype() != spec.dtype() {
        let kind = if tensor.dtype() == DType::F32 { "floats" } else { "integers" };
        return Err(Error::tensor(&spec.name, format!("{wants} {expected:?}"), format!("{kind} {:?}", tensor.dims())));
    }
    let flat = tensor.flatten_all()?;
    Ok(match spec.values() {
        Values::Floats { .. } => {
            let values = flat.to_vec1()?;
            spec.check_f32(&values)?;
            Column::Floats(values, spec.width())
        }
        Values::Indices { .. } => {
            let values = flat.to_vec1()?;
            spec.check_u32(&values)?;
            Column::Indices(values, spec.width())
        }
    })
}

/// Matrices of so many rows, each with its width, as one.
fn joined(parts: &[(Vec<f32>, usize)], rows: usize) -> Vec<f32> {
    (0..rows).flat_map(|row| parts.iter().flat_map(move |(values, width)| &values[row * width..][..*width])).copied().collect()
}

/// Where episodes begin: at the first frame of every sequence, and where `reset` says so.
fn episodes(tensors: &NamedTensors, leading: &[usize]) -> Result<Vec<Range<usize>>> {
    let frames: usize = leading.iter().product();
    let steps = leading[leading.len() - 1];
    let mut begins: Vec<bool> = (0..frames).map(|frame| frame % steps == 0).collect();
    if tensors.contains("reset") {
        // A column of one value behind the frames.
        let flags = TensorSpec::u32("reset", &[]).below(&[2]);
        if let Column::Indices(flags, _) = column(tensors.get("reset")?, &flags, leading)? {
            begins.iter_mut().zip(flags).for_each(|(begins, flag)| *begins |= flag == 1);
        }
    }
    let starts: Vec<usize> = (0..frames).filter(|frame| begins[*frame]).chain([frames]).collect();
    Ok(starts.windows(2).map(|pair| pair[0]..pair[1]).collect())
}

fn hash(inputs: &[Column], (action, numbers): (&[u32], &[f32]), episodes: &[Range<usize>]) -> String {
    let mut hash = Sha256::new();
    for input in inputs {
        match input {
            Column::Floats(values, _) => hash.update(bytemuck::cast_slice(values)),
            Column::Indices(values, _) => hash.update(bytemuck::cast_slice(values)),
        }
    }
    hash.update(bytemuck::cast_slice(action));
    hash.update(bytemuck::cast_slice(numbers));
    episodes.iter().for_each(|episode| hash.update((episode.start as u64).to_le_bytes()));
    hex(hash.finalize())
}

/// The files of a folder in the order of their names, or one file.
///
/// # Errors
/// If there are none, or one cannot be read.
pub fn open(path: &Path, config: &AgentConfig) -> Result<Vec<Arc<Recording>>> {
    let mut files: Vec<PathBuf> = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(Error::io(path))?;
        files = entries.map(|entry| Ok(entry.map_err(Error::io(path))?.path())).collect::<Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == EXTENSION));
        files.sort();
    }
    if files.is_empty() {
        return Err(Error::file(path, format!("expected files *.{EXTENSION}, found none")));
    }
    files.iter().map(|file| Ok(Arc::new(Recording::open(file, config)?))).collect()
}

/// Where rows are written: n rows each.
pub struct Rows<'a> {
    /// Of the inputs of floats, in the description's order.
    pub floats: Vec<&'a mut [f32]>,
    /// Of the inputs of indices, in the description's order.
    pub indices: Vec<&'a mut [u32]>,
    /// The action before, `[n, columns]`.
    pub previous: &'a mut [u32],
    /// The action that was taken, `[n, columns]`.
    pub action: &'a mut [u32],
    /// Its Gaussian numbers, `[n, numbers]`.
    pub numbers: &'a mut [f32],
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

    /// The actions of an episode, row by row: classes and Gaussian numbers.
    pub fn actions(&self, episode: usize) -> impl Iterator<Item = (&[u32], &[f32])> {
        let (file, frames) = &self.all[episode];
        let (recording, columns, numbers) = (&*self.recordings[*file], self.neutral.len(), self.numbers);
        let row = move |t: usize| (&recording.action[t * columns..][..columns], &recording.numbers[t * numbers..][..numbers]);
        frames.clone().map(row)
    }

    /// The action before the first frame of an episode.
    pub fn neutral(&self) -> &[u32] {
        &self.neutral
    }

    /// Writes rows of an episode behind `at` rows that are there.
    pub fn read(&self, episode: usize, rows: Range<usize>, at: usize, to: &mut Rows) {
        let (file, frames) = &self.all[episode];
        let (recording, columns) = (&*self.recordings[*file], self.neutral.len());
        let (from, n) = (frames.start + rows.start, rows.len());
        let (mut floats, mut indices) = (to.floats.iter_mut(), to.indices.iter_mut());
        for input in &recording.inputs {
            match input {
                Column::Floats(values, width) => floats.next().into_iter().for_each(|to| copy(values, from, to, at, n * width, *width)),
                Column::Indices(values, width) => indices.next().into_iter().for_each(|to| copy(values, from, to, at, n * width, *width)),
            }
        }
        copy(&recording.action, from, to.action, at, n * columns, columns);
        copy(&recording.numbers, from, to.numbers, at, n * self.numbers, self.numbers);
        // Row r has the action of row r - 1.
        let first = usize::from(rows.start == 0);
        if first == 1 {
            to.previous[at * columns..(at + 1) * columns].copy_from_slice(&self.neutral);
        }
        copy(&recording.action, from + first - 1, to.previous, at + first, (n - first) * columns, columns);
    }
}

fn copy<T: Copy>(values: &[T], from: usize, to: &mut [T], at: usize, count: usize, width: usize) {
    to[at * width..at * width + count].copy_from_slice(&values[from * width..from * width + count]);
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
    let episodes = |file: usize| recordings[file].episodes.iter().map(move |frames| (file, frames.clone())).collect::<Vec<Episode>>();
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

/// The root mean square of each input of floats and of each Gaussian component.
pub fn magnitudes<'a>(recordings: &'a [Arc<Recording>], config: &'a AgentConfig) -> Vec<(&'a str, f64)> {
    let input = |(i, input): (usize, &'a Observation)| {
        let floats = |recording: &'a Arc<Recording>| match &recording.inputs[i] {
            Column::Floats(values, _) => &values[..],
            Column::Indices(..) => &[],
        };
        (input.spec().dtype() == DType::F32).then(|| (input.name(), root_mean_square(recordings.iter().flat_map(floats))))
    };
    let (mut next, all) = (0, config.numbers());
    let component = |component: &'a Component| {
        let n = component.numbers();
        next += n;
        let columns = next - n..next;
        let rows = recordings.iter().filter(|_| n > 0).flat_map(|recording| recording.numbers.chunks(all));
        (n > 0).then(|| (component.name(), root_mean_square(rows.flat_map(|row| &row[columns.clone()]))))
    };
    let inputs: Vec<_> = config.observation.iter().enumerate().filter_map(input).collect();
    inputs.into_iter().chain(config.action.iter().filter_map(component)).collect()
}

fn root_mean_square<'a>(values: impl Iterator<Item = &'a f32>) -> f64 {
    let (squares, count) = values.fold((0.0, 0u64), |(sum, count), x| (sum + f64::from(*x).powi(2), count + 1));
    (squares / count.max(1) as f64).sqrt()
}
