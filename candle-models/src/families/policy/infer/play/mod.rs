//! `candle-infer play`: a policy in a live game. One thread receives, decides and presses; the caller's prints and writes. With `--against` there
//! is no game to connect to: the policy fights a bot in the simulation.

mod fight;
mod follow;
mod live;
mod pad;
mod spectate;
mod stand_in;

pub use stand_in::StandIn;

use super::{Placement, Watched, drawn};
use crate::Error;
use crate::cli::{self, Usage};
use crate::engine::Histogram;
use crate::families::policy::actions::Action;
use crate::infer::{Call, line};
use crate::random::Random;
use anyhow::Result;
use clap::Args;
use fight::{Against, Games};
use follow::Follow;
use live::{Decision, Live, Step};
use pad::Pad;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use spectate::Spectator;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Where Slippi listens for spectators.
const SERVER: &str = "127.0.0.1:51441";

/// The longest wait for bytes: what else is to be done in time comes at least so often.
const WAIT: Duration = Duration::from_millis(5);

/// Without a frame for so long, six of them, the controller is let go: what was pressed last was meant for one frame.
const SILENCE: Duration = Duration::from_millis(100);

/// Options of `play`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    watched: Watched,
    /// Take the most likely class of each component instead of drawing the actions from the policy's distribution. Of people the most likely is
    /// nearly always to go on as before: a policy that begins with nothing goes on with nothing.
    #[arg(long)]
    greedy: bool,
    /// Seed of the drawn actions, and with --against of what the bot draws: the same seed is the same games.
    #[arg(long)]
    seed: Option<u64>,
    /// Fight a bot in the simulation instead of following or connecting to a game, and print the score; frames of the first game are printed.
    #[arg(long, value_name = "BOT", conflicts_with_all = ["follow", "server", "pipe", "timeout", "out", "port", "name"])]
    against: Option<Against>,
    /// How many games are fought, every other one as Marth and as Fox.
    #[arg(long, value_name = "N", requires = "against", default_value = "10", value_parser = clap::value_parser!(u32).range(1..))]
    games: u32,
    /// Follow a replay while Slippi writes it, or in a folder the newest one and each that comes after it, instead of connecting to Dolphin.
    #[arg(long, value_name = "FILE|DIR")]
    follow: Option<PathBuf>,
    /// Where Slippi Dolphin listens for spectators.
    #[arg(long, value_name = "HOST:PORT", default_value = SERVER)]
    server: String,
    /// Named pipe of the controller that Dolphin reads, to press what the policy chooses for the player on --port.
    #[arg(long, value_name = "PIPE", requires = "port")]
    pipe: Option<PathBuf>,
    /// Seconds to wait for a file to grow or a server to answer.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Write every decision to FILE.jsonl, one JSON object per line, as it is made.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What comes from where a game is played.
#[derive(Debug, PartialEq)]
pub enum Happening {
    /// A game begins; what to call it.
    Begins(String),
    /// Bytes of its events.
    Events(Vec<u8>),
    /// No more of this game will come, and why not if it was not over.
    Breaks(Option<String>),
    /// The connection is lost for now, and why.
    Lost(String),
    /// A remark for the user.
    Note(String),
    /// Nothing more will come.
    Over,
}

/// Where a game is played.
pub trait Input {
    /// Adds what has happened, after waiting for it at most so long; tells when the first of it was there to be read.
    ///
    /// # Errors
    /// If nothing can come any more.
    fn receive(&mut self, wait: Duration, happened: &mut Vec<Happening>) -> Result<Instant>;

    /// Turns to what comes after a game that is over, or cannot be played.
    fn game_over(&mut self) -> After;
}

/// What may come after a game.
#[derive(PartialEq)]
pub enum After {
    /// Another one.
    Another,
    /// No other one.
    Nothing,
}

/// What the thread of the game tells.
enum Report {
    Decision { decision: Decision, in_time: bool, time: Duration },
    Warning(String),
    Line(String),
}

/// Decides live until the game is over, the user interrupts, or nothing can come any more.
pub fn play(call: &Call, options: &Options) -> Result<()> {
    options.check()?;
    if let Some(against) = options.against {
        let games = Games { count: options.games, seed: options.seed.unwrap_or_default(), sampling: options.sampling() };
        return fight::fight(call, against, &games);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(Error::io("signals"))?;
    }
    let log = options.out.as_deref().map(Log::create).transpose()?;
    let (sender, receiver) = channel();
    let (totals, outcome) = std::thread::scope(|scope| {
        let game = std::thread::Builder::new().name("game".to_owned());
        let game = game.spawn_scoped(scope, || Player::new(call, options, sender).map(|player| player.run(&interrupted)));
        let game = game.map_err(Error::io("thread"))?;
        let logged = follow_reports(&receiver, log, call.every.unwrap_or(usize::MAX));
        if logged.is_err() {
            interrupted.store(true, Ordering::Relaxed);
        }
        let (totals, outcome) = game.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok::<_, anyhow::Error>((totals, logged.and(outcome)))
    })?;
    totals.print(options.pipe.is_some(), call.place)?;
    outcome
}

impl Options {
    fn check(&self) -> Result<()> {
        if self.greedy && self.seed.is_some() && self.against.is_none() {
            return Err(Usage::error("--seed cannot be used with --greedy: nothing is drawn in a game of others"));
        }
        if self.follow.is_some() && self.server != SERVER {
            return Err(Usage::error("--follow reads files, --server connects: one of them"));
        }
        match &self.out {
            Some(path) if path.extension().is_none_or(|extension| extension != "jsonl") => {
                Err(Usage::error(format!("--out {}: expected a name in .jsonl", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Where drawn actions come from; nothing where the most likely ones are taken.
    fn sampling(&self) -> Option<Random> {
        (!self.greedy).then(|| drawn(self.seed))
    }

    fn input(&self) -> Result<Box<dyn Input>> {
        let timeout = Duration::from_secs(self.timeout);
        Ok(match &self.follow {
            Some(path) => Box::new(Follow::new(path, timeout)?),
            None => Box::new(Spectator::new(&self.server, timeout)?),
        })
    }
}

/// The file of decisions.
struct Log {
    path: PathBuf,
    file: BufWriter<File>,
}

#[derive(Serialize)]
struct FrameLine<'a> {
    game: &'a str,
    port: u8,
    frame: i32,
    chosen: String,
    value: f32,
    in_time: bool,
    us: f64,
}

impl Log {
    fn create(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), file: BufWriter::new(File::create(path).map_err(Error::io(path))?) })
    }

    fn write(&mut self, decision: &Decision, in_time: bool, time: Duration) -> Result<()> {
        let Decision { game, port, frame, chosen, value } = decision;
        let line = FrameLine { game, port: *port, frame: *frame, chosen: chosen.to_string(), value: *value, in_time, us: micros(time) };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(std::io::Error::from);
        Ok(written.and_then(|()| self.file.write_all(b"\n")).map_err(Error::io(&self.path))?)
    }
}

fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 10.0
}

/// Prints and writes until the thread of the game has ended. What waits in memory goes to the file whenever nothing else is to be done.
fn follow_reports(reports: &Receiver<Report>, mut log: Option<Log>, every: usize) -> Result<()> {
    let mut decisions = 0usize;
    loop {
        let report = match reports.try_recv() {
            Ok(report) => report,
            Err(_) => {
                if let Some(log) = &mut log {
                    log.file.flush().map_err(Error::io(&log.path))?;
                }
                let Ok(report) = reports.recv() else { return Ok(()) };
                report
            }
        };
        match report {
            Report::Warning(text) => cli::warn(text),
            Report::Line(text) => line(text)?,
            Report::Decision { decision, in_time, time } => {
                if let Some(log) = &mut log {
                    log.write(&decision, in_time, time)?;
                }
                if decisions.is_multiple_of(every) {
                    let (id, port, chosen, us) = (decision.frame, decision.port, super::replays::short(&decision.chosen), micros(time));
                    line(format_args!("{id:>7} {port:>4}  {chosen:<36} {us:>7.1} us"))?;
                }
                decisions += 1;
            }
        }
    }
}

/// What is counted over all games.
#[derive(Default)]
struct Totals {
    games: usize,
    frames: u64,
    rolled_back: u64,
    lost: u64,
    let_go: u64,
    /// From a frame that can be read to what is pressed.
    in_time: Histogram,
    /// Of frames that another one came with: the decision alone.
    behind: Histogram,
}

impl Totals {
    fn print(&self, pressed: bool, place: &Placement) -> Result<()> {
        let Self { games, frames, rolled_back, lost, let_go, in_time, behind } = self;
        line(format_args!("{frames} frames of {games} games decided, {rolled_back} of them again after a rollback"))?;
        line(format_args!("connection lost {lost} times, controller let go {let_go} times"))?;
        let out = if pressed { "controller out" } else { "decision" };
        let measured = [(in_time, format!("frame in to {out}")), (behind, "decided while a newer frame was there already".to_owned())];
        for (times, what) in measured.into_iter().filter(|(times, _)| times.count() > 0) {
            let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|share| micros(times.percentile(share)));
            let (n, threads) = (times.count(), place.threads);
            line(format_args!(
                "{what}: p50 {p50:.1} us, p99 {p99:.1} us, p99.9 {p999:.1} us, max {max:.1} us ({n} frames, threads: {threads})"
            ))?;
        }
        if cfg!(debug_assertions) {
            line("this program was built for development: with `--release` it is faster")?;
        }
        Ok(())
    }
}

fn record(times: &Histogram, since: Instant) -> Duration {
    let time = since.elapsed();
    times.record(time);
    time
}

/// The thread of the game.
struct Player {
    live: Live,
    input: Box<dyn Input>,
    pad: Option<Pad>,
    reports: Sender<Report>,
    totals: Totals,
    /// What was decided last and not told yet: it is pressed if nothing newer has arrived with it.
    newest: Vec<Decision>,
    /// When the frame that is decided next was there to be read, if it came alone.
    arrived: Option<Instant>,
    /// Since when time is taken for one that did not.
    began: Instant,
    /// When the controller was pressed last, unless it has been let go since.
    pressed: Option<Instant>,
}

impl Player {
    fn new(call: &Call, options: &Options, reports: Sender<Report>) -> Result<Self> {
        let pad = options.pipe.as_deref().map(Pad::new).transpose()?;
        let live = Live::new(call, (&options.watched, options.sampling()), pad.is_some())?;
        let (input, totals, newest) = (options.input()?, Totals::default(), Vec::new());
        Ok(Self { live, input, pad, reports, totals, newest, arrived: None, began: Instant::now(), pressed: None })
    }

    fn run(mut self, interrupted: &AtomicBool) -> (Totals, Result<()>) {
        self.let_go();
        let outcome = self.games(interrupted);
        self.let_go();
        (self.totals, outcome)
    }

    fn games(&mut self, interrupted: &AtomicBool) -> Result<()> {
        let mut happened = Vec::new();
        while !interrupted.load(Ordering::Relaxed) {
            self.arrived = Some(self.input.receive(WAIT, &mut happened)?);
            self.began = Instant::now();
            if happened.is_empty() && self.pressed.is_some() {
                self.live.rehearse()?;
            }
            for happening in happened.drain(..) {
                if self.take(happening)? {
                    return Ok(());
                }
            }
            self.settle(Press::Newest);
            if self.pressed.is_some_and(|last| last.elapsed() > SILENCE) {
                self.let_go();
            }
        }
        Ok(())
    }

    /// Tells whether everything is over.
    fn take(&mut self, happening: Happening) -> Result<bool> {
        match happening {
            Happening::Begins(name) => self.live.begin(&name),
            Happening::Events(bytes) => {
                self.live.push(&bytes);
                return self.advance();
            }
            Happening::Breaks(reason) => {
                self.stop_pressing();
                if let Some(game) = self.live.abandon() {
                    let reason = reason.unwrap_or_else(|| "it broke off before its end".to_owned());
                    self.tell(Report::Warning(format!("{game}: {reason}")));
                }
            }
            Happening::Lost(reason) => {
                self.stop_pressing();
                self.totals.lost += 1;
                self.tell(Report::Warning(reason));
            }
            Happening::Note(text) => self.tell(Report::Warning(text)),
            Happening::Over => return Ok(true),
        }
        Ok(false)
    }

    /// Decides every frame that is complete; tells whether everything is over.
    fn advance(&mut self) -> Result<bool> {
        loop {
            match self.live.next() {
                Ok(None) => return Ok(false),
                Ok(Some(Step::Started(text))) => {
                    self.totals.games += 1;
                    self.tell(Report::Line(text));
                }
                Ok(Some(Step::Seen { again, decisions })) => {
                    self.settle(Press::Nothing);
                    self.totals.frames += 1;
                    self.totals.rolled_back += u64::from(again);
                    self.newest = decisions;
                }
                Ok(Some(Step::Ended)) => {
                    self.stop_pressing();
                    return Ok(self.input.game_over() == After::Nothing);
                }
                Err(error) => {
                    self.stop_pressing();
                    let game = self.live.abandon().unwrap_or_default();
                    if self.input.game_over() == After::Nothing {
                        return Err(error.context(game));
                    }
                    self.tell(Report::Warning(format!("{game}: {}; waiting for another game", cli::one_line_of(&error))));
                    return Ok(false);
                }
            }
        }
    }

    /// Tells the newest decision, pressed or not.
    fn settle(&mut self, press: Press) {
        let decisions = std::mem::take(&mut self.newest);
        let Some(chosen) = decisions.first().map(|decision| decision.chosen) else { return };
        let arrived = self.arrived.take();
        if press == Press::Newest {
            self.press(&chosen);
            self.pressed = Some(Instant::now());
        }
        let in_time = press == Press::Newest;
        let time = match arrived.filter(|_| in_time) {
            Some(arrived) => record(&self.totals.in_time, arrived),
            None => record(&self.totals.behind, self.began),
        };
        self.began = Instant::now();
        decisions.into_iter().for_each(|decision| self.tell(Report::Decision { decision, in_time, time }));
    }

    fn stop_pressing(&mut self) {
        self.settle(Press::Nothing);
        self.let_go();
    }

    fn let_go(&mut self) {
        self.totals.let_go += u64::from(self.pressed.take().is_some());
        self.press(&Action::default());
    }

    fn press(&mut self, action: &Action) {
        if let Some(note) = self.pad.as_mut().and_then(|pad| pad.press(&action.to_controller())) {
            self.tell(Report::Warning(note));
        }
    }

    /// Nobody listens once the other thread has failed: it says why.
    fn tell(&self, report: Report) {
        let _ = self.reports.send(report);
    }
}

/// What becomes of a decision.
#[derive(Clone, Copy, PartialEq)]
enum Press {
    Newest,
    Nothing,
}
