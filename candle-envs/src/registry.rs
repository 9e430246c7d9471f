//! The environments by name.

use crate::board::{ConnectFour, TicTacToe};
use crate::classic::{Acrobot, CartPole, MountainCar, Pendulum};
use crate::duel::Duel;
use crate::env::RATE;
use crate::minatar::{Asterix, Breakout, Freeway, MinAtar, Seaquest, SpaceInvaders};
use crate::{Autoreset, Env, EnvError, Result, Spec, Symmetry, Vector, VectorEnv};
use candle_models::policy::simulation::{Punish, Script};
use candle_models::search::Rules;
use std::fmt;
use std::sync::Arc;

/// Makes so many environments side by side.
type Make = Arc<dyn Fn(usize, Autoreset) -> Result<Box<dyn VectorEnv>> + Send + Sync>;

/// A kind of environment.
#[derive(Clone)]
pub struct Entry {
    spec: Spec,
    /// In a line what it is about.
    pub about: &'static str,
    /// [`Env::rate`]: steps in a second (Hz) where people watch or play.
    pub rate: f32,
    /// [`Env::for_two`]: the same for two at once, each a lane of it.
    pub for_two: fn() -> Option<Box<dyn VectorEnv>>,
    /// [`Env::symmetries`].
    pub symmetries: fn() -> Vec<Symmetry>,
    /// [`Env::rules`].
    pub rules: fn() -> Option<Arc<dyn Rules>>,
    make: Make,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Entry").field("spec", &self.spec).field("about", &self.about).finish_non_exhaustive()
    }
}

impl Entry {
    /// The kind `E`.
    pub fn of<E: Env>(about: &'static str) -> Self {
        let make = |lanes, autoreset| -> Result<Box<dyn VectorEnv>> { Ok(Box::new(Vector::<E>::new(lanes, autoreset)?)) };
        let Self { spec, make, .. } = Self::new(E::spec(), about, make);
        Self { spec, about, rate: E::rate(), for_two: E::for_two, symmetries: E::symmetries, rules: E::rules, make }
    }

    /// A kind that `make` makes so many of side by side.
    pub fn new(
        spec: Spec,
        about: &'static str,
        make: impl Fn(usize, Autoreset) -> Result<Box<dyn VectorEnv>> + Send + Sync + 'static,
    ) -> Self {
        Self { spec, about, rate: RATE, for_two: || None, symmetries: Vec::new, rules: || None, make: Arc::new(make) }
    }

    /// What it shows and takes.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// So many side by side, to be [reset](VectorEnv::reset) first.
    ///
    /// # Errors
    /// If `lanes` is 0, or one of them cannot be made.
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
pub struct Environments {
    entries: Vec<Entry>,
    sources: Vec<Source>,
}

/// Where kinds come from that are too many to be listed: the rest of a name behind a prefix says which one.
#[derive(Clone, Copy)]
struct Source {
    prefix: &'static str,
    find: fn(&str) -> Result<Entry>,
}

impl Environments {
    /// The same with another kind, in place of one of the same name.
    #[must_use]
    pub fn with<E: Env>(mut self, about: &'static str) -> Self {
        let entry = Entry::of::<E>(about);
        self.entries.retain(|other| other.name() != entry.name());
        self.entries.push(entry);
        self
    }

    /// The same with kinds that `find` finds by what stands behind the prefix `PREFIX:` of a name.
    #[must_use]
    pub fn with_source(mut self, prefix: &'static str, find: fn(&str) -> Result<Entry>) -> Self {
        self.sources.push(Source { prefix, find });
        self
    }

    /// Those that are listed.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The names of those that are listed, and what the others' begin with.
    pub fn names(&self) -> String {
        let listed = self.entries.iter().map(|entry| entry.name().to_owned());
        listed.chain(self.sources.iter().map(|source| format!("{}:ID", source.prefix))).collect::<Vec<_>>().join(", ")
    }

    /// The one of that name.
    ///
    /// # Errors
    /// If there is none, or one behind a prefix cannot be had.
    pub fn get(&self, name: &str) -> Result<Entry> {
        if let Some(entry) = self.entries.iter().find(|entry| entry.name() == name) {
            return Ok(entry.clone());
        }
        let found = self.sources.iter().find_map(|source| Some((source, name.strip_prefix(source.prefix)?.strip_prefix(':')?)));
        match found {
            Some((source, rest)) => (source.find)(rest),
            None => Err(EnvError::Unknown { name: name.to_owned(), known: self.names() }),
        }
    }
}

/// The environments of this crate, a line each; and those of Python's Gymnasium, which [`gym`](crate::gym) finds by their ids.
pub fn shipped() -> Environments {
    let environments = Environments::default()
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
        .with::<Duel<Punish>>("A fighter against one that waits and punishes");
    #[cfg(unix)]
    let environments = environments.with_source(crate::gym::PREFIX, crate::gym::entry);
    environments
}
