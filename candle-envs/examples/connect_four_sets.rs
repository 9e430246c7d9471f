//! How often UCT with 1000 simulations and a random player let value go in Connect Four, on Pons' test sets:
//!
//! `cargo run --release -p candle-envs --features solver --example connect_four_sets -- "$(scripts/connect-four-sets.sh)"`
//!
//! A second argument takes so many positions of each set, a third one another number of simulations.

use candle_envs::board::{ConnectFour, Player, RandomPlayer, Solver, TestSet, Uct};
use candle_envs::wilson;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Positions of each set whose scores the solver is asked for.
const CHECKED: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().ok_or("expected the folder of the sets, which scripts/connect-four-sets.sh prints")?;
    let number = |i: usize, default: usize| arguments.get(i).map_or(Ok(default), |text| text.parse());
    let (positions, simulations) = (number(1, 1000)?, number(2, 1000)?);
    let mut solver = Solver::new();
    println!("moves that lose value, with 95 % confidence; scores that the solver gives as well; time of all");
    for name in ["L3_R1", "L2_R1", "L1_R1", "L2_R2", "L1_R2"] {
        let began = Instant::now();
        let mut set = TestSet::read(&Path::new(folder).join(format!("Test_{name}")))?;
        set.positions.truncate(positions);
        let random = mistakes(&set, &mut RandomPlayer::new(1), &mut solver)?;
        let uct = mistakes(&set, &mut Uct::new(simulations as u32, 1), &mut solver)?;
        let (mut agree, checked) = (0, set.positions.len().min(CHECKED));
        for (board, score) in &set.positions[..checked] {
            agree += usize::from(solver.score(board)? == *score);
        }
        println!("{name}  random {random}  UCT {uct}  scores {agree}/{checked}  {:.1} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

fn mistakes(set: &TestSet, player: &mut impl Player<ConnectFour>, solver: &mut Solver) -> candle_envs::Result<String> {
    let (mistakes, positions) = (set.mistakes(player, solver)?, set.positions.len());
    let [low, high] = wilson(mistakes as f64, positions).map(|x| 100.0 * x);
    Ok(format!("{:4.1} % ({low:.1} to {high:.1})", 100.0 * mistakes as f64 / positions as f64))
}
