//! `candle-train watch`: an environment to look at, or to play.

mod person;
mod picture;
mod raster;
mod show;
mod terminal;
mod web;

use crate::agent::ppo::acting::Manner;
use anyhow::Result;
use candle_models::Error;
use candle_models::bundle::Bundle;
use candle_models::registry::{Family, Registry};
use clap::Args;
use person::Hand;
use show::{Options, Show};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Frames of a picture that is not told how many.
const PICTURE: usize = 600;

#[derive(Debug, Args)]
pub struct Arguments {
    /// The environment.
    #[arg(value_name = "ENV")]
    env: String,
    /// Who acts: the model of this bundle. Without it every legal action is as likely as the others.
    #[arg(long, value_name = "BUNDLE")]
    bundle: Option<PathBuf>,
    /// Where everything random begins.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Ends after so many episodes [default: 1 in pictures and where nobody sits at the terminal, otherwise no end].
    #[arg(long, value_name = "N")]
    episodes: Option<usize>,
    /// Ends after so many frames [default: 600 in pictures, otherwise no end].
    #[arg(long, value_name = "N")]
    frames: Option<usize>,
    /// Takes the most likely action in place of drawing one. A search always takes the best that it finds.
    #[arg(long, requires = "bundle")]
    greedy: bool,
    /// Simulations for each step of a model that plans.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "bundle")]
    simulations: usize,
    /// Plays a board game with you: you type the number of a move, and begin every other game.
    #[arg(long, conflicts_with_all = ["gif", "svg", "web"])]
    play: bool,
    /// Writes a GIF that moves.
    #[arg(long, value_name = "FILE")]
    gif: Option<PathBuf>,
    /// Writes an SVG that moves.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Serves a page on which people watch and one plays, on a free port of this machine alone, or at an address: `--web=0.0.0.0:8000` lets
    /// everybody in who can reach it.
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:0",
        conflicts_with_all = ["gif", "svg", "episodes", "frames"]
    )]
    web: Option<SocketAddr>,
    /// Processors to compute with. Default: CANDLE_THREADS, or all that this process may use.
    #[arg(long)]
    #[allow(dead_code)] // Read by the command itself, before there are other threads.
    threads: Option<usize>,
}

/// When to end.
#[derive(Debug, Clone, Copy)]
struct Limits {
    frames: usize,
    episodes: usize,
}

/// What happens after a frame was seen.
enum Next {
    /// A step, with what the person does.
    Step(Option<Hand>),
    /// Nothing more.
    End,
}

impl Arguments {
    /// Shows what was asked for.
    pub fn run<F: Family + ?Sized>(&self, families: &Registry<F>) -> Result<()> {
        let entry = candle_envs::shipped().get(&self.env).map_err(|error| Error::config("ENV", error))?;
        let bundle = self.bundle.as_ref().map(Bundle::open).transpose()?;
        let choice = if self.greedy { Manner::Greedy } else { Manner::Sample };
        let options = Options { seed: self.seed, choice, simulations: self.simulations };
        let about = entry.about;
        let mut show = Show::new(entry, bundle.as_ref(), families, options)?;
        if let Some(address) = self.web {
            return web::serve(&mut show, about, address);
        }
        let pictures = self.gif.is_some() || self.svg.is_some();
        let seen = !pictures && std::io::stdout().is_terminal();
        let limits = Limits {
            frames: self.frames.unwrap_or(if pictures { PICTURE } else { usize::MAX }),
            episodes: self.episodes.unwrap_or(if seen || self.play { usize::MAX } else { 1 }),
        };
        if pictures {
            picture::write(&mut show, limits, self.gif.as_deref(), self.svg.as_deref())
        } else if self.play {
            terminal::play(&mut show, limits)
        } else {
            terminal::watch(&mut show, limits, seen)
        }
    }
}

impl Limits {
    /// Shows frame after frame to `see` until one of them is reached, or `see` has enough.
    fn over(self, show: &mut Show, mut see: impl FnMut(&mut Show) -> Result<Next>) -> Result<()> {
        let mut episodes = 0;
        for _ in 0..self.frames {
            let next = see(show)?;
            episodes += usize::from(show.ended());
            match next {
                Next::Step(hand) if episodes < self.episodes => show.step(hand.as_ref())?,
                _ => break,
            }
        }
        Ok(())
    }
}
