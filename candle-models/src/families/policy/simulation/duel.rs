//! A fight with one of the players to be somebody else.

use super::{Bot, Exchange, Fight, Script, chances, own_first};
use crate::families::policy::embedding::Observation;
use crate::families::policy::game::{Controller, Fighter};
use serde::{Deserialize, Serialize};

/// A fight against a bot, from frame 0 on.
///
/// ```
/// use candle_models::policy::game::Controller;
/// use candle_models::policy::simulation::{Duel, Script};
///
/// let mut duel = Duel::<Script>::new(1, 7); // as Fox
/// while !duel.fight().is_over() {
///     duel.play(Controller::default());
/// }
/// assert_eq!(duel.fight().winner(), Some(0)); // Nobody wins by doing nothing.
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Duel<O = Script> {
    fight: Fight,
    player: usize,
    opponent: O,
}

impl<O: Bot> Duel<O> {
    /// The beginning of a fight as player 0 (Marth) or 1 (Fox), with the opponent's chances of a seed.
    pub fn new(player: usize, seed: u64) -> Self {
        let [player, other] = own_first(player, [0, 1]);
        Self { fight: Fight::ready(), player, opponent: O::new(chances(seed, other)) }
    }

    /// The fight as it stands.
    pub fn fight(&self) -> &Fight {
        &self.fight
    }

    /// Whom the player plays: 0 is Marth, 1 is Fox.
    pub fn side(&self) -> usize {
        self.player
    }

    /// Both fighters, the player's first.
    pub fn fighters(&self) -> [Fighter; 2] {
        own_first(self.player, self.fight.fighters())
    }

    /// What the player knows: what an [`Embedding`](crate::families::policy::embedding::Embedding) makes the inputs of a policy of.
    pub fn seen(&self) -> Observation {
        self.fight.seen(self.player)
    }

    /// The next frame with the player's controller; of what it did, the player's part comes first.
    pub fn play(&mut self, controller: Controller) -> Exchange {
        let [own, other] = self.fighters();
        let answer = self.opponent.decide(self.fight.frame() + 1, &other, &own);
        let Exchange { damage, lost } = self.fight.step(own_first(self.player, [controller, answer]));
        Exchange { damage: own_first(self.player, damage), lost: own_first(self.player, lost) }
    }
}
