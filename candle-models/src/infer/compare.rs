//! How far an exported bundle is from its original.

use super::family::Opened;
use crate::Result;
use crate::engine::{Model, Runner};
use crate::random::Random;
use crate::registry::Networks;
use crate::signature::TensorSpec;
use crate::tensors::NamedTensors;
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

/// The frames that original and export are compared on.
const SEQUENCES: usize = 4;
const FRAMES: usize = 64;
const RESETS: f32 = 0.05;
/// What moves to find the frames on which a network chooses by a rounding: every input by a few of them, that often.
const NUDGE: f32 = 1e-6;
const NUDGES: u64 = 8;
/// At most one frame in so many is set aside as such a one: more would leave a network unchecked.
const ASIDE: usize = 64;

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

    /// The differences of an export's answers to a network's, output by output, and how many frames they leave out. Where they are outside of the
    /// tolerance, frames are left out on which the network's own answers are not [`steady`](Self::steady), unless there are many.
    pub(super) fn held(
        &self,
        model: &Arc<dyn Model>,
        [was, is]: [&NamedTensors; 2],
        measure: Measure,
        tolerance: f32,
    ) -> Result<(Vec<Difference>, usize)> {
        let all = self.between(model, [was, is], measure, &vec![true; self.resets.len()])?;
        if all.iter().all(|d| d.within(tolerance)) {
            return Ok((all, 0));
        }
        let steady = self.steady(model, was, measure, tolerance)?;
        let aside = steady.iter().filter(|steady| !**steady).count();
        if aside > self.resets.len() / ASIDE { Ok((all, 0)) } else { Ok((self.between(model, [was, is], measure, &steady)?, aside)) }
    }

    /// The differences of answers to those of a network on such frames, output by output.
    fn between(&self, model: &Arc<dyn Model>, [was, is]: [&NamedTensors; 2], measure: Measure, on: &[bool]) -> Result<Vec<Difference>> {
        is.check(&model.signature().outputs, &self.size)?;
        let difference = |spec: &TensorSpec| {
            let mut found = Difference::new(spec.name.clone(), measure);
            let [was, is] = [values(was, spec)?, values(is, spec)?];
            let frames = was.chunks(spec.width()).zip(is.chunks(spec.width()));
            frames.zip(on).filter(|(_, on)| **on).for_each(|((was, is), _)| found.add(was, is));
            Ok(found)
        };
        model.signature().outputs.iter().map(difference).collect()
    }

    /// The frames, of all sequences, on which the network's answers stay within the tolerance when its inputs move by a few roundings. On the others it
    /// chooses between things that are equally good but for rounding, such as the directions of a path, and another form of it may choose otherwise.
    fn steady(&self, model: &Arc<dyn Model>, answers: &NamedTensors, measure: Measure, tolerance: f32) -> Result<Vec<bool>> {
        let mut steady = vec![true; self.resets.len()];
        for nudge in 0..NUDGES {
            let random = Random::new(nudge).stream("nudge");
            let inputs = self.inputs.map(|name, x| nudged(x, random.stream(name)))?;
            let moved = Self { size: self.size, inputs, resets: self.resets.clone() }.answers(model)?;
            for spec in &model.signature().outputs {
                let [was, is] = [values(answers, spec)?, values(&moved, spec)?];
                let mut whole = Difference::new("", measure);
                whole.add(&was, &was);
                let scale = Difference { squares: [0.0, whole.squares[1] / steady.len() as f64], ..whole };
                let frames = was.chunks(spec.width()).zip(is.chunks(spec.width()));
                for (steady, (was, is)) in steady.iter_mut().zip(frames) {
                    let mut moved = Difference::new("", measure);
                    moved.add(was, is);
                    *steady &= Difference { range: scale.range, squares: [moved.squares[0], scale.squares[1]], ..moved }.within(tolerance);
                }
            }
        }
        Ok(steady)
    }
}

/// Floats that differ from these by a few roundings, and lie between the smallest and the largest of them; indices as they are.
fn nudged(x: &Tensor, random: Random) -> Result<Tensor> {
    if x.dtype() != DType::F32 {
        return Ok(x.clone());
    }
    let mut values = x.flatten_all()?.to_vec1::<f32>()?;
    let [low, high] = [f32::min, f32::max].map(|of| values.iter().copied().reduce(of).unwrap_or_default());
    for (i, value) in values.iter_mut().enumerate() {
        *value = (*value * (1.0 + NUDGE * random.normal(i as u64))).clamp(low, high);
    }
    Ok(Tensor::from_vec(values, x.dims(), &Device::Cpu)?)
}

/// The values of an output, frame by frame.
fn values(all: &NamedTensors, spec: &TensorSpec) -> Result<Vec<f32>> {
    Ok(all.get(&spec.name)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
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
            let (was, is) = (sequences.answers(original)?, sequences.answers(exported)?);
            let found = sequences.between(original, [&was, &is], self.measure(), &vec![true; sequences.resets.len()])?;
            // One network needs no name.
            let named = |d: Difference| if self.networks.len() > 1 { Difference { name: format!("{network} {}", d.name), ..d } } else { d };
            differences.extend(found.into_iter().map(named));
        }
        Ok(differences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recurrent::Recurrent;
    use crate::signature::Signature;

    /// `x[0]`, and whether it is larger than `x[1]`.
    struct Larger(Signature);

    impl Recurrent for Larger {
        fn signature(&self) -> &Signature {
            &self.0
        }

        fn device(&self) -> &Device {
            &Device::Cpu
        }

        fn unroll(&self, inputs: &NamedTensors, _: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
            let x = inputs.get("x")?;
            let (a, b) = (x.narrow(2, 0, 1)?, x.narrow(2, 1, 1)?);
            let larger = a.gt(&b)?.to_dtype(DType::F32)?;
            Ok(([("y".to_owned(), Tensor::cat(&[&a, &larger], 2)?)].into_iter().collect(), state.clone()))
        }
    }

    impl Model for Larger {
        fn family(&self) -> &'static str {
            "larger"
        }

        fn config(&self) -> serde_json::Value {
            serde_json::Value::Null
        }
    }

    /// Ties are left out, whatever the export says of them, and nothing else is: neither what an export has wrong elsewhere, nor ties that are many.
    #[test]
    fn frames_are_left_out_where_the_network_itself_chooses_by_a_rounding() {
        let signature =
            Signature { inputs: vec![TensorSpec::f32("x", &[2])], outputs: vec![TensorSpec::f32("y", &[2])], ..Signature::default() };
        let model: Arc<dyn Model> = Arc::new(Larger(signature));
        let rows = 2 * ASIDE;
        let with = |ties: &[usize]| {
            let x = |row: usize| [0.5, if ties.contains(&row) { 0.5 } else { [0.25, 0.75][row % 2] }];
            let x = Tensor::from_vec((0..rows).flat_map(x).collect::<Vec<f32>>(), (rows, 1, 2), &Device::Cpu).unwrap();
            Sequences { size: [rows, 1], inputs: [("x".to_owned(), x)].into_iter().collect(), resets: vec![false; rows] }
        };
        // An export that says the opposite on such rows.
        let held = |ties: &[usize], other: &[usize]| {
            let sequences = with(ties);
            let was = sequences.answers(&model).unwrap();
            let mut values = values(&was, &model.signature().outputs[0]).unwrap();
            other.iter().for_each(|row| values[2 * row + 1] = 1.0 - values[2 * row + 1]);
            let is = [("y".to_owned(), Tensor::from_vec(values, (rows, 1, 2), &Device::Cpu).unwrap())].into_iter().collect();
            let measured = [Measure::Largest, Measure::RootMeanSquare].map(|measure| {
                let (differences, aside) = sequences.held(&model, [&was, &is], measure, 1e-4).unwrap();
                (differences[0].within(1e-4), aside)
            });
            assert_eq!(measured[0], measured[1]);
            measured[0]
        };
        assert_eq!(held(&[3, 8], &[]), (true, 0));
        assert_eq!(held(&[3, 8], &[3]), (true, 2));
        assert_eq!(held(&[3, 8], &[3, 9]), (false, 2));
        assert_eq!(held(&[3], &[9]), (false, 1));
        assert_eq!(held(&[3, 8, 11], &[3]), (false, 0));
    }
}
