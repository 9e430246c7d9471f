//! What a timed call is: a model, its pass, the sizes, and how and where it runs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What was called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The network, `mamba 2x256, autoregressive heads`.
    pub model: String,
    /// Backbone alone, `mamba`.
    pub backbone: String,
    /// What one call does.
    pub pass: Pass,
    /// Rows that one call answers.
    pub batch: usize,
    /// Frames of every row in one call; 1 for a step.
    pub frames: usize,
    /// Threads that one call may use.
    pub threads: usize,
    /// `cpu` or `cuda:0`.
    pub device: String,
    /// `f32`.
    pub dtype: String,
    /// How a pass is run.
    #[serde(default)]
    pub execution: Execution,
}

/// How a pass is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Execution {
    /// As the engine prepared it: on the CPU a recorded program with packed weights, on a GPU one graph.
    #[default]
    Captured,
    /// Operation by operation: on the CPU on plain tensors, on a GPU kernel by kernel.
    Eager,
}

impl Execution {
    /// `captured`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Captured => "captured",
            Self::Eager => "eager",
        }
    }
}

/// The kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// One frame with the state of the frame before.
    Step,
    /// A window of frames from the initial state.
    Window,
    /// Forward, backward and optimiser step over a window.
    Train,
    /// Products of square matrices, as many as there are frames, of `batch` rows.
    #[value(skip)]
    Product,
}

impl Case {
    /// A captured pass of a model on the CPU: batch, frames and threads of a call. The first word of the model's name is its kind.
    pub fn of(model: &str, pass: Pass, [batch, frames, threads]: [usize; 3], dtype: &str) -> Self {
        Self {
            model: model.to_owned(),
            backbone: model.split(' ').next().unwrap_or_default().to_owned(),
            pass,
            batch,
            frames,
            threads,
            device: "cpu".to_owned(),
            dtype: dtype.to_owned(),
            execution: Execution::Captured,
        }
    }

    /// `step`, `window 60`, `train 60`.
    pub fn pass_name(&self) -> String {
        match self.pass {
            Pass::Step => "step".to_owned(),
            Pass::Window => format!("window {}", self.frames),
            Pass::Train => format!("train {}", self.frames),
            Pass::Product => format!("product {0} x {0} x {0}", self.batch),
        }
    }

    /// What the roofline calls a pass of a model, and its shape.
    pub fn placed_as(&self) -> [String; 2] {
        [format!("{}, {}", self.model, self.dtype), format!("{}, batch {}", self.pass_name(), self.batch)]
    }
}

impl fmt::Display for Case {
    /// `mlp 512-512, step, batch 8, 2 threads`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, batch {}, {} threads", self.model, self.pass_name(), self.batch, self.threads)
    }
}
