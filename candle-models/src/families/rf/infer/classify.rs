//! `candle-infer rf classify`.

use super::open;
use crate::bundle::Bundle;
use crate::cli::{self, Usage};
use crate::engine::Runner;
use crate::registry::Family;
use crate::rf::classifier::greatest;
use crate::rf::sigmf::Recording;
use crate::rf::{ClassifierConfig, Complex32, RfConfig, RfFamily};
use anyhow::{Context, Result, bail};
use candle_core::Device;
use clap::Args;
use std::path::PathBuf;

/// Pieces that are classified in a pass.
const BATCH: usize = 64;

#[derive(Args)]
pub struct Arguments {
    /// The recording. Its symbols must last as many samples as those that the classifier has learnt from (weights/classifier: eight), its signal must lie around the
    /// centre.
    #[arg(value_name = "FILE")]
    recording: PathBuf,
    /// The classifier.
    #[arg(long, value_name = "DIR", default_value = "weights/classifier")]
    bundle: PathBuf,
    /// Look at so many pieces, evenly over the recording; what has no power is left out.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pieces: u32,
    /// The signal's power over the noise's, dB, for a classifier that reads it; the samples must be scaled so that the signal's power is 1.
    #[arg(long, value_name = "DB", allow_negative_numbers = true)]
    snr: Option<f64>,
}

/// What a classifier says of a recording.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    /// How many pieces had the greatest score in each class.
    pub counts: Vec<usize>,
    /// The share of each class in the scores of all pieces together, as if all had the same kind.
    pub shares: Vec<f64>,
}

impl Arguments {
    /// Classifies pieces and prints the classes, the most likely one first.
    pub fn run(&self) -> Result<()> {
        let (config, mut runner) = load(&self.bundle)?;
        let recording = open(&self.recording)?;
        let Said { counts, shares } = classify(&recording, &config, &mut runner, (self.pieces as usize, self.snr))?;
        let looked = counts.iter().sum::<usize>();
        println!("{} pieces of {} samples", cli::count(looked as u64), config.samples);
        let mut order: Vec<usize> = (0..config.classes.len()).collect();
        order.sort_by(|a, b| counts[*b].cmp(&counts[*a]).then(shares[*b].total_cmp(&shares[*a])));
        for class in order {
            println!("{:<12} {:5.1}% of the pieces", config.classes[class], 100.0 * counts[class] as f64 / looked as f64);
        }
        let best = greatest(&shares);
        println!("if all are of one kind: {}, {:.1}%", config.classes[best], 100.0 * shares[best]);
        Ok(())
    }
}

pub(super) fn load(path: &std::path::Path) -> Result<(ClassifierConfig, Runner)> {
    let bundle = Bundle::open(path)?;
    bundle.require_family(&[RfFamily.name()])?;
    let RfConfig::Classifier(config) = bundle.config()? else {
        return Err(Usage::error(format!("--bundle {}: expected a classifier", path.display())));
    };
    let (_, network) = RfFamily.load(&bundle, &Device::Cpu)?.pop().context("no network")?;
    Ok((config, Runner::new(network, BATCH, 1)?))
}

pub(super) fn classify(
    recording: &Recording,
    config: &ClassifierConfig,
    runner: &mut Runner,
    (pieces, snr_db): (usize, Option<f64>),
) -> Result<Said> {
    let there = (recording.len() / config.samples as u64) as usize;
    if there == 0 {
        bail!("{}: {} samples make no piece of {}", recording.path().display(), recording.len(), config.samples);
    }
    let (count, classes) = (pieces.min(there), config.classes.len());
    let (mut counts, mut sums) = (vec![0; classes], vec![0.0; classes]);
    let mut signal = vec![Complex32::default(); config.samples];
    let mut filled = 0;
    for i in 0..count {
        let piece = (i as u64 * there as u64 / count as u64) * config.samples as u64;
        recording.read(piece, &mut signal);
        if signal.iter().any(|x| x.norm_sqr() > 0.0) {
            config.encode(&signal, snr_db, runner.floats_mut("iq", filled)?).with_context(|| format!("samples from {piece} on"))?;
            filled += 1;
        }
        if filled == BATCH || (i + 1 == count && filled > 0) {
            // Rows of a batch that is not full hold what was there before.
            runner.step(&[true; BATCH])?;
            for row in 0..filled {
                let logits = runner.floats("logits", row)?;
                let best = greatest(logits);
                let most = logits[best];
                let total = logits.iter().map(|x| f64::from(x - most).exp()).sum::<f64>().ln();
                counts[best] += 1;
                sums.iter_mut().zip(logits).for_each(|(sum, x)| *sum += f64::from(x - most) - total);
            }
            filled = 0;
        }
    }
    if counts.iter().all(|count| *count == 0) {
        bail!("{}: all of its samples are 0", recording.path().display());
    }
    let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = sums.iter().map(|x| (x - most).exp()).sum();
    Ok(Said { counts, shares: sums.iter().map(|x| (x - most).exp() / total).collect() })
}
