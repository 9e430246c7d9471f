//! Training of pursuers: they imitate a rule that knows how a target moves, and have to remember where it was to do so.

use super::{Pursuer, PursuerConfig, PursuerFamily};
use candle_core::{DType, Device, Tensor};
use candle_models::bundle::{self, CARD, Manifest};
use candle_models::device::Purpose;
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::registry::Family;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use candle_train::command::{Presets, RunArguments, TrainFamily, Training, command_line};
use candle_train::export::Skeleton;
use candle_train::overlay;
use candle_train::parallel::share;
use candle_train::plan::{TrainingPlan, TrainingResult};
use candle_train::report::About;
use candle_train::run::{Budget, Ended, Place, Resources, Run, Stop, TrainerConfig};
use candle_train::summary::Summary;
use candle_train::task::{Communicator, Context, EVALUATION_SEED, Evaluation, Loss, Score, Task};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;

/// Frames of a chase.
const FRAMES: usize = 12;

/// What `--config` and `--set` change, and `config.toml` keeps.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChaseConfig {
    seed: u64,
    steps: u64,
    /// Chases of a step.
    batch: usize,
    model: PursuerConfig,
    trainer: TrainerConfig,
}

/// The task: chases of targets that go straight on, with what the rule steers in each frame `[n, FRAMES, 2]`.
struct Chase(ChaseConfig, Device);

impl Chase {
    fn chases(&self, random: Random, rows: Range<usize>) -> Result<(NamedTensors, Tensor)> {
        let (count, [mut position, mut speed, mut steering]) = (rows.len(), [const { Vec::new() }; 3]);
        for random in rows.map(|row| random.at(row as u64)) {
            let [x, y, dx, dy] = std::array::from_fn(|i| random.normal(i as u64) * if i < 2 { 1.0 } else { 0.2 });
            let fast = 0.5 + random.stream("speed").uniform(0);
            for t in 0..FRAMES {
                let [x, y] = [x + t as f32 * dx, y + t as f32 * dy];
                // Towards where the target will be; a fast pursuer looks less far ahead.
                let aim = [x + 3.0 * dx / fast, y + 3.0 * dy / fast];
                let distance = aim[0].hypot(aim[1]).max(0.1);
                position.extend([x, y]);
                speed.push(fast);
                steering.extend(aim.map(|a| a / distance));
            }
        }
        let tensor = |values, width| Tensor::from_vec(values, (count, FRAMES, width), &self.1);
        let inputs = [("position".to_owned(), tensor(position, 2)?), ("speed".to_owned(), tensor(speed, 1)?)];
        Ok((inputs.into_iter().collect(), tensor(steering, 2)?))
    }

    /// The mean squared error of what a network steers.
    fn error(&self, parameters: &Params, (inputs, steering): &(NamedTensors, Tensor)) -> Result<Tensor> {
        let (pursuer, count) = (Pursuer::network(&self.0.model, parameters)?, steering.dim(0)?);
        let resets: Vec<bool> = (0..count * FRAMES).map(|i| i % FRAMES == 0).collect();
        let (outputs, _) = pursuer.unroll(inputs, &resets, &pursuer.initial_state(count)?)?;
        Ok((outputs.get("steering")?.to_dtype(DType::F32)? - steering)?.sqr()?.mean_all()?)
    }
}

impl Task for Chase {
    type Batch = (NamedTensors, Tensor);

    fn next_batch(&mut self, context: &Context) -> Result<Self::Batch> {
        self.chases(context.noise, share(self.0.batch, context.ranks.rank(), context.ranks.size()))
    }

    fn loss(&mut self, parameters: &Params, batch: &Self::Batch, _: &Context) -> Result<Loss> {
        let samples = batch.1.dim(0)?;
        Ok(Loss { weight: samples as f64 / self.0.batch as f64, ..Loss::new(self.error(parameters, batch)?, samples) })
    }

    fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> Result<Evaluation> {
        let error = self.error(parameters, &self.chases(Random::new(EVALUATION_SEED).stream("evaluation"), 0..256)?)?;
        Ok(Evaluation::new(Score::minimise(error.to_scalar::<f32>()?.into()), []))
    }
}

/// A run that is ready to start.
struct Plan(ChaseConfig, Resources);

/// What it gave: how it ended, what it was, and the mean squared error on chases that it was not trained on.
struct Trained(Ended, ChaseConfig, Evaluation);

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.1
    }

    fn about(&self) -> Result<About> {
        let params = Params::description();
        Pursuer::network(&self.0.model, &params)?;
        let data = vec!["fresh chases in every step".to_owned()];
        Ok(About::new(command_line(), data, &Summary::new(&params.specs()), overlay::to_toml(&self.0)?))
    }

    fn describe(&self) -> String {
        format!("{} steps of {} chases", self.0.steps, self.0.batch)
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let (about, Self(config, resources)) = (self.about()?, self);
        let (device, ranks) = (resources.device.clone(), resources.ranks.clone());
        let params = Params::init(Random::new(config.seed).stream("parameters"), &device);
        Pursuer::network(&config.model, &params)?;
        // With it a checkpoint can become a bundle although the run was killed.
        let skeleton = Some(Skeleton { manifest: Manifest::new(PursuerFamily.name(), &config.model)?, files: Vec::new() });
        let run = Run { about, resources, skeleton, ..Run::new(config.trainer.clone(), Budget::Steps(config.steps), config.seed)? };
        let mut task = Chase(config.clone(), device);
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let evaluation = task.evaluate(&ended.params(), &*ranks)?;
        Ok(Trained(ended, config, evaluation))
    }
}

impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.0
    }

    fn save(&self, bundle: &Path) -> Result<String> {
        let figures = format!("mean squared error {:.4}\n", self.2.results()["score"]);
        let card = format!("# Pursuer\n\n{figures}\n```sh\n{}\n```\n", command_line());
        let manifest = Manifest::new(PursuerFamily.name(), &self.1.model)?;
        bundle::save(bundle, &manifest, &self.0.parameters, serde_json::Value::Null, &[(CARD, card.into_bytes())])?;
        Ok(figures)
    }
}

impl TrainFamily for PursuerFamily {
    fn trainings(&self) -> &'static [&'static dyn Training] {
        &[&PursuerTraining]
    }
}

struct PursuerTraining;

impl Training for PursuerTraining {
    fn name(&self) -> &'static str {
        PursuerFamily.name()
    }

    fn about(&self) -> &'static str {
        "Trains a pursuer to steer to where its target will be"
    }

    fn presets(&self) -> Presets {
        Presets { names: &["small"], default: "small", help: "small" }
    }

    fn train(&self, asked: &RunArguments, _: &clap::ArgMatches) -> anyhow::Result<()> {
        let mut trainer = TrainerConfig { log_every: 100, evaluate_every: 500, ..TrainerConfig::default() };
        (trainer.schedule.peak, trainer.schedule.warmup) = (1e-2, 10);
        let small = ChaseConfig { seed: 1, steps: 2000, batch: 32, model: PursuerConfig { hidden: 32 }, trainer };
        let config: ChaseConfig = overlay::resolve(&small, asked.file()?.as_deref(), &asked.sets, &overlay::kind_alone)?;
        let resources = asked.resources(self.name(), Purpose::Training)?;
        if config.batch < resources.ranks.size() {
            return Err(Error::config("batch", "expected a chase for each rank").into());
        }
        asked.train(Plan(config, resources))
    }
}
