//! From a game to the bytes of a shard.

use super::{BLOCK, HALF_LIFE, INFO, Info, content};
use candle_models::ops::slices;
use candle_models::policy::actions::{ACTION, Action};
use candle_models::policy::embedding::{Embedding, IDS, SCHEMA, WIDTH};
use candle_models::policy::game::{Fighter, Game};
use candle_models::{Error, Result};
use half::f16;
use half::slice::HalfFloatSliceExt;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;

/// A shard's bytes.
pub(super) fn encode(game: &Game, source: &str, replay: &str) -> Result<Vec<u8>> {
    let frames = game.frames.len();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::with_capacity(8);
    for player in 0..2 {
        let (features, ids) = encode_rows(game, player)?;
        let returns = bytemuck::cast_slice(&returns(game, player)).to_vec();
        check_finite(source, player, &features, &returns)?;
        let actions = game.frames.iter().flat_map(|f| Action::from_controller(&f.players[player].controller).classes()).collect();
        tensors.push((format!("features.{player}"), Dtype::F16, vec![frames - 1, WIDTH], features));
        tensors.push((format!("ids.{player}"), Dtype::U16, vec![frames - 1, IDS], ids));
        tensors.push((format!("actions.{player}"), Dtype::U8, vec![frames, ACTION], actions));
        tensors.push((format!("returns.{player}"), Dtype::F32, vec![frames - 1], returns));
    }
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let info = Info {
        source: source.to_owned(),
        replay: replay.to_owned(),
        names: [0, 1].map(|p| game.players[p].name.clone()),
        codes: [0, 1].map(|p| game.players[p].code.clone()),
        computers: [0, 1].map(|p| game.players[p].computer),
        recorded: game.recorded,
        incomplete: game.incomplete.clone(),
        content: content(tensors.iter().map(|t| t.3.as_slice())),
    };
    let info = serde_json::to_string(&info).map_err(|e| Error::Input(format!("shard of {source}: {e}")))?;
    let failed = |e: safetensors::SafeTensorError| Error::Input(format!("shard of {source}: {e}"));
    let mut views = Vec::with_capacity(tensors.len());
    for (name, dtype, shape, bytes) in &tensors {
        views.push((name.clone(), TensorView::new(*dtype, shape.clone(), bytes).map_err(failed)?));
    }
    safetensors::serialize(views, Some(HashMap::from([(INFO.to_owned(), info)]))).map_err(failed)
}

fn encode_rows(game: &Game, player: usize) -> Result<(Vec<u8>, Vec<u8>)> {
    let (embedding, rows) = (Embedding::default(), game.frames.len() - 1);
    let (mut features, mut ids) = (vec![0f32; BLOCK * WIDTH], vec![0u32; BLOCK * IDS]);
    let mut halves = vec![f16::ZERO; BLOCK * WIDTH];
    let (mut feature_bytes, mut id_bytes) = (Vec::with_capacity(rows * WIDTH * 2), Vec::with_capacity(rows * IDS * 2));
    for start in (0..rows).step_by(BLOCK) {
        let n = BLOCK.min(rows - start);
        let (features, ids, halves) = (&mut features[..n * WIDTH], &mut ids[..n * IDS], &mut halves[..n * WIDTH]);
        embedding.encode_game(game, start + 1..start + 1 + n, player, None, features, ids)?;
        halves.convert_from_f32_slice(features);
        feature_bytes.extend_from_slice(bytemuck::cast_slice(halves));
        id_bytes.extend_from_slice(bytemuck::cast_slice(&ids.iter().map(|&id| id as u16).collect::<Vec<_>>()));
    }
    Ok((feature_bytes, id_bytes))
}

/// Refuses numbers that are not finite: one of them in a batch makes the gradient of every parameter so.
pub(super) fn check_finite(source: &str, player: usize, features: &[u8], returns: &[u8]) -> Result<()> {
    let float = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).is_finite();
    let refused =
        |row: usize, what: &str| Err(Error::Input(format!("{source}: player {player}, row {row}: {what} is not a finite number")));
    let mut values = [f16::ZERO; WIDTH];
    for (row, bytes) in features.chunks_exact(WIDTH * 2).enumerate() {
        // Bytes of a file have no alignment.
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
        if !slices::are_finite(&values) {
            let column = values.iter().position(|value| !value.is_finite()).unwrap_or_default();
            let field = SCHEMA.iter().rfind(|field| field.offset <= column).map_or("", |field| field.name);
            return refused(row, &format!("feature {column} ({field})"));
        }
    }
    match returns.as_chunks::<4>().0.iter().position(|bytes| !float(bytes)) {
        Some(row) => refused(row, "the return"),
        None => Ok(()),
    }
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
