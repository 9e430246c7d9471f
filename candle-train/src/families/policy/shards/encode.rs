//! From a game to its bytes in a shard.

use super::{HALF_LIFE, Info, record};
use candle_models::policy::game::{Fighter, Game};
use candle_models::{Error, Result};

/// A game: the end of every frame's bytes, counted from the first one's start, as u32 behind a 0; then the frames.
pub(super) fn encode(game: &Game, source: &str, replay: &str) -> Result<(Info, Vec<u8>)> {
    let frames = game.frames.len();
    if frames < 2 {
        return Err(Error::Input(format!("{source}: expected at least 2 frames, found {frames}")));
    }
    let mut values = [Vec::new(), Vec::new()];
    for (player, values) in values.iter_mut().enumerate() {
        *values = returns(game, player);
        if let Some(row) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::Input(format!("{source}: player {player}, row {row}: the return is not a finite number")));
        }
        values.push(0.0);
    }
    let seed = record::seed(replay);
    let (mut ends, mut records) = (Vec::with_capacity(4 * (frames + 1)), Vec::with_capacity(frames * 176));
    ends.extend(0u32.to_le_bytes());
    for (number, frame) in game.frames.iter().enumerate() {
        record::put(&mut records, seed, number, frame, [values[0][number], values[1][number]]);
        let end = u32::try_from(records.len()).map_err(|_| Error::Input(format!("{source}: {frames} frames are too many")))?;
        ends.extend(end.to_le_bytes());
    }
    ends.extend(records);
    let info = Info {
        source: source.to_owned(),
        replay: replay.to_owned(),
        names: [0, 1].map(|p| game.players[p].name.clone()),
        codes: [0, 1].map(|p| game.players[p].code.clone()),
        computers: [0, 1].map(|p| game.players[p].computer),
        recorded: game.recorded,
        incomplete: game.incomplete.clone(),
        stage: game.stage,
        frames,
    };
    Ok((info, ends))
}

/// Per row, the discounted sum of rewards from its frame on: +1 when the opponent loses a stock, -1 when the player does,
/// 0.01 for each percent of damage dealt, minus that for each taken.
pub(super) fn returns(game: &Game, player: usize) -> Vec<f32> {
    let discount = 0.5f64.powf(1.0 / HALF_LIFE);
    let loss = |before: &Fighter, after: &Fighter| {
        let stocks = f64::from(before.stocks.saturating_sub(after.stocks));
        stocks + 0.01 * f64::from(after.percent - before.percent).clamp(0.0, 999.0)
    };
    let mut value = 0.0;
    let mut returns: Vec<f32> = game
        .frames
        .windows(2)
        .rev()
        .map(|pair| {
            let of = |p: usize| loss(&pair[0].players[p].fighter, &pair[1].players[p].fighter);
            value = of(1 - player) - of(player) + discount * value;
            value as f32
        })
        .collect();
    returns.reverse();
    returns
}
