//! Rows of many games as the model reads them.

use super::shards::Shard;
use candle_models::Result;
use candle_models::policy::actions::{ACTION, Action};
use candle_models::policy::embedding::{self, Embedding, IDS, SCHEMA, WIDTH};
use candle_models::policy::game::is_placeholder;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Frames of a game that are read at a time where all of them are.
const READ: usize = 1024;

/// One way through one game: whose view, and whether left and right change places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Which game.
    pub game: usize,
    /// Which player, 0 or 1.
    pub player: usize,
    /// Whether it is mirrored.
    pub mirror: bool,
}

/// Where rows are written: n rows each.
#[derive(Debug)]
pub struct Rows<'a> {
    /// `[n, 288]`.
    pub features: &'a mut [f32],
    /// `[n, 6]`.
    pub ids: &'a mut [u32],
    /// `[n, 13]`: the action before the one to be chosen.
    pub previous: &'a mut [u32],
    /// `[n, 13]`: the action to be chosen.
    pub action: &'a mut [u32],
    /// `[n]`.
    pub returns: &'a mut [f32],
}

impl Rows<'_> {
    /// Some of them.
    pub fn part(&mut self, rows: Range<usize>) -> Rows<'_> {
        Rows {
            features: &mut self.features[rows.start * WIDTH..rows.end * WIDTH],
            ids: &mut self.ids[rows.start * IDS..rows.end * IDS],
            previous: &mut self.previous[rows.start * ACTION..rows.end * ACTION],
            action: &mut self.action[rows.start * ACTION..rows.end * ACTION],
            returns: &mut self.returns[rows],
        }
    }
}

/// A held-out game, and whose views of it are measured: those of players that no training game has.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The game.
    pub game: Arc<Shard>,
    /// Of both players in port order.
    pub players: [bool; 2],
}

impl Measured {
    /// Those of them who are human: the computer is nobody to imitate.
    fn humans(&self) -> [bool; 2] {
        [0, 1].map(|player| self.players[player] && !self.game.info().computers[player])
    }
}

impl From<Arc<Shard>> for Measured {
    /// Both views.
    fn from(game: Arc<Shard>) -> Self {
        Self { game, players: [true; 2] }
    }
}

/// Games with the delay and the player names of one policy applied.
#[derive(Debug, Clone)]
pub struct Dataset {
    shards: Vec<Arc<Shard>>,
    /// Per game and player: whether the view is one of the passes.
    players: Vec<[bool; 2]>,
    /// Per game and player: the column of the player's name, if the policy knows it.
    names: Vec<[Option<usize>; 2]>,
    delay: usize,
}

impl Dataset {
    /// Games as a policy with these names and this delay sees them. A game not longer than the delay gives no rows and is
    /// left out.
    pub fn new(shards: &[Arc<Shard>], names: &[String], delay: usize) -> Result<Self> {
        Self::measured(&shards.iter().cloned().map(Measured::from).collect::<Vec<_>>(), names, delay)
    }

    /// [`new`](Self::new), with the passes of some players alone.
    ///
    /// # Errors
    /// As there.
    pub fn measured(games: &[Measured], names: &[String], delay: usize) -> Result<Self> {
        let embedding = Embedding::new(names)?;
        let first = SCHEMA.iter().find(|field| field.name == "name").map_or(0, |field| field.offset);
        let long = games.iter().filter(|measured| measured.game.rows() > delay);
        let (shards, players): (Vec<_>, Vec<_>) = long.map(|measured| (measured.game.clone(), measured.humans())).unzip();
        let column = |s: &Arc<Shard>| s.info().names.each_ref().map(|name| Some(first + embedding.name_index(name)?));
        Ok(Self { names: shards.iter().map(column).collect(), shards, players, delay })
    }

    /// The games.
    pub fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// A line of each game, as a card has it: its file, its frames and the hash of its content.
    pub fn describe(&self) -> Vec<String> {
        let line = |shard: &Arc<Shard>| {
            let info = shard.info();
            format!("{} ({} frames, SHA-256 {})", info.source, shard.rows() + 1, &info.replay[..16])
        };
        self.shards.iter().map(line).collect()
    }

    /// Rows of one pass through a game.
    pub fn rows(&self, game: usize) -> usize {
        self.shards[game].rows() - self.delay
    }

    /// The passes of human players through every game, not mirrored.
    pub fn passes(&self) -> Vec<Pass> {
        let views = self.players.iter().enumerate().flat_map(|(game, players)| [0, 1].map(|player| (game, player, players[player])));
        views.filter(|(.., counts)| *counts).map(|(game, player, _)| Pass { game, player, mirror: false }).collect()
    }

    /// The actions of a pass: the one before its first row's, then the one that each row asks for.
    pub fn actions(&self, pass: Pass) -> Result<Vec<Action>> {
        let all = self.delay..self.rows(pass.game) + self.delay + 1;
        let mut actions = Vec::with_capacity(all.len());
        for start in all.clone().step_by(READ) {
            let frames = start..all.end.min(start + READ);
            let read = self.shards[pass.game].frames(frames.clone())?;
            actions.extend(frames.map(|frame| mirrored(pass, read.action(pass.player, frame))));
        }
        Ok(actions)
    }

    /// Writes rows of a pass.
    pub fn read(&self, pass: Pass, rows: Range<usize>, out: Rows) -> Result<()> {
        let frames = self.shards[pass.game].frames(self.frames(&rows))?;
        frames.observe(pass.player, rows.clone(), out.features, out.ids, out.returns)?;
        if let Some(column) = self.names[pass.game][pass.player] {
            out.features.chunks_exact_mut(WIDTH).for_each(|row| row[column] = 1.0);
        }
        if pass.mirror {
            embedding::mirror(out.features, out.ids);
        }
        let action = |frame: usize| mirrored(pass, frames.action(pass.player, frame)).to_ids();
        // The action before the first row's is the one of frame `start + delay`: row `start - 1` would ask for it.
        let mut previous = action(rows.start + self.delay);
        let targets = out.previous.chunks_exact_mut(ACTION).zip(out.action.chunks_exact_mut(ACTION));
        for (row, (before, target)) in rows.zip(targets) {
            let action = action(row + self.delay + 1);
            before.copy_from_slice(&previous);
            target.copy_from_slice(&action);
            previous = action;
        }
        Ok(())
    }

    /// Says that rows of a pass are read soon: the system may fetch them from the disk meanwhile.
    pub fn expect(&self, pass: Pass, rows: Range<usize>) {
        self.shards[pass.game].expect(self.frames(&rows));
    }

    /// The frames that rows are made of: actions are read up to the delay ahead of the state.
    fn frames(&self, rows: &Range<usize>) -> Range<usize> {
        rows.start..rows.end + self.delay + 1
    }
}

fn mirrored(pass: Pass, action: Action) -> Action {
    if pass.mirror { action.mirror() } else { action }
}

/// The player names in some games, most frequent first (then by alphabet), at most `limit`. A placeholder is nobody's name.
pub fn frequent_names(shards: &[Arc<Shard>], limit: usize) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in shards.iter().flat_map(|s| &s.info().names).filter(|name| !is_placeholder(name)) {
        *counts.entry(name).or_default() += 1;
    }
    let mut names: Vec<_> = counts.into_iter().collect();
    names.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    names.into_iter().take(limit).map(|(name, _)| name.to_owned()).collect()
}

/// Host buffers for `n` rows.
#[derive(Debug, Clone)]
pub(crate) struct Buffers {
    pub features: Vec<f32>,
    pub ids: Vec<u32>,
    pub previous: Vec<u32>,
    pub action: Vec<u32>,
    pub returns: Vec<f32>,
}

impl Buffers {
    pub fn zeros(n: usize) -> Self {
        Self {
            features: vec![0.0; n * WIDTH],
            ids: vec![0; n * IDS],
            previous: vec![0; n * ACTION],
            action: vec![0; n * ACTION],
            returns: vec![0.0; n],
        }
    }

    pub fn rows(&mut self) -> Rows<'_> {
        let Self { features, ids, previous, action, returns } = self;
        Rows { features, ids, previous, action, returns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::shards::testing;
    use candle_models::policy::embedding::Observation;
    use candle_models::policy::game::Player;

    fn read(data: &Dataset, pass: Pass) -> Buffers {
        let n = data.rows(pass.game);
        let mut buffers = Buffers::zeros(n);
        data.read(pass, 0..n, buffers.rows().part(0..n)).unwrap();
        buffers
    }

    #[test]
    fn the_computer_and_who_is_not_measured_are_no_passes() {
        let mut game = testing::game(0, 50);
        game.players[1].computer = true;
        let shards = [testing::shards(&[40]), vec![Arc::new(Shard::from_game(&game, "beside the computer").unwrap())]].concat();
        let passes = |data: &Dataset| data.passes().iter().map(|pass| (pass.game, pass.player)).collect::<Vec<_>>();
        assert_eq!(passes(&Dataset::new(&shards, &[], 0).unwrap()), [(0, 0), (0, 1), (1, 0)]);
        let of = |i: usize, players: [bool; 2]| Measured { game: shards[i].clone(), players };
        let data = Dataset::measured(&[of(1, [false, true]), of(0, [false, true]), of(1, [true; 2])], &[], 0).unwrap();
        assert_eq!(passes(&data), [(1, 1), (2, 0)]);
        // A game that is too short takes its players with it.
        assert_eq!(passes(&Dataset::measured(&[of(0, [true; 2]), of(1, [true; 2])], &[], 45).unwrap()), [(0, 0)]);
    }

    #[test]
    fn the_action_follows_the_state_by_the_delay() {
        let shards = testing::shards(&[50]);
        let game = testing::game(0, 50);
        for delay in [0, 1, 18] {
            let data = Dataset::new(&shards, &[], delay).unwrap();
            assert_eq!(data.rows(0), 49 - delay);
            for player in 0..2 {
                let rows = read(&data, Pass { game: 0, player, mirror: false });
                for row in 0..data.rows(0) {
                    let of = |frame: usize| Action::from_controller(&game.frames[frame].players[player].controller).to_ids();
                    // The state of frame `row` is the last that is known; without delay the next frame's action is asked for.
                    let x = game.frames[row].players[player].fighter.position[0] * 0.05;
                    assert!((rows.features[row * WIDTH + 2] - x).abs() < 0.01);
                    assert_eq!(rows.action[row * ACTION..][..ACTION], of(row + 1 + delay));
                    assert_eq!(rows.previous[row * ACTION..][..ACTION], of(row + delay));
                }
            }
        }
    }

    #[test]
    fn any_range_of_rows_equals_the_whole() {
        let shards = testing::shards(&[50]);
        let data = Dataset::new(&shards, &[], 3).unwrap();
        let pass = Pass { game: 0, player: 1, mirror: true };
        let whole = read(&data, pass);
        let mut part = Buffers::zeros(7);
        data.read(pass, 11..18, part.rows().part(0..7)).unwrap();
        assert_eq!(part.features, whole.features[11 * WIDTH..18 * WIDTH]);
        assert_eq!(part.previous, whole.previous[11 * ACTION..18 * ACTION]);
        assert_eq!(part.action, whole.action[11 * ACTION..18 * ACTION]);
        assert_eq!(part.returns, whole.returns[11..18]);
    }

    #[test]
    fn a_mirrored_pass_is_the_mirrored_game() {
        let shards = testing::shards(&[40]);
        let game = testing::game(0, 40);
        let data = Dataset::new(&shards, &[], 0).unwrap();
        let (plain, mirrored) = (Pass { game: 0, player: 0, mirror: false }, Pass { game: 0, player: 0, mirror: true });
        let rows = read(&data, mirrored);
        let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
        for row in 0..39 {
            let observation = Observation::of(&game, row + 1, 0).unwrap().mirror();
            Embedding::default().observe(&observation, None, &mut features, &mut ids).unwrap();
            assert_eq!(rows.ids[row * IDS..][..IDS], ids);
            assert!(rows.features[row * WIDTH..].iter().zip(features).all(|(a, b)| (a - b).abs() <= 0.0005 * b.abs()));
            assert_eq!(data.actions(mirrored).unwrap()[row + 1], data.actions(plain).unwrap()[row + 1].mirror());
        }
    }

    #[test]
    fn names_are_set_for_known_players() {
        let shards = testing::shards(&[20, 20, 20, 20]);
        // Games 0 and 3 are played by P0.
        assert_eq!(frequent_names(&shards, 2), ["P0", "P1"]);
        let mut anonymous = testing::game(0, 20);
        anonymous.players = anonymous.players.map(|player| Player { name: "yyyyyy".to_owned(), ..player });
        let shard = Arc::new(Shard::from_game(&anonymous, "anonymous").unwrap());
        assert_eq!(frequent_names(&[shard], 2), [] as [&str; 0]);
        let data = Dataset::new(&shards, &["P2".to_owned(), "P0".to_owned()], 0).unwrap();
        let first = SCHEMA.iter().find(|f| f.name == "name").unwrap().offset;
        let names = |game: usize, player: usize| -> Vec<usize> {
            let rows = read(&data, Pass { game, player, mirror: false });
            let row = &rows.features[5 * WIDTH..6 * WIDTH];
            (0..112).filter(|k| row[first + k] != 0.0).collect()
        };
        assert_eq!(names(0, 0), [1]);
        assert_eq!(names(2, 0), [0]);
        assert_eq!(names(1, 0), [] as [usize; 0]);
        assert_eq!(names(0, 1), [] as [usize; 0]);
    }

    #[test]
    fn a_game_shorter_than_the_delay_is_left_out() {
        let shards = testing::shards(&[10, 30]);
        let data = Dataset::new(&shards, &[], 18).unwrap();
        assert_eq!(data.shards().len(), 1);
        assert_eq!(data.rows(0), 11);
    }
}
