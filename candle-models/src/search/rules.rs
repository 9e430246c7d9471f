//! Planning where the rules are known: what comes of an action is played, and a network says only what that is worth (Silver et al. 2018).

use super::planner::{Outputs, sole};
use super::tree::UNBOUNDED;
use super::{Dynamics, Expansion};
use crate::Result;
use crate::engine::{Model, Placement, Runner};
use candle_core::DType;
use std::ops::Range;
use std::sync::Arc;

/// Rules of a game without chance that shows all there is to know of it: what is seen says where it stands.
pub trait Rules: Send + Sync {
    /// Makes a move where a game shows `seen`: writes what it then shows to whoever moves next, and what that one can do. What loses at once need not
    /// be among it while something else is. Where a game is over, or an action cannot be taken, nothing changes, nobody can do anything, and it is over.
    fn play(&self, seen: &[f32], action: u32, next: &mut [f32], legal: &mut [bool]) -> Outcome;

    /// The least and the most that rewards can add up to from any state on, for the one who moves.
    fn bounds(&self) -> [f32; 2] {
        UNBOUNDED
    }
}

/// What comes of a move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// What it earns, for the one who moves.
    pub reward: f32,
    /// The least and the most that all later rewards can add up to, for the one who moves next: [`Rules::bounds`], or what the rules see at once, as a
    /// win in one move, or a loss whatever that one does. `None` where the game is over.
    pub next: Option<[f32; 2]>,
}

impl Outcome {
    /// The end of a game.
    pub fn over(reward: f32) -> Self {
        Self { reward, next: None }
    }
}

/// The network over what the rules make of every action, at its place. An embedding is what is seen.
pub(super) struct ByRules {
    rules: Arc<dyn Rules>,
    runner: Runner,
    /// The network's only input.
    pub(super) seen: Range<usize>,
    outputs: Outputs,
    discount: f32,
    resets: Vec<bool>,
    legal: Vec<bool>,
    outcomes: Vec<Outcome>,
}

impl ByRules {
    pub fn new(initial: &Arc<dyn Model>, rules: &Arc<dyn Rules>, (rows, place): (usize, &Placement), discount: f32) -> Result<Self> {
        let seen = sole(initial.signature())?;
        let runner = Runner::on(initial.clone(), (rows, 1), place)?;
        let outputs = Outputs::of(&runner)?;
        Ok(Self {
            rules: rules.clone(),
            seen: runner.input_place(&seen.name, DType::F32)?,
            discount,
            resets: vec![true; rows],
            legal: vec![false; rows * outputs.logits.len()],
            outcomes: vec![Outcome::over(0.0); rows],
            outputs,
            runner,
        })
    }
}

impl Dynamics for ByRules {
    fn expand(&mut self, e: &mut Expansion) -> Result<()> {
        let actions = self.outputs.logits.len();
        for row in 0..e.rows() {
            let (action, legal) = (e.actions()[row], &mut self.legal[row * actions..][..actions]);
            let (from, to) = e.embeddings(row);
            self.outcomes[row] = self.rules.play(from, action, to, legal);
            self.runner.inputs_mut(row).0[self.seen.clone()].copy_from_slice(to);
        }
        self.runner.step(&self.resets)?;
        for row in 0..e.rows() {
            let (found, Outcome { reward, next }) = (self.runner.outputs(row), self.outcomes[row]);
            let (logits, legal) = (&mut e.logits[row * actions..][..actions], &self.legal[row * actions..][..actions]);
            for ((to, logit), legal) in logits.iter_mut().zip(&found[self.outputs.logits.clone()]).zip(legal) {
                *to = if *legal { *logit } else { f32::MIN };
            }
            (e.rewards[row], e.bounds[row]) = (reward, next.unwrap_or_default());
            (e.discounts[row], e.values[row]) = if next.is_some() { (self.discount, found[self.outputs.value]) } else { (0.0, 0.0) };
        }
        Ok(())
    }

    fn bounds(&self) -> [f32; 2] {
        self.rules.bounds()
    }
}
