//! How strong a network is that plans its moves: tic-tac-toe against every reply, Connect Four against UCT and by a perfect solver.
//!
//! `cargo run --release --example board_strength -- weights/tictactoe [SIMULATIONS]`, and for Connect Four
//! `cargo run --release --example board_strength -- weights/connect-four 100 "$(scripts/connect-four-sets.sh)" [POSITIONS]`; without the sets it plays against
//! UCT alone.

use anyhow::{Context, Result, bail};
use candle_envs::board::{ConnectFour, Replies, Solver, TestSet, TicTacToe, Uct, play_games, reply_tree};
use candle_envs::wilson;
use candle_models::bundle::Bundle;
use candle_models::candle_core::Device;
use candle_models::muzero::{MuZeroConfig, MuZeroFamily};
use candle_models::nn::Params;
use candle_models::registry::Family;
use candle_train::muzero::config::Search;
use candle_train::muzero::play::Planned;
use std::path::Path;

/// Games at once.
const GAMES: usize = 64;
/// Simulations of the opponent, games against it.
const UCT: (u32, usize) = (1000, 400);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let bundle = Bundle::open(arguments.first().context("expected a bundle")?)?;
    let simulations = arguments.get(1).map_or(Ok(32), |text| text.parse())?;
    let config: MuZeroConfig = bundle.config()?;
    let parameters = bundle.read_parameters(&MuZeroFamily.parameters(&bundle)?)?;
    let (parameters, of_play) = (Params::stored(parameters, &Device::Cpu), (Search::Gumbel, simulations));
    match config.actions {
        9 => {
            let mut player = Planned::new::<TicTacToe>(&config, &parameters, GAMES, of_play)?;
            for side in 0..2 {
                let Replies { wins, draws, losses, mistakes } = reply_tree::<TicTacToe>(&mut player, side)?;
                println!("player {side}, every reply: {wins} won, {draws} drawn, {losses} lost; {mistakes} moves let value go");
            }
        }
        7 => {
            let (mut player, (uct, games)) = (Planned::new::<ConnectFour>(&config, &parameters, GAMES, of_play)?, UCT);
            if let Some(folder) = arguments.get(2) {
                let positions = arguments.get(3).map_or(Ok(1000), |text| text.parse())?;
                let mut solver = Solver::new();
                for name in ["L3_R1", "L2_R1", "L1_R1", "L2_R2", "L1_R2"] {
                    let mut set = TestSet::read(&Path::new(folder).join(format!("Test_{name}")))?;
                    set.positions.truncate(positions);
                    let (mistakes, n) = (set.mistakes(&mut player, &mut solver)?, set.positions.len());
                    let [low, high] = wilson(mistakes as f64, n).map(|x| 100.0 * x);
                    println!("{name}: {:.1} % of {n} moves let value go ({low:.1} to {high:.1})", 100.0 * mistakes as f64 / n as f64);
                }
            }
            let score = play_games::<ConnectFour>(&mut player, &mut Uct::new(uct, 1), games)?;
            let ([low, high], mean) = (score.interval(), score.mean());
            println!("against UCT with {uct} simulations, {games} games: {mean:.3} ({low:.3} to {high:.3})");
        }
        actions => bail!("{actions} actions: expected 9 of tic-tac-toe or 7 of Connect Four"),
    }
    Ok(())
}
