//! `candle-infer rf spectrum`.

use super::picture::{self, Spectrogram};
use super::{open, samples};
use crate::cli::Usage;
use crate::files::write_atomic;
use crate::rf::spectrum::{Density, Estimate, Sides, Welch};
use crate::rf::{Complex32, wide};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Columns and rows of a spectrogram at most.
const MOST: [usize; 2] = [1200, 512];
/// Segments over which a column is a mean, where there are so many.
const SEGMENTS: usize = 4;

#[derive(Args)]
pub struct Arguments {
    /// The recording.
    #[arg(value_name = "FILE")]
    recording: PathBuf,
    /// Write the picture: density and spectrogram as .svg, the spectrogram alone as .png.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Samples of a segment: half of each is shared with the next one, and a window (Hann's) fades it in and out.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    segment: u32,
    /// Look at so many seconds of it from the beginning on [default: all].
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
}

impl Arguments {
    /// Reads the recording once, in pieces.
    pub fn run(&self) -> Result<()> {
        let ending = self.out.as_ref().map(|path| path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_owned());
        if let Some(ending) = ending.as_deref().filter(|ending| !["svg", "png"].contains(ending)) {
            return Err(Usage::error(format!("--out: expected a name in .svg or .png, found one in .{ending}")));
        }
        let recording = open(&self.recording)?;
        let rate = recording.sample_rate()?;
        let length = match self.seconds {
            Some(seconds) => (samples(seconds, rate, "--seconds")? as u64).min(recording.len()),
            None => recording.len(),
        };
        let segment = (self.segment as usize).min(length as usize);
        let sides = if recording.meta.global.datatype.complex { Sides::Two } else { Sides::One };
        let options = Welch { segment, overlap: segment / 2, sides, less_mean: false, ..Welch::default() };
        let mut whole = Estimate::new(rate, &options)?;
        // Columns of as many samples, each a mean over segments of its own.
        let least = segment + (SEGMENTS - 1) * (segment - options.overlap);
        let column = (length as usize).div_ceil(MOST[0]).max(least).min(length as usize);
        let mut spectrogram = Spectrogram::new(MOST[1].min(sides.bins(segment)));
        let (mut piece, mut samples) = (vec![Complex32::default(); column], Vec::new());
        for first in (0..length).step_by(column) {
            let count = recording.read(first, &mut piece[..column.min((length - first) as usize)]);
            samples.clear();
            samples.extend(piece[..count].iter().map(|x| wide(*x)));
            whole.push(&samples)?;
            if self.out.is_some() && count >= segment {
                let mut part = Estimate::new(rate, &options)?;
                part.push(&samples)?;
                spectrogram.push(&part.density()?);
            }
        }
        let density = whole.density()?;
        let frequency = recording.meta.capture(recording.meta.offset()).and_then(|capture| capture.frequency);
        print(&density, frequency);
        if let Some(path) = &self.out {
            let shown = picture::Shown { density: &density, spectrogram: &spectrogram, seconds: length as f64 / rate, frequency };
            let bytes = if ending.as_deref() == Some("png") { picture::png(&spectrogram)? } else { picture::svg(&shown)?.into_bytes() };
            write_atomic(path, &bytes)?;
        }
        Ok(())
    }
}

/// Power, and the strongest frequencies that are peaks of their surroundings.
fn print(density: &Density, centre: Option<f64>) {
    let decibels = |x: f64| 10.0 * x.max(f64::MIN_POSITIVE).log10();
    println!("power {:.2} dB, bins of {} Hz", decibels(density.power.iter().sum::<f64>() * density.step), density.step);
    let bins: Vec<(f64, f64)> = density.ascending().collect();
    let around = (bins.len() / 64).max(1);
    let is_peak = |i: usize| bins[i.saturating_sub(around)..(i + around + 1).min(bins.len())].iter().all(|(_, power)| *power <= bins[i].1);
    let mut peaks: Vec<(f64, f64)> = (0..bins.len()).filter(|i| is_peak(*i)).map(|i| bins[i]).collect();
    peaks.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (frequency, power) in peaks.iter().take(5) {
        let absolute = centre.map(|centre| format!(", {:.6} MHz", (centre + frequency) / 1e6)).unwrap_or_default();
        println!("{frequency:>14.1} Hz{absolute}: {:.1} dB/Hz", decibels(*power));
    }
}
