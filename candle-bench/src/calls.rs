//! Calls of a model: its inputs, a pass through the engine or on plain tensors, and the answers to compare.

use crate::case::{Case, Execution, Pass};
use crate::family::Drawn;
use crate::harness::{InPool, Rounds, Subject, Timed, pool};
use crate::network::Place;
use crate::table;
use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_models::engine::{Model, Runner, Session};
use candle_models::exec::SAMPLE;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Frames that a streaming subject goes through, round and round.
pub const STREAM_FRAMES: usize = 8;
/// Largest difference between two f32 runs of the same network, relative to one plus the magnitude.
pub const TOLERANCE: f64 = 1e-4;
/// The same for a network whose weights were rounded to bf16 or 8 bits: the worst of some 150 000 logits on random inputs.
pub const NARROW_TOLERANCE: f64 = 0.25;

/// An input of a frame: name, shape, and its values `[B, F, shape...]`.
#[derive(Debug, Clone)]
struct Input<T> {
    name: String,
    shape: Vec<usize>,
    values: Vec<T>,
}

impl<T: Copy> Input<T> {
    fn frame(&self, frames: usize, t: usize) -> Self {
        let width = self.shape.iter().product();
        let row = |row: &[T]| row[t * width..][..width].to_vec();
        Self { values: self.values.chunks(frames * width).flat_map(row).collect(), name: self.name.clone(), shape: self.shape.clone() }
    }
}

/// Random inputs `[B, F, ...]` within the ranges of a model.
#[derive(Debug, Clone)]
pub struct Inputs {
    batch: usize,
    frames: usize,
    floats: Vec<Input<f32>>,
    indices: Vec<Input<u32>>,
}

impl Inputs {
    /// Inputs of a case: floats from 0 to 1; where a class can be left to the model it is, in training it is given.
    pub fn random(model: &dyn Model, case: &Case) -> Self {
        let (batch, frames) = (case.batch, if case.pass == Pass::Step { STREAM_FRAMES } else { case.frames });
        let (random, rows) = (Random::new(3).stream("inputs"), batch * frames);
        let (mut floats, mut indices) = (Vec::new(), Vec::new());
        for spec in &model.signature().inputs {
            let (name, shape, width) = (spec.name.clone(), spec.shape.clone(), spec.width());
            let random = random.stream(&name);
            if spec.dtype() == DType::F32 {
                let mut values = vec![0.0; rows * width];
                random.fill_uniform(0, &mut values);
                floats.push(Input { name, shape, values });
                continue;
            }
            let chosen = spec.can_sample() && case.pass != Pass::Train;
            let draw = |i: usize| if chosen { SAMPLE } else { random.below(i as u64, spec.limit(i).unwrap_or(1)) };
            indices.push(Input { name, shape, values: (0..rows * width).map(draw).collect() });
        }
        Self { batch, frames, floats, indices }
    }

    /// The inputs as tensors `[B, F, ...]`.
    pub fn tensors(&self) -> Result<NamedTensors> {
        let mut tensors = NamedTensors::new();
        let whole = |shape: &[usize]| [&[self.batch, self.frames], shape].concat();
        for Input { name, shape, values } in &self.floats {
            tensors.insert(name.clone(), Tensor::from_slice(values, whole(shape), &Device::Cpu)?);
        }
        for Input { name, shape, values } in &self.indices {
            tensors.insert(name.clone(), Tensor::from_slice(values, whole(shape), &Device::Cpu)?);
        }
        Ok(tensors)
    }

    /// Every frame alone, `[B, 1, ...]`, in order.
    pub fn each_frame(&self) -> Vec<Self> {
        let frame = |t: usize| Self {
            batch: self.batch,
            frames: 1,
            floats: self.floats.iter().map(|input| input.frame(self.frames, t)).collect(),
            indices: self.indices.iter().map(|input| input.frame(self.frames, t)).collect(),
        };
        (0..self.frames).map(frame).collect()
    }

    /// Copies all inputs.
    pub fn copy_to(&self, to: &mut impl Feed) -> candle_models::Result<()> {
        self.floats.iter().try_for_each(|input| to.floats(&input.name, &input.values))?;
        self.indices.iter().try_for_each(|input| to.indices(&input.name, &input.values))
    }
}

/// What takes inputs by name.
pub trait Feed {
    /// A whole input of floats.
    fn floats(&mut self, name: &str, values: &[f32]) -> candle_models::Result<()>;
    /// A whole input of indices.
    fn indices(&mut self, name: &str, values: &[u32]) -> candle_models::Result<()>;
}

impl Feed for Runner {
    fn floats(&mut self, name: &str, values: &[f32]) -> candle_models::Result<()> {
        self.set_f32(name, values)
    }

    fn indices(&mut self, name: &str, values: &[u32]) -> candle_models::Result<()> {
        self.set_u32(name, values)
    }
}

impl Feed for Session {
    fn floats(&mut self, name: &str, values: &[f32]) -> candle_models::Result<()> {
        self.set_f32(name, values)
    }

    fn indices(&mut self, name: &str, values: &[u32]) -> candle_models::Result<()> {
        self.set_u32(name, values)
    }
}

/// Outputs by name, `[B, F, ...]`, to compare.
pub type Answers = BTreeMap<String, Vec<f64>>;

/// Calls of a case. One copies the inputs in, runs one pass and has the outputs in the host's memory. A step walks through its frames and
/// carries the state on; a window starts from the initial state.
pub trait Calls: Rounds {
    /// The answers of one turn through the inputs.
    fn answers(&mut self) -> Result<Answers>;

    /// Bytes of weights, states, inputs, outputs and what a pass works in, where they are known.
    fn bytes(&self) -> Option<usize>;
}

/// Calls of a case: through the engine, or operation by operation where the case says eager.
pub fn calls(model: Arc<dyn Model>, case: &Case, inputs: &Inputs, place: &Place) -> Result<Box<dyn Calls>> {
    // On a GPU the engine has an eager way of its own, kernel by kernel.
    Ok(match case.execution {
        Execution::Eager if !place.device.is_cuda() => {
            Box::new(InPool { pool: pool(case.threads)?, subject: Timed(TensorCalls::new(model, case, inputs)?) })
        }
        _ => Box::new(Timed(EngineCalls::new(model, case, inputs, place)?)),
    })
}

/// The turns of a case: its frames one by one, or all of them at once.
fn turns(case: &Case, inputs: &Inputs) -> Vec<Inputs> {
    if case.pass == Pass::Step { inputs.each_frame() } else { vec![inputs.clone()] }
}

/// Whether a row of a pass begins anew: a window does.
fn resets(case: &Case) -> Vec<bool> {
    (0..case.batch * case.frames).map(|row| case.pass != Pass::Step && row % case.frames == 0).collect()
}

/// A runner of the engine with its inputs.
pub struct EngineCalls {
    runner: Runner,
    inputs: Vec<Inputs>,
    resets: Vec<bool>,
    next: usize,
}

impl EngineCalls {
    /// A runner for the case with its inputs.
    pub fn new(model: Arc<dyn Model>, case: &Case, inputs: &Inputs, place: &Place) -> Result<Self> {
        let runner = Runner::on(model, (case.batch, case.frames), &place.of_engine(case)?)?;
        Ok(Self { runner, inputs: turns(case, inputs), resets: resets(case), next: 0 })
    }

    /// The answers of one turn through the inputs.
    pub fn answers(&mut self) -> Result<Answers> {
        let (turns, frames, rows) = (self.inputs.len(), self.inputs[0].frames, self.resets.len());
        let outputs = self.runner.signature().outputs.clone();
        let zeros = |width: usize| vec![0.0; rows * turns * width];
        let mut answers: Answers = outputs.iter().map(|spec| (spec.name.clone(), zeros(spec.width()))).collect();
        for turn in 0..turns {
            self.run()?;
            for spec in &outputs {
                let (name, width) = (&spec.name, spec.width());
                let Some(values) = answers.get_mut(name) else { continue };
                for row in 0..rows {
                    // Of [B, turns, frames], where either turns or frames is 1.
                    let at = (row / frames * turns + turn) * frames + row % frames;
                    let found: Vec<f64> = match spec.dtype() {
                        DType::U32 => self.runner.indices(name, row)?.iter().map(|&x| x.into()).collect(),
                        _ => self.runner.floats(name, row)?.iter().map(|&x| x.into()).collect(),
                    };
                    values[at * width..][..width].copy_from_slice(&found);
                }
            }
        }
        Ok(answers)
    }
}

impl Subject for EngineCalls {
    fn run(&mut self) -> Result<()> {
        self.inputs[self.next].copy_to(&mut self.runner)?;
        self.next = (self.next + 1) % self.inputs.len();
        Ok(self.runner.step(&self.resets)?)
    }
}

impl Calls for Timed<EngineCalls> {
    fn answers(&mut self) -> Result<Answers> {
        self.0.answers()
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.0.runner.bytes())
    }
}

/// The model on tensors of the CPU, operation by operation, without the engine.
pub struct TensorCalls {
    model: Arc<dyn Model>,
    inputs: Vec<Inputs>,
    resets: Vec<bool>,
    initial: NamedTensors,
    state: NamedTensors,
    keeps_state: bool,
    next: usize,
}

impl TensorCalls {
    /// The model with the inputs and the initial state of the case.
    pub fn new(model: Arc<dyn Model>, case: &Case, inputs: &Inputs) -> Result<Self> {
        let initial = model.initial_state(case.batch)?;
        let (state, keeps_state) = (initial.clone(), case.pass == Pass::Step);
        Ok(Self { model, inputs: turns(case, inputs), resets: resets(case), initial, state, keeps_state, next: 0 })
    }

    /// Inputs as tensors, a pass, and the outputs' values in the host's memory.
    fn pass(&mut self) -> Result<Answers> {
        let inputs = self.inputs[self.next].tensors()?;
        self.next = (self.next + 1) % self.inputs.len();
        let (outputs, state) = self.model.unroll(&inputs, &self.resets, &self.state)?;
        self.state = if self.keeps_state { state } else { self.initial.clone() };
        outputs.iter().map(|(name, tensor)| Ok((name.to_owned(), doubles(tensor)?))).collect()
    }
}

impl Subject for TensorCalls {
    fn run(&mut self) -> Result<()> {
        self.pass().map(drop)
    }
}

impl Calls for InPool<Timed<TensorCalls>> {
    fn answers(&mut self) -> Result<Answers> {
        let calls = &mut self.subject.0;
        let turns = (0..calls.inputs.len()).map(|_| calls.pass()).collect::<Result<Vec<_>>>()?;
        let (batch, frames) = (calls.inputs[0].batch, calls.inputs[0].frames);
        let mut answers = Answers::new();
        for name in turns[0].keys() {
            // [turns, B, frames, width] to [B, turns, frames, width].
            let each = turns[0][name].len() / batch;
            debug_assert_eq!(each % frames, 0);
            let row = |b: usize| turns.iter().flat_map(move |turn| turn[name][b * each..][..each].iter().copied());
            answers.insert(name.clone(), (0..batch).flat_map(row).collect());
        }
        Ok(answers)
    }

    fn bytes(&self) -> Option<usize> {
        None
    }
}

fn doubles(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

/// The answers that a peer wrote.
pub fn read_answers(path: &Path) -> Result<Answers> {
    NamedTensors::load_safetensors(path)?.iter().map(|(name, t)| Ok((name.to_owned(), doubles(t)?))).collect()
}

/// How far two answers to the same input are apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The output that differs most.
    pub output: String,
    /// Its largest difference, relative to one plus the magnitude of theirs.
    #[serde(deserialize_with = "table::number")]
    pub worst: f64,
    /// The largest difference allowed.
    pub tolerance: f64,
}

impl Agreement {
    /// Whether the outputs agree.
    pub fn holds(&self) -> bool {
        self.worst <= self.tolerance
    }

    /// The difference as it is printed: `1.2e-1`, or that there is none because a value is not a number.
    pub fn difference(&self) -> String {
        if self.worst.is_finite() { format!("{:.1e}", self.worst) } else { "not a number".to_owned() }
    }
}

impl std::fmt::Display for Agreement {
    /// `logits: 1.2e-1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.output, self.difference())
    }
}

/// How far `ours` and `theirs` are apart, by their floats.
///
/// Drawn classes are no measure of it: a random number, or the largest of two logits, may fall between two roundings of the same bound. Where
/// the classes of a row differ, the floats that they were drawn from are compared up to and including those of the first class that differs, for
/// what follows depends on the draw. In f32 such a near tie is rare, and more than one row in a thousand (one of fewer) says that the draws
/// themselves differ.
pub fn agreement(ours: &Answers, theirs: &Answers, dtype: &str, drawn: Option<&Drawn>) -> Result<Agreement> {
    let drawn = drawn.filter(|drawn| ours.contains_key(drawn.classes));
    let draws = drawn.map(|drawn| Draws::of(drawn, ours, theirs)).transpose()?;
    let rows = draws.as_ref().map_or(0, |draws| draws.comparable.len());
    let wide = dtype == "f32";
    // Rounded weights move logits by more, and with them the draws that lie between two classes; whether they still play
    // alike is measured on replays, by the export.
    let mut found = Agreement { output: "all".to_owned(), worst: 0.0, tolerance: if wide { TOLERANCE } else { NARROW_TOLERANCE } };
    for (name, a) in ours {
        let b = theirs.get(name).with_context(|| format!("{name}: the peer gave no such output"))?;
        ensure!(a.len() == b.len(), "{name}: {} values of ours, {} of theirs", a.len(), b.len());
        if drawn.is_some_and(|drawn| name == drawn.classes) {
            continue;
        }
        let width = (a.len() / rows.max(1)).max(1);
        let comparable = draws.as_ref().filter(|draws| name == draws.from).map_or(&[][..], |draws| &draws.comparable);
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            if comparable.get(i / width).is_some_and(|floats| i % width >= *floats) {
                continue;
            }
            let difference = (a - b).abs() / (1.0 + b.abs());
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            if difference > found.worst {
                found.worst = difference;
                found.output.clone_from(name);
            }
        }
    }
    let most_apart = rows.div_ceil(1000);
    match draws {
        Some(Draws { from, classes, apart, .. }) if wide && found.holds() && apart > most_apart => {
            let share = |count: usize| count as f64 / rows as f64;
            let output = format!("share of rows with another {classes} behind equal {from} ({apart} of {rows})");
            Ok(Agreement { output, worst: share(apart), tolerance: share(most_apart) })
        }
        _ => Ok(found),
    }
}

/// What both sides drew.
struct Draws {
    classes: &'static str,
    from: &'static str,
    /// Floats of every row that both sides computed from the same earlier draws: all of them where the classes are equal.
    comparable: Vec<usize>,
    /// Rows whose classes differ.
    apart: usize,
}

impl Draws {
    fn of(&Drawn { classes, from, ref ends }: &Drawn, ours: &Answers, theirs: &Answers) -> Result<Self> {
        let empty = Vec::new();
        let [a, b] = [ours, theirs].map(|answers| answers.get(classes).unwrap_or(&empty));
        ensure!(a.len() == b.len(), "{classes}: {} values of ours, {} of theirs", a.len(), b.len());
        let rows = a.chunks(ends.len().max(1)).zip(b.chunks(ends.len().max(1)));
        let parted: Vec<_> = rows.map(|(a, b)| a.iter().zip(b).position(|(a, b)| a != b)).collect();
        let apart = parted.iter().flatten().count();
        let all = ends.last().copied().unwrap_or(0);
        let comparable = parted.into_iter().map(|parted| parted.map_or(all, |class| ends.get(class).copied().unwrap_or(all))).collect();
        Ok(Self { classes, from, comparable, apart })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;
    use crate::network::{FEW, Network};
    use crate::testing;

    const LOGITS: usize = 90;
    const ACTION: usize = 13;
    /// Outputs of a frame and their widths.
    const OUTPUTS: [(&str, usize); 3] = [("logits", LOGITS), ("value", 1), ("action", ACTION)];

    /// Eight classes of one logit each, then five of more.
    fn drawn() -> Drawn {
        Drawn { classes: "action", from: "logits", ends: (1..=8).chain([24, 40, 56, 72, LOGITS]).collect() }
    }

    fn agreement(ours: &Answers, theirs: &Answers, dtype: &str) -> Result<Agreement> {
        super::agreement(ours, theirs, dtype, Some(&drawn()))
    }

    fn answers(rows: usize, edit: impl Fn(&mut Answers)) -> Answers {
        let mut answers: Answers = OUTPUTS.iter().map(|(n, w)| ((*n).to_owned(), vec![1.0; rows * w])).collect();
        edit(&mut answers);
        answers
    }

    #[test]
    fn equal_answers_agree_and_the_worst_is_named() {
        let a = answers(4, |_| {});
        assert!(agreement(&a, &a, "f32").unwrap().holds());
        let b = answers(4, |b| b.get_mut("value").unwrap()[2] = 1.5);
        let found = agreement(&a, &b, "f32").unwrap();
        assert_eq!((found.output.as_str(), found.worst), ("value", 0.2));
        assert!(!found.holds());
    }

    #[test]
    fn nan_is_a_disagreement() {
        let a = answers(4, |a| a.get_mut("logits").unwrap()[7] = f64::NAN);
        assert!(!agreement(&a, &a, "f32").unwrap().holds());
    }

    #[test]
    fn draws_that_part_behind_logits_that_agree_are_agreement_and_behind_others_are_not() {
        let a = answers(8, |_| {});
        // The third component of two rows is another class, and all that follows from it too.
        let parted = |logit: f64| {
            answers(8, |b| {
                for row in [2, 5] {
                    b.get_mut("action").unwrap()[row * ACTION + 2..][..3].fill(0.0);
                    b.get_mut("logits").unwrap()[row * LOGITS + 2] = logit;
                    b.get_mut("logits").unwrap()[row * LOGITS + 3..][..50].fill(7.0);
                }
            })
        };
        for dtype in ["q8", "bf16"] {
            let found = agreement(&a, &parted(1.2), dtype).unwrap();
            assert!(found.holds() && found.worst > 0.05, "{found}");
            let found = agreement(&a, &parted(3.0), dtype).unwrap();
            assert!(!found.holds() && found.to_string() == "logits: 5.0e-1", "{found}");
        }
        // Two of eight are no chance in f32.
        let found = agreement(&a, &parted(1.0), "f32").unwrap();
        assert!(!found.holds() && found.to_string().ends_with("(2 of 8): 2.5e-1"), "{found}");
        // What is not a number has no size.
        let nan = answers(8, |a| a.get_mut("logits").unwrap()[7] = f64::NAN);
        assert_eq!(agreement(&nan, &nan, "q8").unwrap().to_string(), "logits: not a number");
    }

    #[test]
    fn one_draw_in_a_thousand_may_differ() {
        let a = answers(2000, |_| {});
        let differing = |rows: &[usize]| {
            answers(2000, |b| {
                for row in rows {
                    b.get_mut("action").unwrap()[row * ACTION] = 0.0;
                    b.get_mut("logits").unwrap()[row * LOGITS + 80] = 9.0;
                }
            })
        };
        assert!(agreement(&a, &differing(&[3, 1999]), "f32").unwrap().holds());
        assert!(!agreement(&a, &differing(&[3, 4, 5]), "f32").unwrap().holds());
    }

    #[test]
    fn classes_of_which_nothing_is_known_are_numbers() {
        let (a, b) = (answers(4, |_| {}), answers(4, |b| b.get_mut("action").unwrap()[0] = 0.0));
        let found = super::agreement(&a, &b, "q8", None).unwrap();
        assert!(!found.holds() && found.output == "action", "{found}");
    }

    #[test]
    fn a_missing_output_is_named() {
        let a = answers(1, |_| {});
        let b = answers(1, |b| drop(b.remove("value")));
        assert!(agreement(&a, &b, "f32").unwrap_err().to_string().starts_with("value:"));
    }

    #[test]
    fn the_engine_answers_as_plain_tensors_do_whatever_the_family() {
        let directory = tempfile::tempdir().unwrap();
        let families = families::shipped();
        let mut networks: Vec<Network> = FEW.iter().map(|kind| testing::network(kind, directory.path())).collect();
        let shipped = families.iter().flat_map(|family| family.shipped());
        networks.extend(shipped.map(|bundle| Network::open(&families, &Path::new("..").join(bundle)).unwrap()));
        assert!(networks.iter().map(|network| network.family.name()).collect::<std::collections::BTreeSet<_>>().len() > 1);
        for network in networks {
            let drawn = network.family.drawn();
            for (pass, frames) in [(Pass::Step, 1), (Pass::Window, 5)] {
                let case = network.case(pass, 3, frames, 1);
                let model = network.load().unwrap();
                let inputs = Inputs::random(&*model, &case);
                let [captured, eager] = [Execution::Captured, Execution::Eager].map(|execution| {
                    let case = Case { execution, ..case.clone() };
                    let mut calls = calls(model.clone(), &case, &inputs, &Place::cpu()).unwrap();
                    assert_eq!(calls.bytes().is_some(), execution == Execution::Captured);
                    let answers = calls.answers().unwrap();
                    assert_eq!(calls.round(3).unwrap().latencies_us.len(), 3);
                    answers
                });
                // On tensors products are in f32 whatever the engine takes them in.
                let dtype =
                    if Place::cpu().of_engine(&case).unwrap().dtype.is_some_and(|dtype| dtype != DType::F32) { "bf16" } else { "f32" };
                let found = super::agreement(&captured, &eager, dtype, drawn.as_ref()).unwrap();
                assert!(found.holds(), "{} {pass:?}: {found:?}", network.name);
                assert!(captured.values().all(|values| values.iter().any(|x| *x != 0.0)), "{}", network.name);
            }
        }
    }
}
