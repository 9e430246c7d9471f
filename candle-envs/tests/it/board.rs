//! Board games, who plays them, and how that is measured.

use candle_envs::board::{
    Board, ConnectFour, Perfect, Player, RandomPlayer, Score, TicTacToe, Uct, move_value, play_games, reply_tree, value,
};
use candle_envs::{Action, Env, EnvError, Pcg64, Shape, View};
use std::collections::HashSet;

fn classes<B: Board>(board: &B) -> Vec<u32> {
    (0..64).filter(|class| board.moves() >> class & 1 == 1).collect()
}

fn step<B: Board>(board: &mut B, class: u32) -> candle_envs::Result<candle_envs::Step> {
    board.step(Action { classes: &[class], numbers: &[] })
}

/// What is seen.
fn seen<B: Board>(board: &B) -> Vec<f32> {
    let mut floats = vec![f32::NAN; B::spec().floats()];
    board.observe(View { floats: &mut floats, ids: &mut [] });
    floats
}

fn legal<B: Board>(board: &B) -> Vec<u32> {
    let mut mask = vec![true; B::spec().classes()];
    board.legal(&mut mask);
    (0..mask.len() as u32).filter(|class| mask[*class as usize]).collect()
}

/// Counts games by who wins: first player, second, nobody.
fn enumerate(board: &TicTacToe, states: &mut HashSet<[u16; 2]>, over: &mut HashSet<[u16; 2]>, games: &mut [usize; 3]) {
    states.insert(board.stones());
    for class in classes(board) {
        let mut after = board.clone();
        let given = after.play(class);
        if given.terminated {
            states.insert(after.stones());
            over.insert(after.stones());
            games[if given.reward > 0.0 { board.player() } else { 2 }] += 1;
        } else {
            enumerate(&after, states, over, games);
        }
    }
}

#[test]
fn tictactoe_has_its_known_size() {
    let (mut states, mut over, mut games) = (HashSet::new(), HashSet::new(), [0; 3]);
    enumerate(&TicTacToe::default(), &mut states, &mut over, &mut games);
    assert_eq!((states.len(), over.len(), games), (5478, 958, [131_184, 77_904, 46_080]));
}

/// Positions that can be reached in so many moves, and sequences of moves.
#[test]
fn connect_four_has_its_known_size() {
    let mut level = vec![(ConnectFour::default(), 1usize)];
    for (unique, sequences) in
        [(7, 7), (49, 49), (238, 343), (1120, 2401), (4263, 16_807), (16_422, 117_649), (54_859, 823_536), (184_275, 5_673_234)]
    {
        let mut next = std::collections::HashMap::new();
        for (board, ways) in &level {
            for class in classes(board) {
                let mut after = board.clone();
                after.play(class);
                next.entry(after.stones()).or_insert((after, 0)).1 += ways;
            }
        }
        level = next.into_values().collect();
        assert_eq!((level.len(), level.iter().map(|(_, ways)| ways).sum()), (unique, sequences));
    }
}

/// Four in a row by looking at every square in every direction.
fn four_anywhere(rows: &[[usize; 7]; 6], who: usize) -> bool {
    let at = |row: i32, column: i32| usize::try_from(row).ok().and_then(|row| rows.get(row)?.get(usize::try_from(column).ok()?).copied());
    (0..6).any(|row| {
        (0..7).any(|column| {
            [(0, 1), (1, 0), (1, 1), (1, -1)]
                .iter()
                .any(|(down, across)| (0..4).all(|i| at(row + i * down, column + i * across) == Some(who)))
        })
    })
}

/// Random games beside a board of plain squares: who has won, what is legal, what wins at once, what is seen.
#[test]
fn connect_four_is_the_game_on_a_plain_board() {
    let mut random = Pcg64::new(3);
    let mut ends = [0; 2];
    for _ in 0..2000 {
        let (mut board, mut rows) = (ConnectFour::default(), [[2; 7]; 6]);
        loop {
            let mover = board.player();
            let open: Vec<u32> = (0..7).filter(|column| rows[0][*column as usize] == 2).collect();
            assert_eq!(classes(&board), open);
            assert_eq!(legal(&board), open);
            let fall = |rows: &mut [[usize; 7]; 6], column: u32| {
                let row = (0..6).rev().find(|row| rows[*row][column as usize] == 2).unwrap();
                rows[row][column as usize] = mover;
            };
            let wins = open.iter().filter(|column| {
                let mut after = rows;
                fall(&mut after, **column);
                four_anywhere(&after, mover)
            });
            let wins: u64 = wins.map(|column| 1 << column).sum();
            assert_eq!(board.winning(), wins, "{rows:?}");
            let planes: Vec<f32> = rows.iter().flatten().flat_map(|who| [*who == mover, *who == 1 - mover].map(f32::from)).collect();
            assert_eq!(seen(&board), planes);
            let column = open[random.below(open.len() as u32) as usize];
            fall(&mut rows, column);
            let given = step(&mut board, column).unwrap();
            assert_eq!(given.reward == 1.0, four_anywhere(&rows, mover));
            assert_eq!(given.terminated, given.reward == 1.0 || rows.iter().flatten().all(|who| *who != 2));
            if given.terminated {
                ends[given.reward as usize] += 1;
                assert_eq!((board.moves(), board.winning(), legal(&board)), (0, 0, vec![]));
                break;
            }
        }
    }
    assert!(ends.iter().all(|games| *games > 0), "{ends:?}");
}

#[test]
fn an_illegal_move_changes_nothing() {
    fn refused<B: Board>(board: &mut B, class: u32, reason: &str) {
        let before = serde_json::to_string(board).unwrap();
        let error = step(board, class).unwrap_err();
        assert!(matches!(&error, EnvError::IllegalAction { reason: found, .. } if found.contains(reason)), "{error}, expected {reason}");
        assert_eq!(serde_json::to_string(board).unwrap(), before);
    }
    let mut four: ConnectFour = "444444".parse().unwrap();
    refused(&mut four, 3, "full");
    refused(&mut four, 7, "one of 7 columns");
    refused(&mut "1212121".parse::<ConnectFour>().unwrap(), 1, "over");
    let mut three = TicTacToe::default();
    step(&mut three, 4).unwrap();
    refused(&mut three, 4, "occupied");
    refused(&mut three, 9, "one of 9 squares");
    for class in [0, 5, 1] {
        step(&mut three, class).unwrap();
    }
    assert_eq!(step(&mut three, 7).unwrap().reward, 0.0);
    assert_eq!(step(&mut three, 2).unwrap().reward, 1.0);
    refused(&mut three, 8, "over");
    let said = |moves: &str| moves.parse::<ConnectFour>().unwrap_err().to_string();
    assert_eq!(
        ["8", "0", "4x"].map(said),
        ["move 1 of \"8\"", "move 1 of \"0\"", "move 2 of \"4x\""].map(|at| format!("{at}: expected one of 7 columns"))
    );
    assert_eq!(said("4444444"), "move 7 of \"4444444\": the column is full");
    assert_eq!(said("12121212"), "move 8 of \"12121212\": the game is over");
}

/// The mover's own stones come first, whoever it is; row 0 is the upper one.
#[test]
fn the_mover_sees_the_game_from_its_side() {
    let mut board = TicTacToe::default();
    step(&mut board, 2).unwrap();
    let expected = |places: [(usize, usize); 2], n: usize| (0..n).map(|i| f32::from(places.contains(&(i / 2, i % 2)))).collect::<Vec<_>>();
    assert_eq!(seen(&board), expected([(2, 1), (2, 1)], 18));
    step(&mut board, 3).unwrap();
    assert_eq!(seen(&board), expected([(2, 0), (3, 1)], 18));
    let board: ConnectFour = "11".parse().unwrap();
    assert_eq!(seen(&board), expected([(5 * 7, 0), (4 * 7, 1)], 84));
}

/// A mark on the last stone, and a line through the stones that won.
#[test]
fn a_picture_has_the_winning_line() {
    let lines = |scene: candle_envs::Scene, shade: [u8; 3], width: f32| {
        let of = |shape: &&Shape| matches!(shape, Shape::Line { color, width: of, .. } if *color == shade && *of == width);
        scene.shapes.iter().filter(of).cloned().collect::<Vec<_>>()
    };
    let board: ConnectFour = "121212".parse().unwrap();
    assert!(lines(board.draw(), [40; 3], 0.1).is_empty());
    assert_eq!(board.draw().shapes.len(), 42 + 1);
    let board: ConnectFour = "1212121".parse().unwrap();
    let [Shape::Line { from, to, .. }] = lines(board.draw(), [40; 3], 0.1)[..] else { panic!("one line") };
    assert_eq!((from, to), ([0.5, 5.5], [0.5, 2.5]));
    let mut board = TicTacToe::default();
    for class in [0, 1, 4, 2, 8] {
        step(&mut board, class).unwrap();
    }
    let [Shape::Line { from, to, .. }] = lines(board.draw(), [60; 3], 0.06)[..] else { panic!("one line") };
    assert_eq!((from, to), ([0.5, 0.5], [2.5, 2.5]));
}

/// The game is a draw, and against a corner only the middle holds it.
#[test]
fn values_are_those_of_perfect_play() {
    assert_eq!(value(&TicTacToe::default()), 0);
    let mut board = TicTacToe::default();
    step(&mut board, 0).unwrap();
    let values: Vec<i32> = (1..9).map(|class| move_value(&board, class)).collect();
    assert_eq!(values, [-1, -1, -1, 0, -1, -1, -1, -1]);
}

#[test]
fn nobody_beats_a_perfect_player() {
    for side in 0..2 {
        let perfect = reply_tree::<TicTacToe>(&mut Perfect, side).unwrap();
        assert_eq!((perfect.losses, perfect.mistakes), (0, 0), "{perfect:?}");
        assert!(perfect.wins > 0 && perfect.draws > 0, "{perfect:?}");
        let random = reply_tree::<TicTacToe>(&mut RandomPlayer::new(1), side).unwrap();
        assert!(random.losses > 0 && random.mistakes > 0, "{random:?}");
    }
    // Against one move each there are 8, 6, 4 and 2 replies, fewer where a game ends early.
    let mut first = |boards: &[TicTacToe]| Ok(boards.iter().map(|board| board.moves().trailing_zeros()).collect());
    let found = reply_tree(&mut first, 0).unwrap();
    assert!(found.wins + found.draws + found.losses <= 8 * 6 * 4 * 2, "{found:?}");
    assert!(found.losses > 0);
}

#[test]
fn uct_with_many_simulations_never_loses_tictactoe() {
    for side in 0..2 {
        let replies = reply_tree::<TicTacToe>(&mut Uct::new(1000, 1), side).unwrap();
        assert_eq!(replies.losses, 0, "{replies:?}");
    }
}

#[test]
fn uct_beats_a_random_player() {
    let score = play_games::<ConnectFour>(&mut Uct::new(100, 1), &mut RandomPlayer::new(2), 100).unwrap();
    assert!(score.wins >= 98, "{score:?}");
    assert_eq!(score.games(), 100);
    // The same with the sides changed.
    let score = play_games::<ConnectFour>(&mut RandomPlayer::new(2), &mut Uct::new(100, 1), 100).unwrap();
    assert!(score.losses >= 98, "{score:?}");
}

/// A seed is a player: the same moves again, on one core and on several; another seed differs somewhere.
#[test]
fn uct_depends_on_its_seed_alone() {
    let boards: Vec<ConnectFour> = ["", "4", "44", "4453", "334455", "1727"].map(|moves| moves.parse().unwrap()).to_vec();
    let all = |seed: u64| {
        let mut player = Uct::new(20, seed);
        (0..5).flat_map(|_| player.choose(&boards).unwrap()).collect::<Vec<_>>()
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert_eq!(pool.install(|| all(1)), all(1));
    assert_ne!(all(1), all(2));
}

/// It takes a win, and stops the other's.
#[test]
fn uct_sees_threats() {
    let boards = ["121212", "12121"].map(|moves| moves.parse::<ConnectFour>().unwrap());
    assert_eq!(Uct::new(200, 1).choose(&boards).unwrap(), [0, 0]);
}

#[test]
fn sides_are_swapped_and_games_counted() {
    let mut firsts = 0;
    let mut watched = |boards: &[TicTacToe]| {
        firsts += boards.iter().filter(|board| board.player() == 0 && board.moves() == 0x1ff).count();
        Perfect.choose(boards)
    };
    let score = play_games(&mut watched, &mut Perfect, 7).unwrap();
    assert_eq!(score, Score { wins: 0, draws: 7, losses: 0 });
    assert_eq!((score.mean(), firsts), (0.5, 4));
    let mut wrong = |boards: &[TicTacToe]| Ok(vec![4; boards.len()]);
    let said = play_games(&mut wrong, &mut Perfect, 2).unwrap_err().to_string();
    assert!(said.contains("illegal action 4"), "{said}");
    let mut few = |_: &[TicTacToe]| Ok(Vec::new());
    assert!(play_games(&mut few, &mut Perfect, 2).is_err());
}
