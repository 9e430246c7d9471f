//! Networks that play in environments, all lanes in step: what they are shown, and what they choose.

use candle_envs::{Actions, Frame, Input, Spec};
use candle_models::agent::Component;
use candle_models::engine::{Model, Runner};
use candle_models::random::{Random, categorical};
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::borrow::Borrow;
use std::sync::Arc;

/// What is known of the environments of a run.
#[derive(Debug, Clone)]
pub struct Game {
    /// What they show and take.
    pub spec: Spec,
    /// What they show, with its places.
    pub inputs: Vec<Input>,
    /// Floats and indices of an observation, classes of a mask.
    pub widths: [usize; 3],
    /// The class that stands for the action before the first step, in every column.
    neutral: Vec<u32>,
    /// Bounds of each number.
    bounds: Vec<[f32; 2]>,
}

impl Game {
    /// Of environments of that kind.
    pub fn new(spec: Spec) -> Self {
        let neutral = spec.action.iter().flat_map(|component| vec![component.neutral(); component.columns()]).collect();
        let bounds = spec.action.iter().flat_map(|component| {
            let bounds = component.gaussian().map(|gaussian| [gaussian.low, gaussian.high]);
            vec![bounds.unwrap_or([f32::NEG_INFINITY, f32::INFINITY]); component.numbers()]
        });
        let bounds = bounds.collect();
        let (inputs, widths) = (spec.inputs(), [spec.floats(), spec.ids(), spec.classes()]);
        Self { spec, inputs, widths, neutral, bounds }
    }

    /// Refuses a network that wants an input that the environments do not show, or more or less of one.
    ///
    /// # Errors
    /// If it does.
    pub fn check(&self, model: &dyn Model) -> Result<()> {
        for spec in &model.signature().inputs {
            let shown = self.inputs.iter().find(|input| input.spec.name == spec.name);
            if spec.is_required() && shown.is_none() {
                let names = self.inputs.iter().map(|input| input.spec.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(Error::tensor(&spec.name, format!("one of what {} shows: {names}", self.spec.name), "a network that reads it"));
            }
            self.fits(spec, shown.map(|input| input.columns.len()))?;
        }
        Ok(())
    }

    /// Also refuses a network whose action is not that of the environments.
    ///
    /// # Errors
    /// As [`check`](Self::check), or if it is not.
    pub fn check_actor(&self, model: &dyn Model) -> Result<()> {
        self.check(model)?;
        let [columns, numbers] = self.action();
        let signature = model.signature();
        let drawn = signature.inputs.iter().find(|spec| spec.name == "uniform");
        let action = signature.outputs.iter().find(|spec| spec.name == "action");
        drawn.map_or(Ok(()), |spec| self.fits(spec, Some(columns + numbers)))?;
        action.map_or(Ok(()), |spec| self.fits(spec, Some(columns)))
    }

    fn fits(&self, spec: &TensorSpec, width: Option<usize>) -> Result<()> {
        match width {
            Some(width) if width != spec.width() => Err(Error::tensor(
                &spec.name,
                format!("{width} values as {} has", self.spec.name),
                format!("a network of {}", spec.width()),
            )),
            _ => Ok(()),
        }
    }

    /// Columns of an action, and numbers.
    pub fn action(&self) -> [usize; 2] {
        [self.neutral.len(), self.bounds.len()]
    }
}

/// One network that plays along, all lanes in step.
pub struct Player {
    runner: Runner,
    /// Whether it wants to know the last action.
    knows_last: bool,
}

impl Player {
    /// A network with that state, over so many lanes.
    ///
    /// # Errors
    /// If the network cannot be run, or wants an input that environments do not show.
    pub fn new(model: Arc<dyn Model>, game: &Game, lanes: usize, state: Option<&NamedTensors>) -> Result<Self> {
        let knows_last = model.signature().inputs.iter().any(|spec| spec.name == "previous_action");
        game.check(&*model)?;
        let mut runner = Runner::new(model, lanes, rayon::current_num_threads())?;
        if let Some(state) = state {
            runner.restore(state)?;
        }
        Ok(Self { runner, knows_last })
    }

    /// Its state.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn state(&mut self) -> Result<NamedTensors> {
        self.runner.save()
    }

    /// What it says of what the environments show, after the last actions.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn watch(&mut self, game: &Game, frame: &Frame, last: &[u32]) -> Result<&Runner> {
        self.see(game, frame, last)?;
        self.runner.step(&frame.first)?;
        Ok(&self.runner)
    }

    /// Shows it what the environments show, and the last actions.
    fn see(&mut self, game: &Game, frame: &Frame, last: &[u32]) -> Result<()> {
        let (lanes, [floats, ids, _]) = (frame.players.len(), game.widths);
        for lane in 0..lanes {
            for Input { spec, ids: is_ids, columns } in &game.inputs {
                let (name, columns) = (&spec.name, columns.clone());
                match is_ids {
                    true => self.runner.indices_mut(name, lane)?.copy_from_slice(&frame.ids[lane * ids..][columns]),
                    false => self.runner.floats_mut(name, lane)?.copy_from_slice(&frame.floats[lane * floats..][columns]),
                }
            }
            if self.knows_last {
                let columns = game.neutral.len();
                self.runner.indices_mut("previous_action", lane)?.copy_from_slice(&last[lane * columns..][..columns]);
            }
        }
        Ok(())
    }
}

/// How actions are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// The most likely class, the mean number.
    Greedy,
    /// Drawn.
    Sample,
}

impl Manner {
    /// `greedy` or `sample`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Sample => "sample",
        }
    }
}

/// An actor in its environments: sees, chooses, remembers its last actions.
pub struct Acting<G> {
    game: G,
    player: Player,
    /// Classes of the last actions `[lanes, columns]`.
    last: Vec<u32>,
    drawn: Vec<f32>,
}

/// What was chosen in a step.
#[derive(Debug, Default)]
pub struct Chosen {
    /// What the environments get: numbers within bounds.
    pub actions: Actions,
    /// The numbers as they were drawn.
    pub raw: Vec<f32>,
    /// The distributions that they were drawn from: logits of classes, means and logarithms of deviations of numbers, lane by lane.
    pub distributions: [Vec<f32>; 2],
}

impl<G: Borrow<Game>> Acting<G> {
    /// An actor that has just seen the actions `last`, `[lanes, columns]`; without them it begins.
    pub fn new(game: G, player: Player, lanes: usize, last: Option<Vec<u32>>) -> Self {
        let last = last.unwrap_or_else(|| game.borrow().neutral.repeat(lanes));
        Self { game, player, last, drawn: Vec::new() }
    }

    /// The state of its network.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn state(&mut self) -> Result<NamedTensors> {
        self.player.state()
    }

    /// The classes of the last actions, those of a lane that begins anew neutral.
    pub fn last(&mut self, frame: &Frame) -> &[u32] {
        let neutral = &self.game.borrow().neutral;
        let columns = neutral.len();
        for (lane, _) in frame.first.iter().enumerate().filter(|(_, first)| **first) {
            self.last[lane * columns..][..columns].copy_from_slice(neutral);
        }
        &self.last
    }

    /// Chooses actions for what the environments show; `random` is this step's address, the same for a lane however many there are beside it.
    ///
    /// # Errors
    /// If a class cannot be chosen and the network's heads do not know, or it cannot be run.
    pub fn choose(&mut self, frame: &Frame, choice: Manner, random: impl Fn(usize) -> Random) -> Result<Chosen> {
        self.last(frame);
        let (game, lanes) = (self.game.borrow(), frame.players.len());
        self.player.see(game, frame, &self.last)?;
        let ([columns, numbers], [_, _, classes]) = (game.action(), game.widths);
        self.drawn.resize(columns + numbers, -1.0);
        for lane in 0..lanes {
            if choice == Manner::Sample {
                random(lane).fill_uniform(0, &mut self.drawn);
            }
            self.player.runner.floats_mut("uniform", lane)?.copy_from_slice(&self.drawn);
        }
        self.player.runner.step(&frame.first)?;
        let mut chosen = Chosen::default();
        for lane in 0..lanes {
            let legal = &frame.legal[lane * classes..][..classes];
            if columns > 0 {
                let own = self.player.runner.indices("action", lane)?;
                match legal.contains(&false) && !frame.terminated[lane] {
                    true => {
                        let uniform = if choice == Manner::Sample { random(lane).uniform(0) } else { -1.0 };
                        chosen.actions.classes.push(legal_class(&game.spec, self.player.runner.floats("logits", lane)?, legal, uniform)?);
                    }
                    false => chosen.actions.classes.extend_from_slice(own),
                }
            }
            for (output, there, to) in [("logits", columns, 0), ("gaussian", numbers, 1)] {
                if there > 0 {
                    chosen.distributions[to].extend_from_slice(self.player.runner.floats(output, lane)?);
                }
            }
            for component in game.spec.action.iter().filter(|component| component.numbers() > 0) {
                chosen.raw.extend_from_slice(self.player.runner.floats(component.name(), lane)?);
            }
        }
        let within = |(i, x): (usize, &f32)| x.clamp(game.bounds[i % numbers][0], game.bounds[i % numbers][1]);
        chosen.actions.numbers = chosen.raw.iter().enumerate().map(within).collect();
        self.last.copy_from_slice(&chosen.actions.classes);
        Ok(chosen)
    }
}

/// A class that can be chosen, where a network did not know which those are.
fn legal_class(spec: &Spec, logits: &[f32], legal: &[bool], uniform: f32) -> Result<u32> {
    let [Component::Discrete { .. }] = &spec.action[..] else {
        let reason = format!("{}: some classes cannot be chosen, which an action of several components does not know", spec.name);
        return Err(Error::config("env", reason));
    };
    // Two classes have one logit, that of class 1 against class 0.
    let logits = if let [one] = logits { &[0.0, *one][..] } else { logits };
    let allowed = |class: &usize| legal[*class];
    let best = (0..logits.len()).filter(allowed).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let Some(best) = best else { return Ok(0) };
    if uniform < 0.0 {
        return Ok(best as u32);
    }
    let share = |class: usize| if legal[class] { (logits[class] - logits[best]).exp() } else { 0.0 };
    Ok(categorical(uniform, (0..logits.len()).map(share)) as u32)
}
