//! `candle-infer generate`: channels, drawn from a seed.

use super::snr_db;
use crate::bundle::Bundle;
use crate::cli::Usage;
use crate::families::beam::{Array, BeamConfig, Cdl, ChannelConfig, ChannelModel, Channels, FAMILY, Geometric, Mobility, Profile};
use crate::infer::{Column, Output, line};
use crate::random::Random;
use anyhow::{Result, bail};
use safetensors::tensor::Dtype;
use std::path::{Path, PathBuf};

/// Channels that are drawn together.
const ROWS: usize = 64;

/// Channels for a beam controller: channels [COUNT, S, N_RX, N_TX, 2] (re, im) with S = 1, or with movement S = T.
#[derive(clap::Args)]
pub struct Generate {
    /// File to write, .safetensors: complete or not at all.
    out: PathBuf,
    /// Number of channels.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Seed: channel i depends on it and on i only, and is the i-th that `run` draws itself from the same seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Also write snr_db, this signal-to-noise ratio in dB for each.
    #[arg(long, value_name = "DB", allow_negative_numbers = true, value_parser = snr_db)]
    snr: Option<f32>,
    /// Channels like those that this beam controller was trained on.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["transmit", "receive", "paths", "azimuth", "rician", "profile", "doppler", "steps"])]
    bundle: Option<PathBuf>,
    /// The base station's array: its elements in a row (32), or ROWSxCOLUMNS (4x8).
    #[arg(long, value_name = "N", default_value = "32", value_parser = array)]
    transmit: Array,
    /// The user's array.
    #[arg(long, value_name = "N", default_value = "16", value_parser = array)]
    receive: Array,
    /// Number of paths.
    #[arg(long, value_name = "L", default_value_t = 3)]
    paths: usize,
    /// Azimuths are uniform within so many degrees to either side.
    #[arg(long, value_name = "DEGREES", default_value_t = 90.0)]
    azimuth: f32,
    /// Rician factor in dB: the power of the first path over that of the others [default: all are alike].
    #[arg(long, value_name = "DB", allow_negative_numbers = true)]
    rician: Option<f32>,
    /// A profile of 3GPP TR 38.901 instead: cdl-a to cdl-e.
    #[arg(long, value_parser = profile, conflicts_with_all = ["paths", "azimuth", "rician"])]
    profile: Option<Profile>,
    /// The user moves: largest Doppler shift in cycles per step.
    #[arg(long, value_name = "CYCLES")]
    doppler: Option<f32>,
    /// Steps of a moving user's channel.
    #[arg(long, value_name = "T", default_value_t = 16, requires = "doppler", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

impl Generate {
    pub fn write(&self) -> Result<()> {
        let (config, steps) = self.config()?;
        let mut output = Output::open(Some(&self.out))?;
        if !matches!(output, Output::Tensors(..)) {
            return Err(Usage::error(format!("{}: expected a name in .safetensors", self.out.display())));
        }
        let (count, random) = (self.count as usize, Random::new(self.seed).stream("channels"));
        for first in (0..count).step_by(ROWS) {
            let channels = Channels::generate(&config, random, first as u64, ROWS.min(count - first), steps)?;
            if first == 0 {
                output.start_tensors(&self.columns(&channels), &[count])?;
            }
            for row in 0..channels.batch() {
                let matrices = (0..channels.steps()).flat_map(|step| channels.at(row, step).matrix());
                output.value(0, first + row, 0, matrices.map(f32::to_le_bytes))?;
                if let Some(snr) = self.snr {
                    output.value(1, first + row, 0, [snr.to_le_bytes()].into_iter())?;
                }
            }
        }
        output.commit()?;
        Ok(line(format_args!("{}: {count} channels from seed {}: {}", self.out.display(), self.seed, serde_json::to_string(&config)?))?)
    }

    fn columns(&self, channels: &Channels) -> Vec<Column> {
        let shape = [channels.steps(), channels.receive_elements(), channels.transmit_elements(), 2];
        let snr_db = self.snr.map(|_| Column::new("snr_db", Dtype::F32, &[]));
        [Column::new("channels", Dtype::F32, &shape)].into_iter().chain(snr_db).collect()
    }

    /// What channels are drawn from, and their steps.
    fn config(&self) -> Result<(ChannelConfig, usize)> {
        if let Some(dir) = &self.bundle {
            return trained_on(dir);
        }
        let geometric = || Geometric { paths: self.paths, azimuth: self.azimuth, rician_db: self.rician, ..Geometric::default() };
        let model = match self.profile {
            Some(profile) => ChannelModel::Cdl(Cdl { profile, rays: 1, rotation: 180.0 }),
            None => ChannelModel::Geometric(geometric()),
        };
        let mobility = self.doppler.map(|doppler| Mobility { doppler, drift: 0.0 });
        let config = ChannelConfig { transmit: self.transmit, receive: self.receive, model, mobility };
        config.validate().map_err(|e| Usage(e.to_string()))?;
        Ok((config, self.steps as usize))
    }
}

fn trained_on(dir: &Path) -> Result<(ChannelConfig, usize)> {
    let bundle = Bundle::open(dir)?;
    bundle.require_family(&[FAMILY])?;
    let config: BeamConfig = bundle.config()?;
    config.validate()?;
    Ok((config.channel, config.measurements))
}

fn array(text: &str) -> Result<Array> {
    let array = match text.split_once('x') {
        Some((rows, columns)) => Array::Planar { rows: rows.parse()?, columns: columns.parse()? },
        None => Array::Ula { elements: text.parse()? },
    };
    Ok(array)
}

fn profile(text: &str) -> Result<Profile> {
    let named = |profile: &&Profile| text.eq_ignore_ascii_case(&format!("cdl-{profile:?}"));
    match Profile::ALL.iter().find(named) {
        Some(profile) => Ok(*profile),
        None => bail!("expected cdl-a to cdl-e"),
    }
}
