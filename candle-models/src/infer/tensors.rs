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

/// An input's values, `[sequences, frames, width]`.
enum Values {
    Floats(Vec<f32>),
    Indices(Vec<u32>),
}

struct Sequences {
    sequences: usize,
    frames: usize,
    inputs: Vec<(TensorSpec, Values)>,
}

/// What is made of an output of floats, by its name, before it is written.
pub type Finish = Box<dyn Fn(&str, &mut [f32])>;

/// Runs a file's sequences, each from the initial state; tells how many frames that were.
pub fn run(
    (model, finish): (&Arc<dyn Model>, &Finish),
    (path, tensors, shard): (&Path, NamedTensors, Shard),
    (place, every): (Placement, Option<usize>),
    output: &mut Output,
    times: &Histogram,
) -> Result<u64> {
    let data = Sequences::new(model, path, tensors)?;
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
            current.step(&vec![frame == 0; rows]).map_err(|e| Error::file(path, format!("frame {frame}: {e}")))?;
            times.record(start.elapsed());
            for row in 0..rows {
                let place = Place { path, sequence: first + row, stored: first + row - begin, frame };
                let shown = every.is_some_and(|every| frame.is_multiple_of(every));
                write_row((model, finish), &current, (row, place), shown, output)?;
            }
        }
        runner = Some((rows, current));
    }
    Ok(((end - begin) * data.frames) as u64)
}

impl Sequences {
    fn new(model: &Arc<dyn Model>, path: &Path, tensors: NamedTensors) -> Result<Self> {
        let wrong = |e: Error| Error::file(path, e);
        let specs = &model.signature().inputs;
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
        let tensors = tensors.complete(specs, &dims[..leading]).map_err(wrong)?;
        let (sequences, frames) = if leading == 1 { (1, dims[0]) } else { (dims[0], dims[1]) };
        if sequences * frames == 0 {
            return Err(Error::file(path, format!("no frames: {} has the shape {dims:?}", first.name)).into());
        }
        let mut inputs = Vec::with_capacity(specs.len());
        for (name, tensor) in tensors {
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
        Ok(Self { sequences, frames, inputs })
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
