//! The game policy as a subject: networks, inputs, and calls of the engine.

use crate::harness::Subject;
use crate::table::{Agreement, Case, Pass};
use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, Var};
use candle_models::bundle::{self, Bundle, Manifest, Role, Storage};
use candle_models::device::{self, ChosenDevice, DeviceChoice};
use candle_models::engine::{self, Placement, Runner, Session};
use candle_models::nn::Params;
use candle_models::nvml;
use candle_models::policy::actions::{ACTION, COMPONENTS, LOGITS, SAMPLE};
use candle_models::policy::embedding::{ACTION_STATES, CHARACTERS, IDS, WIDTH as FEATURES};
use candle_models::policy::{BackboneConfig, FAMILY, Heads, Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Frames that a streaming subject goes through, round and round.
pub const STREAM_FRAMES: usize = 8;
/// Largest difference between two f32 runs of the same network, relative to one plus the magnitude.
pub const TOLERANCE: f64 = 1e-4;
/// The same for a network whose weights were rounded to bf16 or 8 bits: the worst of some 150 000 logits on random inputs.
pub const NARROW_TOLERANCE: f64 = 0.25;
/// Outputs of a frame and their widths.
const OUTPUTS: [(&str, usize); 3] = [("logits", LOGITS), ("value", 1), ("action", ACTION)];

/// Where calls compute.
#[derive(Debug, Clone)]
pub struct Place {
    /// `cpu` or `cuda:0`, as it was found.
    choice: DeviceChoice,
    /// The opened device.
    pub device: Device,
}

impl Place {
    /// The CPU.
    pub fn cpu() -> Self {
        Self { choice: DeviceChoice::Cpu, device: Device::Cpu }
    }

    /// Opens a device. Where a GPU was hoped for and is not there, a warning says why.
    pub fn open(choice: DeviceChoice) -> Result<Self> {
        let ChosenDevice { device, fallback } = choice.open()?;
        fallback.iter().for_each(|reason| eprintln!("warning: {reason}"));
        let choice = match (&device, choice) {
            (Device::Cuda(_), DeviceChoice::Auto) => DeviceChoice::Cuda(0),
            (Device::Cuda(_), named) => named,
            _ => DeviceChoice::Cpu,
        };
        Ok(Self { choice, device })
    }

    /// `cpu` or `cuda:0`.
    pub fn name(&self) -> String {
        self.choice.to_string()
    }

    /// Where the engine runs a case: on a GPU in the dtype that its weights are stored in.
    fn of_engine(&self, case: &Case) -> Result<Placement> {
        let dtype = self.device.is_cuda().then(|| device::float_dtype(&case.dtype)).transpose()?;
        Ok(Placement { device: self.choice, dtype, ..Placement::cpu(case.threads) })
    }

    /// A case here instead of on the CPU.
    pub fn of(&self, case: Case) -> Case {
        Case { device: self.name(), ..case }
    }

    /// Megabytes in use on the GPU, that of other programs counted in; `None` for the CPU and where the driver does not say.
    pub fn gpu_mb(&self) -> Option<f64> {
        nvml::device_memory_in_use(&self.device).map(|bytes| bytes as f64 / 1e6)
    }
}

/// A policy on disk.
#[derive(Debug, Clone)]
pub struct Network {
    /// Directory with `config.json` and `model.safetensors`.
    pub bundle: PathBuf,
    /// The bundle that it was made from, which peers read.
    pub original: PathBuf,
    /// How its weights are stored: `f32`, `bf16`, `q8`.
    pub dtype: String,
    /// Its architecture.
    pub config: PolicyConfig,
}

impl Network {
    /// Opens a bundle.
    pub fn open(bundle: &Path) -> Result<Self> {
        let opened = Bundle::open(bundle)?;
        opened.require_family(&[FAMILY])?;
        let stored: BTreeSet<String> = opened.parameters()?.into_iter().map(|p| p.dtype).collect();
        let narrow = [("I8", "q8"), ("BF16", "bf16"), ("F16", "f16")].into_iter().find(|(name, _)| stored.contains(*name));
        let dtype = narrow.map_or("f32", |(_, name)| name).to_owned();
        Ok(Self { bundle: bundle.to_owned(), original: bundle.to_owned(), dtype, config: opened.config()? })
    }

    /// The network with its weights stored otherwise, written below `directory`.
    pub fn stored(&self, dtype: &str, directory: &Path) -> Result<Self> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        let bundle = directory.join(format!("{}-{}-{dtype}", self.config.backbone.kind(), self.dtype));
        engine::export(&Bundle::open(&self.bundle)?, Storage::parse(dtype)?, &bundle)?;
        Ok(Self { bundle, dtype: dtype.to_owned(), ..self.clone() })
    }

    /// Multiply-adds of a frame in the products with weights: one for every weight.
    pub fn products(&self) -> Result<usize> {
        let matrices = Policy::parameters(&self.config)?.into_iter().filter(|p| p.role == Role::Matrix);
        Ok(matrices.map(|p| p.shape.iter().product::<usize>()).sum())
    }

    /// Writes a bundle with random weights below `directory`.
    pub fn random(kind: &str, heads: Heads, directory: &Path) -> Result<Self> {
        let kinds = BackboneConfig::KINDS.join(", ");
        let backbone = BackboneConfig::named(kind).with_context(|| format!("backbone {kind}: not one of {kinds}"))?;
        let config = PolicyConfig { backbone, heads, ..PolicyConfig::default() };
        let random = Random::new(2).stream("weights");
        let params = Params::init(random, &Device::Cpu);
        Policy::new(&config, &params)?;
        let tensors: BTreeMap<String, Tensor> =
            params.vars().iter().map(|(name, var)| Ok((name.clone(), without_zeros(name, var, random)?))).collect::<Result<_>>()?;
        let bundle = directory.join(kind);
        bundle::save(&bundle, &Manifest::new(FAMILY, &config)?, &tensors, serde_json::Value::Null, &[])?;
        Ok(Self { original: bundle.clone(), bundle, dtype: "f32".to_owned(), config })
    }

    /// `mamba 2x256, autoregressive heads`.
    pub fn name(&self) -> String {
        let width = self.config.hidden;
        let backbone = match &self.config.backbone {
            BackboneConfig::Mlp { layers } => {
                format!("mlp {}", layers.iter().map(usize::to_string).collect::<Vec<_>>().join("-"))
            }
            BackboneConfig::Mamba { layers, block } => format!("mamba {layers}x{width} state {}", block.state),
            BackboneConfig::Gru { layers } => format!("gru {layers}x{width}"),
            BackboneConfig::Attention { layers, window, .. } => format!("attention {layers}x{width} window {window}"),
            BackboneConfig::Hybrid { layers, window, .. } => format!("hybrid {layers}x{width} window {window}"),
        };
        let heads = match self.config.heads {
            Heads::Independent => "independent",
            Heads::Autoregressive => "autoregressive",
        };
        format!("{backbone}, {heads} heads")
    }

    /// A case of this network on the CPU.
    pub fn case(&self, pass: Pass, batch: usize, frames: usize, threads: usize) -> Case {
        Case {
            model: self.name(),
            backbone: self.config.backbone.kind().to_owned(),
            pass,
            batch,
            frames,
            threads,
            device: "cpu".to_owned(),
            dtype: self.dtype.clone(),
        }
    }

    /// The weights of the bundle by name.
    pub fn tensors(&self) -> Result<BTreeMap<String, Tensor>> {
        Ok(Bundle::open(&self.bundle)?.read_tensors(&Policy::parameters(&self.config)?)?)
    }

    /// The network with its weights, for inference.
    pub fn load(&self) -> Result<Arc<Policy>> {
        Ok(Arc::new(Policy::load(&Bundle::open(&self.bundle)?)?))
    }
}

/// What starts at zero gets random values: a comparison of outputs would not see it otherwise.
fn without_zeros(name: &str, var: &Var, random: Random) -> Result<Tensor> {
    let mut values = var.flatten_all()?.to_vec1::<f32>()?;
    if values.iter().all(|v| *v == 0.0) {
        random.stream("zeros").stream(name).fill_normal(0, &mut values);
        values.iter_mut().for_each(|v| *v *= 0.1);
    }
    Ok(Tensor::from_vec(values, var.shape(), &Device::Cpu)?)
}

/// Random inputs `[B, F, ...]` within the ranges of the signature.
#[derive(Debug, Clone)]
pub struct Inputs {
    batch: usize,
    frames: usize,
    floats: [(&'static str, usize, Vec<f32>); 2],
    indices: [(&'static str, usize, Vec<u32>); 3],
}

impl Inputs {
    /// Inputs of a case: every action is to be drawn, in training it is given.
    pub fn random(case: &Case) -> Self {
        let batch = case.batch;
        let frames = if case.pass == Pass::Step { STREAM_FRAMES } else { case.frames };
        let (random, rows) = (Random::new(3).stream("inputs"), batch * frames);
        let (mut features, mut uniform) = (vec![0.0; rows * FEATURES], vec![0.0; rows * ACTION]);
        random.stream("features").fill_normal(0, &mut features);
        random.stream("uniform").fill_uniform(0, &mut uniform);
        let draw = |name: &str, width: usize, classes: &dyn Fn(usize) -> u32| -> Vec<u32> {
            (0..rows * width).map(|i| random.stream(name).below(i as u64, classes(i % width))).collect()
        };
        let classes = |c: usize| u32::from(COMPONENTS[c].classes);
        let ids = draw("ids", IDS, &|column| if column < 4 { ACTION_STATES } else { CHARACTERS });
        let action = if case.pass == Pass::Train { draw("action", ACTION, &classes) } else { vec![SAMPLE; rows * ACTION] };
        Self {
            batch,
            frames,
            floats: [("features", FEATURES, features), ("uniform", ACTION, uniform)],
            indices: [("ids", IDS, ids), ("previous_action", ACTION, draw("previous", ACTION, &classes)), ("action", ACTION, action)],
        }
    }

    /// The inputs as tensors `[B, F, ...]`.
    pub fn tensors(&self) -> Result<NamedTensors> {
        let mut tensors = NamedTensors::new();
        for (name, width, values) in &self.floats {
            tensors.insert(*name, Tensor::from_slice(values, (self.batch, self.frames, *width), &Device::Cpu)?);
        }
        for (name, width, values) in &self.indices {
            tensors.insert(*name, Tensor::from_slice(values, (self.batch, self.frames, *width), &Device::Cpu)?);
        }
        Ok(tensors)
    }

    /// The inputs of frame `t` alone, `[B, 1, ...]`.
    fn frame(&self, t: usize) -> Self {
        Self {
            batch: self.batch,
            frames: 1,
            floats: self.floats.clone().map(|(n, w, v)| (n, w, pick_frame(&v, w, self.frames, t))),
            indices: self.indices.clone().map(|(n, w, v)| (n, w, pick_frame(&v, w, self.frames, t))),
        }
    }

    /// Every frame alone, in order.
    pub fn each_frame(&self) -> Vec<Self> {
        (0..self.frames).map(|t| self.frame(t)).collect()
    }

    /// Copies all inputs.
    pub fn copy_to(&self, to: &mut impl Feed) -> candle_models::Result<()> {
        self.floats.iter().try_for_each(|(name, _, values)| to.floats(name, values))?;
        self.indices.iter().try_for_each(|(name, _, values)| to.indices(name, values))
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

fn pick_frame<T: Copy>(values: &[T], width: usize, frames: usize, t: usize) -> Vec<T> {
    values.chunks(frames * width).flat_map(|row| row[t * width..][..width].iter().copied()).collect()
}

/// Outputs by name, `[B, F, ...]`, to compare.
pub type Answers = BTreeMap<String, Vec<f64>>;

/// A call copies the inputs in and runs one pass of the engine. A step walks through its frames and carries the state on;
/// a window starts from the initial state.
pub struct EngineCalls {
    runner: Runner,
    inputs: Vec<Inputs>,
    resets: Vec<bool>,
    next: usize,
}

impl EngineCalls {
    /// A runner for the case with its inputs.
    pub fn new(model: Arc<Policy>, case: &Case, inputs: &Inputs, place: &Place) -> Result<Self> {
        let engine = place.of_engine(case)?;
        let rows = case.batch * case.frames;
        Ok(match case.pass {
            Pass::Step => Self {
                runner: Runner::on(model, (case.batch, 1), &engine)?,
                inputs: inputs.each_frame(),
                resets: vec![false; rows],
                next: 0,
            },
            _ => Self {
                runner: Runner::on(model, (case.batch, case.frames), &engine)?,
                inputs: vec![inputs.clone()],
                resets: (0..rows).map(|row| row % case.frames == 0).collect(),
                next: 0,
            },
        })
    }

    /// The answers of one turn through the inputs.
    pub fn answers(&mut self) -> Result<Answers> {
        let (batch, turns, frames) = (self.inputs[0].batch, self.inputs.len(), self.inputs[0].frames);
        let mut answers: Answers = OUTPUTS.iter().map(|(n, w)| ((*n).to_owned(), vec![0.0; batch * turns * frames * w])).collect();
        for turn in 0..turns {
            self.run()?;
            for (name, width) in OUTPUTS {
                let Some(values) = answers.get_mut(name) else { continue };
                for row in 0..batch * frames {
                    // Of [B, turns, frames], where either turns or frames is 1.
                    let at = (row / frames * turns + turn) * frames + row % frames;
                    let found: Vec<f64> = match name {
                        "action" => self.runner.indices(name, row)?.iter().map(|&x| x.into()).collect(),
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

/// The answers that a peer wrote.
pub fn read_answers(path: &Path) -> Result<Answers> {
    let values = |t: &Tensor| -> Result<Vec<f64>> { Ok(t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?) };
    NamedTensors::load_safetensors(path)?.iter().map(|(name, t)| Ok((name.to_owned(), values(t)?))).collect()
}

/// How far `ours` and `theirs` are apart. Drawn actions may differ in one row of a thousand, where a random number falls
/// between two roundings of the same bound; these rows are left out, for what follows a draw depends on it.
pub fn agreement(ours: &Answers, theirs: &Answers, dtype: &str) -> Result<Agreement> {
    let empty = Vec::new();
    let actions = [ours, theirs].map(|answers| answers.get("action").unwrap_or(&empty));
    ensure!(actions[0].len() == actions[1].len(), "action: {} values of ours, {} of theirs", actions[0].len(), actions[1].len());
    let rows = actions[0].len() / ACTION;
    let drawn_apart: Vec<bool> = actions[0].chunks(ACTION).zip(actions[1].chunks(ACTION)).map(|(a, b)| a != b).collect();
    let apart = drawn_apart.iter().filter(|&&d| d).count();
    // Rounded weights move logits by more, and with them the draws that lie between two classes; whether they still play
    // alike is measured on replays, by the export.
    let (tolerance, most_apart) = if dtype == "f32" { (TOLERANCE, rows / 1000) } else { (NARROW_TOLERANCE, rows.div_ceil(10)) };
    let mut found = Agreement { output: "all".to_owned(), worst: 0.0, tolerance };
    if apart > most_apart {
        return Ok(Agreement { output: format!("action in {apart} of {rows} rows"), worst: f64::INFINITY, ..found });
    }
    for (name, a) in ours {
        let b = theirs.get(name).with_context(|| format!("{name}: the peer gave no such output"))?;
        ensure!(a.len() == b.len(), "{name}: {} values of ours, {} of theirs", a.len(), b.len());
        let width = a.len() / rows.max(1);
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            if drawn_apart.get(i / width.max(1)) == Some(&true) {
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
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_models::recurrent::Recurrent;

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
    fn a_missing_output_is_named() {
        let a = answers(1, |_| {});
        let b = answers(1, |b| drop(b.remove("value")));
        assert!(agreement(&a, &b, "f32").unwrap_err().to_string().starts_with("value:"));
    }

    #[test]
    fn engine_steps_answer_as_the_tensor_executor() {
        let directory = tempfile::tempdir().unwrap();
        for kind in ["mlp", "mamba"] {
            let network = Network::random(kind, Heads::Autoregressive, directory.path()).unwrap();
            let network = Network::open(&network.bundle).unwrap();
            for (pass, frames) in [(Pass::Step, 1), (Pass::Window, 5)] {
                let case = network.case(pass, 3, frames, 1);
                let inputs = Inputs::random(&case);
                let model = network.load().unwrap();
                let ours = EngineCalls::new(model.clone(), &case, &inputs, &Place::cpu()).unwrap().answers().unwrap();
                let state = model.initial_state(3).unwrap();
                let tensors = inputs.tensors().unwrap();
                let (outputs, _) = model.unroll(&tensors, &vec![false; 3 * inputs.frames], &state).unwrap();
                let file = directory.path().join("outputs.safetensors");
                outputs.save_safetensors(&file).unwrap();
                let found = agreement(&ours, &read_answers(&file).unwrap(), "f32").unwrap();
                assert!(found.holds(), "{kind} {pass:?}: {found:?}");
            }
        }
    }
}
