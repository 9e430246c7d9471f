//! The one trait: what an environment shows, takes and does.

use crate::{Pcg64, Result, Scene, VectorEnv};
use candle_models::agent::{Component, Observation};
use candle_models::search::Rules;
use candle_models::signature::TensorSpec;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Steps in a second (Hz) at which people watch what says nothing else.
pub(crate) const RATE: f32 = 15.0;

/// What an environment shows and takes, in the words of an agent's description: an agent for it is a network between the two.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The name: `cartpole`.
    pub name: Cow<'static, str>,
    /// What is seen in a step. Values of all inputs of floats lie one behind the other, in this order; those of indices likewise.
    pub observation: Vec<Observation>,
    /// What is done in a step. Classes of all components lie one behind the other, in this order; numbers likewise.
    pub action: Vec<Component>,
    /// Who plays: 1, or 2 who move in turn. The one to move sees the game from its own side, and gets the reward of its own move.
    pub players: usize,
    /// Steps after which an episode is truncated.
    pub max_steps: Option<u32>,
}

impl Spec {
    /// Floats of an observation.
    pub fn floats(&self) -> usize {
        self.width(false)
    }

    /// Indices of an observation.
    pub fn ids(&self) -> usize {
        self.width(true)
    }

    fn width(&self, ids: bool) -> usize {
        self.inputs().into_iter().filter(|input| input.ids == ids).map(|input| input.columns.len()).sum()
    }

    /// The inputs with their places in an observation.
    pub fn inputs(&self) -> Vec<Input> {
        let mut ends = [0, 0];
        let place = |input: &Observation| {
            let (ids, spec) = (matches!(input, Observation::Ids { .. }), input.spec());
            let end = &mut ends[usize::from(ids)];
            *end += spec.width();
            Input { columns: *end - spec.width()..*end, ids, spec }
        };
        self.observation.iter().map(place).collect()
    }

    /// Classes of an action: its columns.
    pub fn columns(&self) -> usize {
        self.action.iter().map(Component::columns).sum()
    }

    /// Numbers of an action.
    pub fn numbers(&self) -> usize {
        self.action.iter().map(Component::numbers).sum()
    }

    /// Classes of all columns together: the length of a mask of legal ones.
    pub fn classes(&self) -> usize {
        self.action.iter().map(|component| component.columns() * component.classes()).sum()
    }
}

/// An input of an observation, and where it lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its name, and its shape in a step.
    pub spec: TensorSpec,
    /// Whether it lies among the indices.
    pub ids: bool,
    /// Its place among the floats, or among the indices.
    pub columns: Range<usize>,
}

/// Another way to look at a game that changes nothing of it, as a mirror: value i of what is seen in the other game is value `floats[i]` of this one, class
/// i of all columns together is class `classes[i]` of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symmetry {
    /// Places of the floats.
    pub floats: Vec<usize>,
    /// Places of the classes.
    pub classes: Vec<usize>,
}

/// An action: the class of each column, and the numbers of components that have numbers.
#[derive(Debug, Clone, Copy)]
pub struct Action<'a> {
    /// A class for each column.
    pub classes: &'a [u32],
    /// Numbers, within their components' bounds.
    pub numbers: &'a [f32],
}

/// Where an observation is written to.
#[derive(Debug)]
pub struct View<'a> {
    /// Values of the inputs of floats, in the order of the [`Spec`].
    pub floats: &'a mut [f32],
    /// Indices, likewise.
    pub ids: &'a mut [u32],
}

/// What a step gave.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Step {
    /// The reward of the one who moved.
    pub reward: f64,
    /// Whether the game is over: nothing is to be expected of what comes next.
    pub terminated: bool,
    /// Whether the episode ends although the game is not over. Those of [`Spec::max_steps`] are added by [`Vector`](crate::Vector).
    pub truncated: bool,
}

/// An environment: plain data with rules. What it is to be, it is after a reset; [`Default`] makes one that nobody has reset yet.
///
/// Everything random comes from a generator of its own, which a reset seeds. A copy goes on exactly as the original does, and what serde writes of
/// it is all of it: searches fork environments, checkpoints keep them.
pub trait Env: Clone + Default + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// What it shows and takes: the same for every one of its kind.
    fn spec() -> Spec;

    /// Begins an episode, with random numbers from `random` on.
    fn reset(&mut self, random: Pcg64);

    /// The generator as it stands: the next episode goes on with it.
    fn random(&self) -> &Pcg64;

    /// Does something.
    ///
    /// # Errors
    /// [`EnvError::illegal`](crate::EnvError::illegal), and whatever an environment of one's own cannot do. After an error it is as it was before.
    fn step(&mut self, action: Action) -> Result<Step>;

    /// Writes what is seen now, by the one who is to move.
    fn observe(&self, to: View);

    /// Writes which classes of each column are legal now, all columns one behind the other.
    fn legal(&self, mask: &mut [bool]) {
        mask.fill(true);
    }

    /// Who is to move.
    fn player(&self) -> usize {
        0
    }

    /// Ways to look at it that change nothing but the order of floats and classes: what is learnt of a game holds for all of them.
    fn symmetries() -> Vec<Symmetry> {
        Vec::new()
    }

    /// The rules, where a search can go by them: of a game without chance whose one input of floats says where it stands.
    fn rules() -> Option<Arc<dyn Rules>> {
        None
    }

    /// What it looks like now.
    fn draw(&self) -> Scene;

    /// Steps in a second (Hz) where people watch or play.
    fn rate() -> f32 {
        RATE
    }

    /// The same for two at once, each a lane of it: where a person plays against a network. `None` where that is no question.
    fn for_two() -> Option<Box<dyn VectorEnv>> {
        None
    }
}
