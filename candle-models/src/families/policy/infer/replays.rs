//! A policy that watches replays.

use super::page::{Pages, Recording};
use super::watch::{GREEDY, Moment, Watch, describe, uniform};
use super::{Bundle, Options, Placement};
use crate::engine::{Histogram, Model, Runner};
use crate::families::policy::BASELINES;
use crate::families::policy::actions::{self, ACTION, Action, COMPONENTS, GROUP_NAMES, GROUPS, LOGITS, SAMPLE};
use crate::families::policy::baselines::{Baselines, Likelihood, TABLE_NAMES, TABLES, table};
use crate::families::policy::calibration::Calibration;
use crate::families::policy::game::Game;
use crate::families::policy::replay::Reader as ReplayReader;
use crate::infer::{Column, Output, Reader, Source, line, percentiles};
use crate::random::Random;
use crate::{Error, cli};
use anyhow::{Result, bail};
use safetensors::tensor::Dtype;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A policy that watches replays: in every frame it scores the recorded action and says which it would choose.
///
/// Each watched player has two rows of the batch. Both see the same; the first is given the recorded action, so that its
/// logits say how likely that was, the second chooses. Memory does not grow with the replay.
pub struct Replays {
    model: Arc<dyn Model>,
    place: Placement,
    /// Of the replay that is watched now.
    runner: Runner,
    players: usize,
    watch: Rc<Watch>,
    sampling: Option<Random>,
    baselines: Option<Baselines>,
    pages: Option<Pages>,
    /// Print every n-th frame.
    every: Option<usize>,
    likelihoods: [Likelihood; TABLES],
    likelihood: Likelihood,
    calibration: Calibration,
    times: Histogram,
    frames: u64,
}

/// Rows of one player.
const ROWS: usize = 2;

/// What one player did and what the policy says to it.
pub struct Decision<'a> {
    /// Which of the watched players, and how many frames were predicted before.
    place: (usize, usize),
    pub port: u8,
    /// The frame acted on: its place in the replay and its id.
    pub frame: usize,
    id: i32,
    pub recorded: Action,
    pub chosen: Action,
    pub nll: [f32; GROUPS],
    pub logits: &'a [f32; LOGITS],
    value: f32,
    time: Duration,
}

/// Where decisions go.
type Sink<'a> = dyn FnMut(&Decision) -> Result<()> + 'a;

#[derive(Serialize)]
struct FrameLine<'a> {
    file: String,
    port: u8,
    frame: i32,
    recorded: String,
    chosen: String,
    nll: BTreeMap<&'a str, f32>,
    value: f32,
}

impl Replays {
    /// A watcher for a bundle whose model has been loaded.
    pub fn new(bundle: &Bundle, model: &Arc<dyn Model>, options: &Options, place: &Placement) -> Result<Self> {
        let watch = Rc::new(Watch::new(bundle, &options.choosing.watched)?);
        let baselines = bundle.read_named(BASELINES)?.map(|tensors| Baselines::from_tensors(&tensors));
        let baselines = baselines.transpose().map_err(|e| Error::file(bundle.dir().join(BASELINES), e))?;
        let pages = options.html.as_deref().map(|place| Pages::new(place, bundle, options)).transpose()?;
        let players = if options.choosing.watched.port.is_some() { 1 } else { 2 };
        Ok(Self {
            model: model.clone(),
            place: *place,
            runner: Runner::on(model.clone(), (players * ROWS, 1), place)?,
            players,
            watch,
            sampling: options.choosing.sampling(),
            baselines,
            pages,
            every: None,
            likelihoods: [Likelihood::default(); TABLES],
            likelihood: Likelihood::default(),
            calibration: Calibration::default(),
            times: Histogram::default(),
            frames: 0,
        })
    }

    /// Prints every `every`-th frame of the replays that follow.
    pub fn show(&mut self, every: Option<usize>) {
        self.every = every;
    }

    /// Rows of a pass.
    fn rows(&self) -> usize {
        self.players * ROWS
    }

    /// Watches one replay.
    fn watch(&mut self, path: &Path, output: &mut Output) -> Result<()> {
        let reader = ReplayReader::open(path)?;
        self.prepare(path, reader.game())?;
        self.start_output(path, reader.game(), output)?;
        let every = self.every;
        let mut recording = self.pages.as_ref().map(|_| Recording::new(path)).transpose()?;
        let (frames, incomplete) = self.decide(path, reader, &mut |decision| {
            if let Some(recording) = &mut recording {
                recording.add(decision)?;
            }
            decision.write(path, every, output)
        })?;
        if let (Some(pages), Some(recording)) = (&mut self.pages, &recording) {
            pages.write(path, recording)?;
        }
        if let Some(reason) = &incomplete {
            cli::warn(format_args!("{}: incomplete, {frames} frames recovered: {reason}", path.display()));
        }
        Ok(())
    }

    /// The chosen action and the recorded one's nats by component, for every decision of a replay.
    pub fn choices(&mut self, path: &Path) -> Result<Vec<(Action, [f32; GROUPS])>> {
        let (reader, mut choices) = (ReplayReader::open(path)?, Vec::new());
        self.prepare(path, reader.game())?;
        self.decide(path, reader, &mut |decision| {
            choices.push((decision.chosen, decision.nll));
            Ok(())
        })?;
        Ok(choices)
    }

    /// Makes room for the players of a game.
    fn prepare(&mut self, path: &Path, game: &Game) -> Result<()> {
        let players = self.watch.watched(path, game)?.len();
        if players != self.players {
            self.runner = Runner::on(self.model.clone(), (players * ROWS, 1), &self.place)?;
            self.players = players;
        }
        Ok(())
    }

    /// Hands out the decisions of a replay; tells its frames and, of a damaged one, what is wrong with it.
    fn decide<R: Read + Seek>(&mut self, path: &Path, reader: ReplayReader<R>, sink: &mut Sink) -> Result<(usize, Option<String>)> {
        let watch = self.watch.clone();
        watch.replay(path, reader, &mut |view, players, now| self.step(path, view, players, now, sink))
    }

    fn start_output(&self, path: &Path, game: &Game, output: &mut Output) -> Result<()> {
        match output {
            Output::Table if self.every.is_some() => {
                line(format_args!("{}: {}", path.display(), describe(game)))?;
                line(format_args!(
                    "{:>7} {:>4}  {:<36} {:<36} {:>7} {:>5}",
                    "frame", "port", "recorded", "chosen (= the same)", "nats", "us"
                ))?;
            }
            Output::Tensors(..) => {
                // Sizes stand before values in the file, so the frames are counted in a reading of their own.
                let frames = self.watch.frames(path)?;
                output.start_tensors(&columns(), &[self.players, frames])?;
            }
            _ => {}
        }
        Ok(())
    }

    /// One pass: `view` holds the frame seen, `now` is the one acted on.
    fn step(&mut self, path: &Path, view: &Game, players: &[usize], now: &Moment, sink: &mut Sink) -> Result<()> {
        let step = self.watch.step(now);
        let start = Instant::now();
        for (sequence, &player) in players.iter().enumerate() {
            self.observe(path, view, (sequence, player), now)?;
        }
        self.runner.step(&[step == 0; 2 * ROWS][..self.rows()])?;
        let time = start.elapsed();
        self.times.record(time);
        self.frames += 1;
        for (sequence, &player) in players.iter().enumerate() {
            let [recorded, last, earlier] = now.actions.each_ref().map(|actions| actions[player]);
            let logits: &[f32; LOGITS] = self.runner.floats("logits", sequence * ROWS)?.try_into()?;
            let decision = Decision {
                place: (sequence, step),
                port: view.players[player].port + 1,
                frame: now.frame,
                id: now.id,
                recorded,
                chosen: Action::from_ids(self.runner.indices("action", sequence * ROWS + 1)?)?,
                nll: actions::nll(logits, &recorded),
                logits,
                value: self.runner.floats("value", sequence * ROWS)?[0],
                time,
            };
            self.calibration.add(logits, &recorded);
            self.likelihood.add(&last, &recorded, &decision.nll, &actions::most_likely(logits));
            if let Some(baselines) = &self.baselines {
                for (likelihood, score) in self.likelihoods.iter_mut().zip(baselines.score([&last, &earlier], &recorded)) {
                    likelihood.add(&last, &recorded, &score.nll, &score.likely);
                }
            }
            sink(&decision)?;
        }
        Ok(())
    }

    /// Fills the rows of one player.
    fn observe(&mut self, path: &Path, view: &Game, (sequence, player): (usize, usize), now: &Moment) -> Result<()> {
        let seen = self.watch.see(view, player)?;
        let [recorded, last, _] = now.actions.each_ref().map(|actions| actions[player]);
        let uniform = uniform(self.sampling, path, view.players[player].port, now.frame);
        for (row, wanted, uniform) in [(sequence * ROWS, recorded.to_ids(), GREEDY), (sequence * ROWS + 1, [SAMPLE; ACTION], uniform)] {
            seen.fill(&mut self.runner, row, &last, &wanted, &uniform)?;
        }
        Ok(())
    }

    /// The likelihood table of everything watched, beside the bundle's baselines.
    fn table(&self, model: &str) -> String {
        let baselines = self.baselines.is_some().then(|| TABLE_NAMES.into_iter().zip(self.likelihoods));
        let mut rows: Vec<(&str, Likelihood)> = baselines.into_iter().flatten().collect();
        rows.push((model, self.likelihood));
        let all = self.likelihood.all();
        let accuracy = GROUP_NAMES.iter().zip(all.correct).map(|(name, n)| format!("{name} {:.1}%", 100.0 * n as f64 / all.frames as f64));
        let accuracy = accuracy.collect::<Vec<_>>().join(", ");
        let without = if self.baselines.is_some() { "" } else { " (the bundle has no baselines to compare with)" };
        format!(
            "likelihood of {} recorded actions in nats per frame, {} of them changes{without}\n{}accuracy of the most likely class: {accuracy}\n{}",
            all.frames,
            self.likelihood.changed.frames,
            table(&rows),
            self.calibration
        )
    }
}

impl Reader for Replays {
    fn run(&mut self, source: &Source, output: &mut Output) -> Result<()> {
        match source {
            Source::File(path) => self.watch(path, output),
            _ => bail!("replays are files"),
        }
    }

    fn summary(&self, model: &str, place: &str) -> Result<()> {
        line(self.table(model))?;
        if let Some(pages) = &self.pages {
            line(pages)?;
        }
        let players = if self.players == 1 { "one player's" } else { "both players'" };
        let (time, rows) = (percentiles(&self.times), self.rows());
        Ok(line(format_args!(
            "time per frame: {time} ({players} observation and one pass of {rows} rows, the recorded and the chosen action; {place})"
        ))?)
    }

    fn frames(&self) -> u64 {
        self.frames
    }
}

/// What is stored of a frame, in the order of [`Decision::store`].
fn columns() -> Vec<Column> {
    vec![
        Column::new("frame", Dtype::U32, &[]),
        Column::new("recorded", Dtype::U32, &[ACTION]),
        Column::new("action", Dtype::U32, &[ACTION]),
        Column::new("logits", Dtype::F32, &[LOGITS]),
        Column::new("nll", Dtype::F32, &[GROUPS]),
        Column::new("value", Dtype::F32, &[1]),
    ]
}

impl Decision<'_> {
    fn write(&self, path: &Path, every: Option<usize>, output: &mut Output) -> Result<()> {
        match output {
            Output::Table => match every {
                Some(every) if self.place.1.is_multiple_of(every) => self.print(),
                _ => Ok(()),
            },
            Output::Lines(..) => Ok(output.json(&FrameLine {
                file: path.display().to_string(),
                port: self.port,
                frame: self.id,
                recorded: self.recorded.to_string(),
                chosen: self.chosen.to_string(),
                nll: GROUP_NAMES.into_iter().zip(self.nll).collect(),
                value: self.value,
            })?),
            Output::Tensors(..) => self.store(output),
        }
    }

    fn print(&self) -> Result<()> {
        let chosen = if self.chosen == self.recorded { "=".to_owned() } else { short(&self.chosen) };
        let (nats, us) = (self.nll.iter().sum::<f32>(), self.time.as_secs_f64() * 1e6);
        let (id, port, recorded) = (self.id, self.port, short(&self.recorded));
        Ok(line(format_args!("{id:>7} {port:>4}  {recorded:<36} {chosen:<36} {nats:>7.3} {us:>5.0}"))?)
    }

    /// In the order of [`columns`].
    fn store(&self, output: &mut Output) -> Result<()> {
        let (sequence, step) = self.place;
        let ids = |action: &Action| action.to_ids().into_iter().map(u32::to_le_bytes);
        output.value(0, sequence, step, [(self.frame as u32).to_le_bytes()].into_iter())?;
        output.value(1, sequence, step, ids(&self.recorded))?;
        output.value(2, sequence, step, ids(&self.chosen))?;
        output.value(3, sequence, step, self.logits.iter().map(|x| x.to_le_bytes()))?;
        output.value(4, sequence, step, self.nll.iter().map(|x| x.to_le_bytes()))?;
        Ok(output.value(5, sequence, step, [self.value.to_le_bytes()].into_iter())?)
    }
}

/// An action for the eye: the buttons pressed and what is not neutral, or `-`.
pub fn short(action: &Action) -> String {
    let classes = action.classes();
    let pressed = (0..8).filter(|i| classes[*i] == 1).map(|i| COMPONENTS[i].name.to_owned());
    let controller = action.to_controller();
    let stick = |name: &str, [x, y]: [f32; 2]| (x != 0.0 || y != 0.0).then(|| format!("{name}({x:+.2},{y:+.2})"));
    let shoulder = (controller.shoulder > 0.0).then(|| format!("shoulder {:.2}", controller.shoulder));
    let parts = pressed.chain(stick("main", controller.main_stick)).chain(stick("c", controller.c_stick)).chain(shoulder);
    let text = parts.collect::<Vec<_>>().join(" ");
    if text.is_empty() { "-".to_owned() } else { text }
}
