//! A duel: the simulated fight of the policy family, with one of the players to be learnt.
//!
//! It shows what a game policy sees, and takes the classes in which one answers, so that a policy that has learnt from recordings plays it as it
//! is: what is chosen after frame t acts in frame t + 1, as in a recording. A policy draws its actions (`uniform` from 0): the most likely one is
//! to do nothing in almost every frame.
//!
//! ```
//! use candle_envs::duel::{Duel, bots, score};
//! use candle_models::policy::simulation::{Punish, Script};
//!
//! # fn main() -> candle_models::Result<()> {
//! let score = score::<Script, _>(4, 2, 0, bots::<Punish, _>())?; // four games against the script, two at a time
//! assert_eq!(score.games(), 4);
//! # Ok(())
//! # }
//! ```

mod keys;
mod versus;

pub use candle_models::policy::simulation::{Score, Seat, Side, bots, policy, score};
pub use keys::{KEYS, held};
pub use versus::Versus;

use crate::{Action, Color, Env, EnvError, Pcg64, Result, Scene, Spec, Step, VectorEnv, View};
use candle_models::agent::{Component, Observation};
use candle_models::policy::actions::{self, BUTTONS, COMPONENTS};
use candle_models::policy::embedding::{Embedding, ID_LIMITS, WIDTH};
use candle_models::policy::game::{Controller, Fighter};
use candle_models::policy::simulation::{self, BLAST_X, BLAST_Y, Bot, EDGE, Exchange, Fight, Keys, NAMES, Punish, Script, TIME, own_first};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Reward of a stock that the opponent loses. One's own costs as much.
const STOCK: f64 = 1.0;
/// Reward of a percent of damage that the opponent takes, likewise.
const DAMAGE: f64 = 0.01;
/// Width of the tables in which an agent for a duel looks up its ids.
const EMBEDDING: usize = 16;

/// A bot that can be part of an environment.
pub trait Opponent: Bot + Clone + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// The environment's name.
    const NAME: &'static str;
}

impl Opponent for Script {
    const NAME: &'static str = "duel";
}

impl Opponent for Punish {
    const NAME: &'static str = "duel-punish";
}

impl Opponent for Keys {
    const NAME: &'static str = "duel-keys";
}

/// A fight against a bot, from frame 0 on, until one has lost all stocks or eight minutes are over. Which of the two fighters is the player's, Marth
/// or Fox, is drawn at the beginning.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Duel<O = Script> {
    /// The game as it stands. Its parts stand beside the generator in what is saved.
    #[serde(flatten)]
    pub game: simulation::Duel<O>,
    random: Pcg64,
}

impl<O: Opponent> Default for Duel<O> {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl<O: Opponent> Duel<O> {
    /// The beginning of a fight as player 0 (Marth) or 1 (Fox), with the opponent's chances of a seed.
    pub fn new(player: usize, seed: u64) -> Self {
        Self { game: simulation::Duel::new(player, seed), random: Pcg64::new(seed) }
    }
}

impl<O: Opponent> Env for Duel<O> {
    fn spec() -> Spec {
        let features = Observation::Floats { name: "features".to_owned(), shape: vec![WIDTH], low: None, high: None };
        let ids = Observation::Ids { name: "ids".to_owned(), below: ID_LIMITS.to_vec(), embedding: EMBEDDING };
        let buttons = Component::Binary { name: "buttons".to_owned(), count: BUTTONS };
        let others = COMPONENTS[BUTTONS..].iter().map(|component| match usize::from(component.classes) {
            // Bins whose centres are the places of a stick, so that the one in the middle is a stick at rest.
            bins if component.neutral > 0 => {
                let end = 1.0 + 1.0 / (bins - 1) as f64;
                Component::Binned { name: component.name.to_owned(), low: -end, high: end, bins }
            }
            classes => Component::Discrete { name: component.name.to_owned(), classes },
        });
        let action = std::iter::once(buttons).chain(others).collect();
        Spec { name: O::NAME.into(), observation: vec![features, ids], action, players: 1, max_steps: Some(TIME) }
    }

    fn reset(&mut self, mut random: Pcg64) {
        let (player, seed) = (random.below(2), random.next_u64());
        *self = Self { random, ..Self::new(player as usize, seed) };
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> Result<Step> {
        let reward = reward(self.game.play(controller(action.classes)?));
        Ok(Step { reward, terminated: self.game.fight().is_over(), truncated: false })
    }

    fn observe(&self, to: View) {
        observe(self.game.fight(), self.game.side(), to);
    }

    fn draw(&self) -> Scene {
        draw(self.game.fight(), self.game.side(), O::NAME)
    }

    /// That of the game it stands for.
    fn rate() -> f32 {
        60.0
    }

    fn for_two() -> Option<Box<dyn VectorEnv>> {
        Some(Box::new(Versus::default()))
    }
}

/// A fight as player 0 (Marth) or 1 (Fox) sees it, against someone called `other`.
fn draw(fight: &Fight, own: usize, other: &str) -> Scene {
    let (low, high) = (*BLAST_Y.start(), *BLAST_Y.end());
    let mut scene = Scene::new(2.0 * BLAST_X, high - low, SKY);
    scene.rectangle([BLAST_X - EDGE, high], [2.0 * EDGE, 20.0], STAGE);
    let colors = own_first(own, [OWN, OTHER]);
    for (player, (fighter, color)) in fight.fighters().iter().zip(colors).enumerate() {
        draw_fighter(&mut scene, [BLAST_X + fighter.position[0], high - fighter.position[1]], fighter, color);
        let whose = if player == own { "you" } else { other };
        let text = format!("{} {:.0}% {} {whose}", NAMES[player], fighter.percent, "o".repeat(fighter.stocks.into()));
        scene.text([20.0 + 240.0 * player as f32, high - low - 16.0], 14.0, text, color);
    }
    scene
}

/// Floats and indices of what player 0 or 1 sees.
fn observe(fight: &Fight, player: usize, to: View) {
    let written = Embedding::default().observe(&fight.seen(player), None, to.floats, to.ids);
    debug_assert!(written.is_ok(), "a view is as long as the description says");
}

/// What the loss of stocks and damage is worth to the one whose part comes first.
fn reward(Exchange { damage: [taken, dealt], lost: [own, other] }: Exchange) -> f64 {
    let stocks = f64::from(u8::from(other)) - f64::from(u8::from(own));
    STOCK * stocks + DAMAGE * f64::from(dealt - taken)
}

/// The controller of an action's classes.
fn controller(classes: &[u32]) -> Result<Controller> {
    let chosen = actions::Action::from_ids(classes).map_err(|reason| EnvError::illegal(format!("{classes:?}"), reason))?;
    Ok(chosen.to_controller())
}

const SKY: Color = [16, 18, 32];
const STAGE: Color = [90, 90, 110];
const SHIELD: Color = [110, 200, 220];
const OWN: Color = [90, 160, 255];
const OTHER: Color = [255, 150, 70];

/// A fighter by the place of its feet, with its shield behind it.
fn draw_fighter(scene: &mut Scene, [x, y]: [f32; 2], fighter: &Fighter, color: Color) {
    let middle = y - 6.0;
    if matches!(fighter.action_state, 178 | 179 | 181) {
        scene.circle([x, middle], 6.0 + fighter.shield / 10.0, SHIELD);
    }
    scene.rectangle([x - 3.0, y - 12.0], [6.0, 12.0], color);
    // An arm in the direction it faces, stretched out in an attack.
    let reach = if (44..=69).contains(&fighter.action_state) { 16.0 } else { 7.0 };
    scene.line([x, middle], [x + reach * fighter.facing, middle], 2.0, color);
}
