//! Named tensors as input: whatever the model's signature asks for, one file of sequences.

use super::output::{Column, Output, line};
use super::run::Shard;
use crate::engine::{Histogram, Model, Placement, Runner};
use crate::signature::TensorSpec;
use crate::tensors::NamedTensors;
use crate::{Error, cli};
use anyhow::Result;
use candle_core::DType;
use safetensors::tensor::Dtype;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Sequences that run together: enough to use the caches, and a bound on memory whatever the file asks for.
const ROWS: usize = 64;
/// Values of an output that a printed line shows.
const SHOWN: usize = 6;
/// Says where a sequence begins anew, as in recorded episodes.
const RESET: &str = "reset";
/// Names that are more alike than this, of 1, are taken for one with a slip.
const ALIKE: f64 = 0.6;

/// An input's values, `[sequences, frames, width]`.
enum Values {
    Floats(Vec<f32>),
    Indices(Vec<u32>),
}

struct Sequences {
    sequences: usize,
    frames: usize,
    inputs: Vec<(TensorSpec, Values)>,
    /// Whether a frame begins from the initial state, sequence by sequence.
    resets: Vec<bool>,
}

/// What was done with a file.
pub struct Done {
    /// Frames of all its sequences.
    pub frames: u64,
    /// Tensors that no input names, each with the input that may have been meant.
    pub unread: Vec<String>,
}

/// What is made of an output of floats, by its name, before it is written.
pub type Finish = Box<dyn Fn(&str, &mut [f32])>;

/// Runs a file's sequences, each from the initial state, and anew from there where `reset` is 1.
pub fn run(
    (model, finish): (&Arc<dyn Model>, &Finish),
    (path, tensors, shard): (&Path, NamedTensors, Shard),
    (place, every): (Placement, Option<usize>),
    output: &mut Output,
    times: &Histogram,
) -> Result<Done> {
    let unread = unread(&model.signature().inputs, &tensors);
    let data = Sequences::new(model, path, &tensors)?;
    let column = |spec: &TensorSpec| Column::new(&spec.name, if spec.dtype() == DType::U32 { Dtype::U32 } else { Dtype::F32 }, &spec.shape);
    let columns: Vec<Column> = model.signature().outputs.iter().map(column).collect();
    // Whole blocks, so that a sequence has the same neighbours in its pass however the file is divided.
    let part = shard.part(data.sequences.div_ceil(ROWS));
    let (begin, end) = ((part.start * ROWS).min(data.sequences), (part.end * ROWS).min(data.sequences));
    output.start_tensors(&columns, &[end - begin, data.frames])?;
    let mut runner: Option<(usize, Runner)> = None;
    for first in (begin..end).step_by(ROWS) {
        let rows = ROWS.min(end - first);
        let mut current = match runner.take() {
            Some((n, runner)) if n == rows => runner,
            _ => Runner::on(model.clone(), (rows, 1), &place)?,
        };
        for frame in 0..data.frames {
            let start = Instant::now();
            data.fill(&mut current, first, rows, frame)?;
            let resets: Vec<bool> = (first..first + rows).map(|sequence| data.resets[sequence * data.frames + frame]).collect();
            current.step(&resets).map_err(|e| Error::file(path, format!("frame {frame}: {e}")))?;
            times.record(start.elapsed());
            for row in 0..rows {
                let place = Place { path, sequence: first + row, stored: first + row - begin, frame };
                let shown = every.is_some_and(|every| frame.is_multiple_of(every));
                write_row((model, finish), &current, (row, place), shown, output)?;
            }
        }
        runner = Some((rows, current));
    }
    Ok(Done { frames: ((end - begin) * data.frames) as u64, unread })
}

/// Tensors that no input names.
fn unread(specs: &[TensorSpec], tensors: &NamedTensors) -> Vec<String> {
    let is_input = |name: &str| specs.iter().any(|spec| spec.name == name);
    let missing: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).filter(|name| !tensors.contains(name)).collect();
    let others = tensors.iter().map(|(name, _)| name).filter(|name| !is_input(name) && *name != RESET);
    others.map(|name| closest(name, &missing).map_or(name.to_owned(), |meant| format!("{name} ({meant}?)"))).collect()
}

/// The name that another is a slip of, if there is one.
fn closest<'a>(name: &str, of: &[&'a str]) -> Option<&'a str> {
    let alike = of.iter().map(|other| (strsim::normalized_damerau_levenshtein(name, other), *other));
    alike.filter(|(alike, _)| *alike > ALIKE).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, other)| other)
}

impl Sequences {
    fn new(model: &Arc<dyn Model>, path: &Path, tensors: &NamedTensors) -> Result<Self> {
        let wrong = |e: Error| Error::file(path, e);
        let specs = &model.signature().inputs;
        if let Some(missing) = specs.iter().find(|spec| spec.is_required() && !tensors.contains(&spec.name)) {
            let names: Vec<&str> = tensors.iter().map(|(name, _)| name).collect();
            let others: Vec<&str> = names.iter().filter(|name| specs.iter().all(|spec| spec.name != **name)).copied().collect();
            let slip = closest(&missing.name, &others).map_or(String::new(), |name| format!("; is it {name}?"));
            return Err(wrong(Error::tensor(&missing.name, "to be present", format!("only [{}]{slip}", names.join(", ")))).into());
        }
        // Any that is there tells the shape; if none is, the first is missed.
        let Some(first) = specs.iter().find(|spec| tensors.contains(&spec.name)).or(specs.first()) else {
            return Err(Error::file(path, "the model has no inputs").into());
        };
        let dims = tensors.get(&first.name).map_err(wrong)?.dims().to_vec();
        let leading = dims.len().saturating_sub(first.shape.len());
        if !(1..=2).contains(&leading) {
            let shape = format!("[frames, ...] or [sequences, frames, ...] with {:?} behind", first.shape);
            return Err(wrong(Error::tensor(&first.name, shape, format!("{dims:?}"))).into());
        }
        let inputs = tensors.iter().filter(|(name, _)| specs.iter().any(|spec| spec.name == *name));
        let inputs: NamedTensors = inputs.map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
        let all = inputs.complete(specs, &dims[..leading]).map_err(wrong)?;
        let (sequences, frames) = if leading == 1 { (1, dims[0]) } else { (dims[0], dims[1]) };
        if sequences * frames == 0 {
            return Err(Error::file(path, format!("no frames: {} has the shape {dims:?}", first.name)).into());
        }
        let resets = resets(specs, tensors, &dims[..leading]).map_err(wrong)?;
        let mut inputs = Vec::with_capacity(specs.len());
        for (name, tensor) in all {
            let spec = specs.iter().find(|s| s.name == name).cloned().ok_or_else(|| Error::Input(format!("{name} is not an input")))?;
            let flat = tensor.flatten_all()?;
            // Here and not at the frame in question: nothing is written of a file that cannot be run to its end.
            let values = match spec.dtype() {
                DType::U32 => {
                    let values = flat.to_vec1()?;
                    spec.check_u32(&values).map_err(wrong)?;
                    Values::Indices(values)
                }
                _ => {
                    let values = flat.to_vec1()?;
                    spec.check_f32(&values).map_err(wrong)?;
                    Values::Floats(values)
                }
            };
            inputs.push((spec, values));
        }
        Ok(Self { sequences, frames, inputs, resets })
    }

    /// Copies one frame of `rows` sequences.
    fn fill(&self, runner: &mut Runner, first: usize, rows: usize, frame: usize) -> Result<()> {
        for (spec, values) in &self.inputs {
            let width = spec.width();
            let from = |row: usize| ((first + row) * self.frames + frame) * width;
            match values {
                Values::Floats(values) => {
                    for row in 0..rows {
                        runner.floats_mut(&spec.name, row)?.copy_from_slice(&values[from(row)..][..width]);
                    }
                }
                Values::Indices(values) => {
                    for row in 0..rows {
                        runner.indices_mut(&spec.name, row)?.copy_from_slice(&values[from(row)..][..width]);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Where sequences of the shape `leading` begin from the initial state: at their first frame, and where `reset` is 1, unless that is an
/// input.
fn resets(specs: &[TensorSpec], tensors: &NamedTensors, leading: &[usize]) -> crate::Result<Vec<bool>> {
    let frames = leading[leading.len() - 1];
    let mut resets: Vec<bool> = (0..leading.iter().product()).map(|frame: usize| frame.is_multiple_of(frames)).collect();
    if tensors.contains(RESET) && specs.iter().all(|spec| spec.name != RESET) {
        let (spec, flags) = (TensorSpec::u32(RESET, &[]).below(&[2]), tensors.get(RESET)?);
        NamedTensors::from_iter([(RESET.to_owned(), flags.clone())]).check(std::slice::from_ref(&spec), leading)?;
        let flags = flags.flatten_all()?.to_vec1()?;
        spec.check_u32(&flags)?;
        resets.iter_mut().zip(flags).for_each(|(resets, flag)| *resets |= flag == 1);
    }
    Ok(resets)
}

struct Place<'a> {
    path: &'a Path,
    /// Its number in the file that is read, and in the one that is written.
    sequence: usize,
    stored: usize,
    frame: usize,
}

fn write_row(
    (model, finish): (&Arc<dyn Model>, &Finish),
    runner: &Runner,
    (row, place): (usize, Place),
    shown: bool,
    output: &mut Output,
) -> Result<()> {
    let outputs = &model.signature().outputs;
    let floats = |spec: &TensorSpec| -> Result<Vec<f32>> {
        let mut values = runner.floats(&spec.name, row)?.to_vec();
        finish(&spec.name, &mut values);
        Ok(values)
    };
    match output {
        Output::Table if !shown => {}
        Output::Table => {
            let text = |spec: &TensorSpec| -> Result<String> {
                Ok(match spec.dtype() {
                    DType::U32 => shortened(&spec.name, runner.indices(&spec.name, row)?, u32::to_string),
                    _ => excerpt(&spec.name, &floats(spec)?),
                })
            };
            let texts = outputs.iter().map(text).collect::<Result<Vec<_>>>()?;
            line(format_args!("sequence {} frame {}: {}", place.sequence, place.frame, texts.join(", ")))?;
        }
        Output::Lines(..) => {
            let mut object = Map::new();
            object.insert("file".into(), place.path.display().to_string().into());
            object.insert("sequence".into(), place.sequence.into());
            object.insert("frame".into(), place.frame.into());
            for spec in outputs {
                let value: Value = if spec.dtype() == DType::U32 { runner.indices(&spec.name, row)?.into() } else { floats(spec)?.into() };
                object.insert(spec.name.clone(), value);
            }
            output.json(&object)?;
        }
        Output::Tensors(..) => {
            for (i, spec) in outputs.iter().enumerate() {
                if spec.dtype() == DType::U32 {
                    let values = runner.indices(&spec.name, row)?.iter().map(|x| x.to_le_bytes());
                    output.value(i, place.stored, place.frame, values)?;
                } else {
                    output.value(i, place.stored, place.frame, floats(spec)?.into_iter().map(f32::to_le_bytes))?;
                }
            }
        }
    }
    Ok(())
}

/// Median and 99th percentile of times in microseconds.
pub fn percentiles(times: &Histogram) -> String {
    let [median, late] = [0.5, 0.99].map(|share| times.percentile(share).as_secs_f64() * 1e6);
    format!("p50 {median:.1} us, p99 {late:.1} us")
}

/// The first of some floats, for the eye: `name [0.123 0.456 and 10 more]`.
pub fn excerpt(name: &str, values: &[f32]) -> String {
    shortened(name, values, |x| format!("{x:.3}"))
}

fn shortened<T>(name: &str, values: &[T], text: impl Fn(&T) -> String) -> String {
    let shown: Vec<String> = values.iter().take(SHOWN).map(text).collect();
    let rest = if values.len() > SHOWN { format!(" and {} more", cli::count((values.len() - SHOWN) as u64)) } else { String::new() };
    format!("{name} [{}{rest}]", shown.join(" "))
}
