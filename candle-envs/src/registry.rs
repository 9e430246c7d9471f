//! The environments by name.

use crate::board::{ConnectFour, TicTacToe};
use crate::classic::{Acrobot, CartPole, MountainCar, Pendulum};
use crate::duel::Duel;
use crate::minatar::{Asterix, Breakout, Freeway, MinAtar, Seaquest, SpaceInvaders};
use crate::{Autoreset, Env, EnvError, Result, Spec, Vector, VectorEnv};
use candle_models::policy::simulation::{Punish, Script};

/// A kind of environment.
#[derive(Clone, Copy)]
pub struct Entry {
    /// What it shows and takes, its name among it.
    pub spec: fn() -> Spec,
    /// In a line what it is about.
    pub about: &'static str,
    /// [`Env::rate`]: steps in a second (Hz) where people watch or play.
    pub rate: fn() -> f32,
    /// [`Env::for_two`]: the same for two at once, each a lane of it.
    pub for_two: fn() -> Option<Box<dyn VectorEnv>>,
    make: fn(usize, Autoreset) -> Result<Box<dyn VectorEnv>>,
}

impl Entry {
    /// The kind `E`.
    pub fn of<E: Env>(about: &'static str) -> Self {
        let make = |lanes, autoreset| -> Result<Box<dyn VectorEnv>> { Ok(Box::new(Vector::<E>::new(lanes, autoreset)?)) };
        Self { spec: E::spec, about, rate: E::rate, for_two: E::for_two, make }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        (self.spec)().name
    }

    /// So many side by side, to be [reset](VectorEnv::reset) first.
    ///
    /// # Errors
    /// If `lanes` is 0.
    pub fn make(&self, lanes: usize, autoreset: Autoreset) -> Result<Box<dyn VectorEnv>> {
        (self.make)(lanes, autoreset)
    }
}

/// Kinds of environments.
///
/// ```
/// use candle_envs::{Autoreset, shipped};
///
/// # fn main() -> candle_envs::Result<()> {
/// let mut poles = shipped().get("cartpole")?.make(8, Autoreset::NextStep)?;
/// assert_eq!(poles.reset(1)?.floats.len(), 8 * 4);
/// assert!(shipped().get("chess").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Environments(Vec<Entry>);

impl Environments {
    /// The same with another kind, in place of one of the same name.
    #[must_use]
    pub fn with<E: Env>(mut self, about: &'static str) -> Self {
        let entry = Entry::of::<E>(about);
        self.0.retain(|other| other.name() != entry.name());
        self.0.push(entry);
        self
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    /// The one of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, name: &str) -> Result<&Entry> {
        self.0.iter().find(|entry| entry.name() == name).ok_or_else(|| {
            let known = self.0.iter().map(Entry::name).collect::<Vec<_>>().join(", ");
            EnvError::Unknown { name: name.to_owned(), known }
        })
    }
}

/// The environments of this crate, a line each.
pub fn shipped() -> Environments {
    Environments::default()
        .with::<CartPole>("A pole on a cart is to be kept upright")
        .with::<MountainCar>("A car too weak for the hill has to swing up")
        .with::<Acrobot>("Two links are to be swung up by the joint between them")
        .with::<Pendulum>("A pendulum is to be swung up and held, by as little torque as it takes")
        .with::<TicTacToe>("Three in a line on nine squares win")
        .with::<ConnectFour>("Four in a line win, stones fall down their column")
        .with::<MinAtar<Breakout>>("MinAtar: a ball breaks bricks and is not to be lost")
        .with::<MinAtar<Freeway>>("MinAtar: a chicken crosses a road with cars")
        .with::<MinAtar<Asterix>>("MinAtar: gold is to be picked up, enemies are to be avoided")
        .with::<MinAtar<SpaceInvaders>>("MinAtar: a cannon shoots aliens, which shoot back")
        .with::<MinAtar<Seaquest>>("MinAtar: a boat shoots enemies and brings divers to the surface")
        .with::<Duel<Script>>("A fighter against a scripted one, seen and steered as a game policy does")
        .with::<Duel<Punish>>("A fighter against one that waits and punishes")
}
