//! The games beside MinAtar's own, whose traces `scripts/minatar-check.py` writes.

use super::game::{Draws, Game, Grid, Move, SIDE};
use super::{Asterix, Breakout, Freeway, Seaquest, SpaceInvaders, sticky_step};
use std::path::Path;

/// The draws of a line of a trace.
struct Traced<'a>(std::str::Split<'a, char>);

impl<'a> Traced<'a> {
    fn new(draws: &'a str) -> Self {
        let mut draws = draws.split(',');
        if draws.clone().eq(["-"]) {
            draws.next();
        }
        Self(draws)
    }
}

impl Draws for Traced<'_> {
    fn chance(&mut self, probability: f64) -> bool {
        let draw = self.0.next().filter(|draw| draw.len() == 2).expect("a draw of [0, 1)");
        f64::from(2 * u16::from_str_radix(draw, 16).unwrap() + 1) / 512.0 < probability
    }

    fn below(&mut self, n: u32) -> u32 {
        let draw = self.0.next().filter(|draw| draw.len() == 1).expect("a whole number drawn");
        Some(draw.parse().unwrap()).filter(|draw| *draw < n).expect("a number below n")
    }
}

/// Cells of a trace, two digits each.
fn cells(text: &str) -> Vec<usize> {
    let digits: Vec<u32> = text.chars().filter(|c| *c != '-').map(|c| c.to_digit(32).unwrap()).collect();
    digits.chunks(2).map(|pair| (pair[0] * 32 + pair[1]) as usize).collect()
}

fn name(cell: usize, channels: usize) -> String {
    let place = cell / channels;
    format!("row {} column {} channel {}", place / SIDE as usize, place % SIDE as usize, cell % channels)
}

/// Plays a trace; the steps of it.
fn replay<G: Game>(folder: &Path) -> usize {
    let channels = G::COLORS.len();
    let (mut game, mut last) = (G::default(), Move::Nothing);
    let mut expected = vec![0.0; SIDE as usize * SIDE as usize * channels];
    let mut found = expected.clone();
    let path = folder.join(G::NAME).with_extension("txt");
    let trace = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (number, line) in (1..).zip(trace.lines()) {
        let at = format!("{} line {number}", G::NAME);
        let [action, draws, reward, over, changed] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let mut draws = Traced::new(draws);
        let outcome = match "nlurdf".find(action) {
            Some(action) => {
                let step = sticky_step(&mut game, &mut last, Move::ALL[action], &mut draws);
                (step.reward, step.terminated)
            }
            None => {
                game.reset(&mut draws);
                last = Move::Nothing;
                (0.0, false)
            }
        };
        assert_eq!(
            outcome,
            (reward.parse().unwrap(), over == "1"),
            "{at}: reward and end of {game:?}",
            game = serde_json::to_string(&game)
        );
        assert_eq!(draws.0.next(), None, "{at}: a draw that was not asked for");
        cells(changed).iter().for_each(|cell| expected[*cell] = 1.0 - expected[*cell]);
        game.show(&mut Grid::empty(&mut found, channels));
        let differs = (0..found.len()).find(|cell| found[*cell] != expected[*cell]).map(|cell| name(cell, channels));
        assert_eq!(differs, None, "{at}: {game:?}", game = serde_json::to_string(&game));
    }
    trace.lines().count()
}

fn traces(folder: &Path) -> [usize; 5] {
    [
        replay::<Breakout>(folder),
        replay::<Freeway>(folder),
        replay::<Asterix>(folder),
        replay::<SpaceInvaders>(folder),
        replay::<Seaquest>(folder),
    ]
}

/// The games of MinAtar 1.0.15, observation for observation.
#[test]
fn games_are_minatars() {
    let lines = traces(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/minatar"));
    assert!(lines.iter().all(|lines| *lines > 800), "{lines:?}");
}

/// The same with longer traces, which the script writes for it.
#[test]
#[ignore = "deep: nothing of its own; scripts/minatar-check.py runs it with the variable set"]
fn traces_of_a_folder() {
    if let Some(folder) = std::env::var_os("MINATAR_TRACES") {
        traces(Path::new(&folder));
    }
}
