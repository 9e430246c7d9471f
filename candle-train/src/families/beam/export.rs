//! The result of a run as a model bundle with its card.

use super::run::Trained;
use crate::export::EQUATIONS;
use crate::plan::TrainingResult;
use crate::run::Ended;
use candle_models::Result;
use candle_models::beam::{FAMILY, Scheme};
use candle_models::bundle::{self, CARD, Manifest};
use std::fmt::Write;
use std::path::Path;

impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    fn save(&self, directory: &Path) -> Result<String> {
        let manifest = Manifest::new(FAMILY, &self.config.model)?;
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "episodes": self.config.episodes, "seed": self.config.seed, "command": self.command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        bundle::save(directory, &manifest, &self.ended.parameters, metadata, &[(CARD, card(self)?.into_bytes())])?;
        Ok(self.figures.iter().map(|(name, figure)| format!("{name} {figure:.3}\n")).collect())
    }
}

fn card(trained: &Trained) -> Result<String> {
    let Trained { config, ended, command, .. } = trained;
    let (scheme, what) = match config.model.scheme {
        Scheme::C1 => ("C1", "the user's network is learned; the base station transmits the beam of its codebook that the user names"),
        Scheme::C2 => ("C2", "the networks of both ends are learned, the codebook that is swept is fixed"),
        Scheme::C3 => ("C3", "the networks of both ends and the codebook that is swept are learned"),
    };
    let parameters: usize = ended.parameters.values().map(|t| t.elem_count()).sum();
    let [receive, transmit] = [&config.model.channel.receive, &config.model.channel.transmit].map(|array| array.elements());
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# Beam alignment, scheme {scheme}\n");
    let _ = writeln!(
        text,
        "Aligns a link of {transmit} transmit and {receive} receive antennas in {} measurements: {what}. {parameters} parameters.\n",
        config.model.measurements
    );
    let _ = writeln!(text, "{EQUATIONS}");
    let _ = writeln!(text, "## Figures\n");
    let (count, snr) = (config.episode.evaluated, config.episode.snr);
    let _ = writeln!(text, "On {count} channels that training never saw, at {snr} dB:\n");
    for (name, what) in [("gain_db", "mean of 10 log10 G, in dB"), ("satisfaction", "share of links with G and SNR of together 20 dB")] {
        if let Some(figure) = trained.figures.get(name) {
            let _ = writeln!(text, "- {what}: {figure:.3}");
        }
    }
    let minutes = ended.time.as_secs_f64() / 60.0;
    let _ = writeln!(text, "\n## Training\n");
    let _ = writeln!(
        text,
        "{} steps, {} episodes, each with a channel of its own, seed {}; {minutes:.1} minutes of steps since the last start.\n",
        ended.step, config.episodes, config.seed
    );
    text.push_str(&ended.remark());
    let _ = writeln!(text, "```sh\n{command}\n```\n\n```toml\n{}```", config.to_toml()?);
    Ok(text)
}
