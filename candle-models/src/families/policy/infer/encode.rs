//! A replay as the named tensors that a policy reads.

use super::watch::Watch;
use super::{Bundle, Watched};
use crate::cli;
use crate::families::policy::actions::ACTION;
use crate::families::policy::embedding::{IDS, WIDTH};
use crate::families::policy::replay::Reader as ReplayReader;
use crate::tensors::NamedTensors;
use anyhow::Result;
use candle_core::{Device, Tensor};
use std::path::Path;

/// A value of every frame of every player.
struct Column<T> {
    width: usize,
    players: Vec<Vec<T>>,
}

impl<T: candle_core::WithDType> Column<T> {
    fn new(width: usize, players: usize) -> Self {
        Self { width, players: vec![Vec::new(); players] }
    }

    fn into_tensor(self) -> Result<Tensor> {
        let (players, width) = (self.players.len(), self.width);
        Ok(Tensor::from_vec(self.players.concat(), (players, (), width), &Device::Cpu)?)
    }
}

/// The inputs `[players, frames, ...]` that are recorded in a replay: what the players saw, what they had done and what they did.
pub fn encode(bundle: &Bundle, options: &Watched, path: &Path) -> Result<NamedTensors> {
    let watch = Watch::new(bundle, options)?;
    let reader = ReplayReader::open(path)?;
    let players = watch.watched(path, reader.game())?.len();
    let (mut features, mut ids) = (Column::new(WIDTH, players), Column::new(IDS, players));
    let [mut previous, mut action] = [(); 2].map(|()| Column::new(ACTION, players));
    let (frames, incomplete) = watch.replay(path, reader, &mut |view, players, now| {
        for (sequence, &player) in players.iter().enumerate() {
            let seen = watch.see(view, player)?;
            features.players[sequence].extend(seen.features);
            ids.players[sequence].extend(seen.ids);
            let [recorded, last, _] = now.actions.each_ref().map(|actions| actions[player].to_ids());
            previous.players[sequence].extend(last);
            action.players[sequence].extend(recorded);
        }
        Ok(())
    })?;
    if let Some(reason) = incomplete {
        cli::warn(format_args!("{}: incomplete, {frames} frames recovered: {reason}", path.display()));
    }
    let mut tensors = NamedTensors::new();
    tensors.insert("features", features.into_tensor()?);
    tensors.insert("ids", ids.into_tensor()?);
    tensors.insert("previous_action", previous.into_tensor()?);
    tensors.insert("action", action.into_tensor()?);
    Ok(tensors)
}
