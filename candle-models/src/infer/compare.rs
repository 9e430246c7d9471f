//! How far an exported bundle is from its original.

use super::family::Opened;
use crate::engine::{Model, Runner};
use crate::random::Random;
use crate::registry::Networks;
use crate::signature::TensorSpec;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

/// The frames that original and export are compared on.
const SEQUENCES: usize = 4;
const FRAMES: usize = 64;
const RESETS: f32 = 0.05;

/// Compares exports with an original that it was made for.
pub trait Comparison {
    /// What both are run on: `256 simulated links`.
    fn over(&self) -> String;

    /// What is held against the tolerance.
    fn measure(&self) -> Measure;

    /// The differences of an export, output by output.
    ///
    /// # Errors
    /// If one of them does not run.
    fn differences(&mut self, exported: &Opened) -> Result<Vec<Difference>>;

    /// Lines about an export that has taken its place: none.
    ///
    /// # Errors
    /// If it does not run.
    fn remarks(&mut self, _exported: &Opened) -> anyhow::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// How far an output is from the original's.
pub struct Difference {
    name: String,
    pub(super) measure: Measure,
    worst: f32,
    /// The largest absolute value.
    range: f32,
    /// Sums of squares of the differences and of the original's values.
    squares: [f64; 2],
}

/// What is held against the tolerance.
#[derive(Debug, Clone, Copy)]
pub enum Measure {
    /// The largest difference, by the range or by one.
    Largest,
    /// The root mean square of the differences, by that of the values: for what makes much of a rounding now and then.
    RootMeanSquare,
}

impl std::fmt::Display for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Largest => "range",
            Self::RootMeanSquare => "root mean square",
        })
    }
}

impl Difference {
    /// None yet, of the output of that name.
    pub fn new(name: impl Into<String>, measure: Measure) -> Self {
        Self { name: name.into(), measure, worst: 0.0, range: 0.0, squares: [0.0; 2] }
    }

    /// Adds values of the original and of the export.
    pub fn add(&mut self, was: &[f32], is: &[f32]) {
        for (x, y) in was.iter().zip(is) {
            let difference = (x - y).abs();
            self.worst = if difference.is_nan() { f32::INFINITY } else { self.worst.max(difference) };
            self.range = self.range.max(x.abs());
            self.squares[0] += f64::from(difference) * f64::from(difference);
            self.squares[1] += f64::from(*x) * f64::from(*x);
        }
    }

    /// The root mean square of the differences as a share of that of the values.
    fn share(&self) -> f64 {
        (self.squares[0] / self.squares[1].max(f64::MIN_POSITIVE)).sqrt()
    }

    /// Whether the export is as near as that.
    pub fn within(&self, tolerance: f32) -> bool {
        // Written so that a NaN is outside.
        match self.measure {
            Measure::Largest => self.worst <= tolerance * self.range.max(1.0),
            Measure::RootMeanSquare => self.share() <= f64::from(tolerance),
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} differs by at most {:.3e} in a range of {:.3}", self.name, self.worst, self.range)?;
        match self.measure {
            Measure::Largest => Ok(()),
            Measure::RootMeanSquare => write!(f, ", {:.3e} of the root mean square", self.share()),
        }
    }
}

/// What a network is run on, for another form of it to be compared: sequences side by side, every one of so many frames.
pub struct Sequences {
    /// Sequences, and frames of each.
    pub size: [usize; 2],
    /// By name, `[sequences, frames, ...]`.
    pub inputs: NamedTensors,
    /// Of every frame, sequence by sequence.
    pub resets: Vec<bool>,
}

impl Sequences {
    /// Random inputs of a signature with random resets. Where an input can force a choice, its random indices do, so that one rounding cannot turn into another
    /// history.
    pub fn random(model: &Arc<dyn Model>) -> Result<Self> {
        let random = Random::new(0).stream("export");
        let size = [SEQUENCES, FRAMES];
        let resets = (0..SEQUENCES * FRAMES).map(|i| random.stream("resets").uniform(i as u64) < RESETS).collect();
        let drawn = model.signature().inputs.iter().map(|spec| Ok((spec.name.clone(), spec.draw(&size, &random)?)));
        Ok(Self { size, inputs: drawn.collect::<Result<_>>()?, resets })
    }

    /// What a network answers in the engine, `[sequences, frames, ...]`.
    pub(super) fn answers(&self, model: &Arc<dyn Model>) -> Result<NamedTensors> {
        let [sequences, frames] = self.size;
        let mut runner = Runner::windowed(model.clone(), sequences, frames, 1)?;
        for (name, values) in self.inputs.iter() {
            let values = values.flatten_all()?;
            match values.dtype() {
                DType::U32 => runner.set_u32(name, &values.to_vec1()?)?,
                _ => runner.set_f32(name, &values.to_vec1()?)?,
            }
        }
        runner.step(&self.resets)?;
        let rows = 0..sequences * frames;
        let answer = |spec: &TensorSpec| {
            let shape: Vec<usize> = self.size.iter().chain(&spec.shape).copied().collect();
            let values = match spec.dtype() {
                DType::U32 => {
                    Tensor::new(rows.clone().map(|r| runner.indices(&spec.name, r)).collect::<Result<Vec<_>>>()?.concat(), &Device::Cpu)?
                }
                _ => Tensor::new(rows.clone().map(|r| runner.floats(&spec.name, r)).collect::<Result<Vec<_>>>()?.concat(), &Device::Cpu)?,
            };
            Ok((spec.name.clone(), values.reshape(shape)?))
        };
        model.signature().outputs.iter().map(answer).collect()
    }

    /// The differences of answers to those of a network, output by output.
    pub(super) fn between(&self, model: &Arc<dyn Model>, [was, is]: [&NamedTensors; 2], measure: Measure) -> Result<Vec<Difference>> {
        is.check(&model.signature().outputs, &self.size)?;
        let difference = |spec: &TensorSpec| {
            let values = |all: &NamedTensors| Ok::<_, Error>(all.get(&spec.name)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?);
            let mut found = Difference::new(spec.name.clone(), measure);
            found.add(&values(was)?, &values(is)?);
            Ok(found)
        };
        model.signature().outputs.iter().map(difference).collect()
    }
}

/// What every network of a bundle is run on.
pub struct Rehearsal {
    /// In words: `256 simulated links`.
    pub over: String,
    /// What is held against the tolerance.
    pub measure: Measure,
    /// Of each network.
    pub sequences: Vec<Sequences>,
}

impl Rehearsal {
    /// Random sequences.
    pub fn random(networks: &Networks) -> Result<Self> {
        let sequences = networks.iter().map(|(_, model)| Sequences::random(model)).collect::<Result<_>>()?;
        Ok(Self { over: format!("{SEQUENCES} random sequences of {FRAMES} frames"), measure: Measure::Largest, sequences })
    }
}

/// Every network on random sequences.
pub struct OnRandom {
    networks: Networks,
    rehearsal: Rehearsal,
}

impl OnRandom {
    /// For exports of these networks.
    pub fn new(original: &Networks) -> Result<Self> {
        Ok(Self { networks: original.clone(), rehearsal: Rehearsal::random(original)? })
    }
}

impl Comparison for OnRandom {
    fn over(&self) -> String {
        self.rehearsal.over.clone()
    }

    fn measure(&self) -> Measure {
        self.rehearsal.measure
    }

    fn differences(&mut self, exported: &Opened) -> Result<Vec<Difference>> {
        let mut differences = Vec::new();
        let all = self.networks.iter().zip(&self.rehearsal.sequences).zip(&exported.networks);
        for (((network, original), sequences), (_, exported)) in all {
            let found = sequences.between(original, [&sequences.answers(original)?, &sequences.answers(exported)?], self.measure())?;
            // One network needs no name.
            let named = |d: Difference| if self.networks.len() > 1 { Difference { name: format!("{network} {}", d.name), ..d } } else { d };
            differences.extend(found.into_iter().map(named));
        }
        Ok(differences)
    }
}
