//! The result of a run as a model bundle with its card.

use super::config::RunConfig;
use super::dataset::Dataset;
use super::run::Trained;
use crate::export::EQUATIONS;
use crate::export::Skeleton;
use crate::plan::TrainingResult;
use crate::run::Ended;
use candle_core::Tensor;
use candle_models::bundle::{self, Bundle, CARD, Manifest};
use candle_models::policy::baselines::Baselines;
use candle_models::policy::{BASELINES, FAMILY, TOKENIZER, actions, baselines};
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// What a model card says beside the run's own figures.
#[derive(Debug, Clone, Default)]
pub struct Provenance {
    /// The command line.
    pub command: String,
    /// One line per training replay.
    pub train: Vec<String>,
    /// One line per held-out replay.
    pub held_out: Vec<String>,
    /// One line per policy that it learned from.
    pub teachers: Vec<String>,
    /// Whether the games are simulated ones.
    pub simulated: bool,
}

/// The action vocabulary and the count tables of a policy that is trained so.
pub(super) fn skeleton(config: &RunConfig, baselines: &Baselines) -> Result<Skeleton> {
    let tokenizer = actions::tokenizer()?.to_string(true).map_err(|e| Error::file(TOKENIZER, e))?;
    let files = vec![(TOKENIZER, tokenizer.into_bytes()), (BASELINES, baselines.to_bytes()?)];
    Ok(Skeleton { manifest: Manifest::new(FAMILY, &config.model)?, files })
}

/// The averaged parameters, the action vocabulary, the count tables and the card.
impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    fn save(&self, directory: &Path) -> Result<String> {
        let Skeleton { manifest, mut files } = skeleton(&self.config, &self.baselines)?;
        files.push((CARD, card(self)?.into_bytes()));
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "epochs": self.config.epochs, "seed": self.config.seed, "command": self.provenance.command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        bundle::save(directory, &manifest, &self.ended.parameters, metadata, &files)?;
        Ok(if self.table.is_empty() { String::new() } else { format!("\n{}\n", table(&self.table)) })
    }
}

/// A policy that [`calibrate`](super::calibrate) has gone over.
#[derive(Debug)]
pub struct Calibrated<'a> {
    /// Its parameters, the factors folded in.
    pub parameters: &'a BTreeMap<String, Tensor>,
    /// The factors in words.
    pub factors: &'a str,
    /// Whether they were fitted on the games, or come from another policy.
    pub fitted: bool,
    /// The games.
    pub games: &'a Dataset,
    /// What was measured on them afterwards.
    pub table: &'a str,
    /// The command line.
    pub command: &'a str,
}

impl Calibrated<'_> {
    /// Writes it with the files of the bundle that it was made of; its card says more than that one's.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn save(&self, of: &Bundle, directory: &Path) -> Result<()> {
        let mut files = Vec::new();
        for name in [TOKENIZER, BASELINES] {
            files.extend(of.read_file(name)?.map(|bytes| (name, bytes)));
        }
        let before = of.read_file(CARD)?.unwrap_or_default();
        files.push((CARD, [before, self.section().into_bytes()].concat()));
        let metadata = serde_json::json!({ "command": self.command, "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")) });
        bundle::save(directory, of.manifest(), self.parameters, metadata, &files)
    }

    /// What the card says of it.
    fn section(&self) -> String {
        let mut text = String::from("\n## Calibration\n\n");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "What the network adds to the logits of each component is multiplied by a factor, which is part of the weights:"
        );
        let how = if self.fitted { "They were fitted on" } else { "They are those of a policy that was trained alike. Measured on" };
        let _ = writeln!(text, "{}. {how} {} games:\n", self.factors, self.games.shards().len());
        self.games.describe().iter().for_each(|game| {
            let _ = writeln!(text, "- {game}");
        });
        let _ = writeln!(text, "\n```sh\n{}\n```\n\nWith the factors:\n\n{}", self.command, self.table);
        text
    }
}

/// The likelihood table of a run, as Markdown.
pub fn table(rows: &[(String, baselines::Likelihood)]) -> String {
    let rows: Vec<_> = rows.iter().map(|(name, likelihood)| (name.as_str(), *likelihood)).collect();
    baselines::table(&rows)
}

fn card(trained: &Trained) -> Result<String> {
    let Trained { config, ended, provenance: from, .. } = trained;
    let parameters: usize = ended.parameters.values().map(|t| t.elem_count()).sum();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# Game policy: {}\n", super::run::policy_name(config));
    let _ = writeln!(text, "Imitates players of Super Smash Bros. Melee, one action per frame of 1/60 s. {parameters} parameters.\n");
    let _ = writeln!(text, "{EQUATIONS}");
    if from.simulated {
        let _ = writeln!(text, "**Trained on simulated games, not on recordings of people.**\n");
    }
    let _ = writeln!(text, "## Training\n");
    let minutes = ended.time.as_secs_f64() / 60.0;
    let _ = writeln!(
        text,
        "{} steps, {} epochs, seed {}; {minutes:.1} minutes of steps since the last start.\n",
        ended.step, config.epochs, config.seed
    );
    text.push_str(&ended.remark());
    let _ = writeln!(text, "```sh\n{}\n```\n", from.command);
    let _ = writeln!(text, "```toml\n{}```\n", config.to_toml()?);
    let _ = writeln!(text, "## Data\n");
    if !from.teachers.is_empty() {
        let share = config.loss.teachers;
        let _ = writeln!(text, "A share of {share} of its target was what these policies expect, the rest what was recorded:\n");
        from.teachers.iter().for_each(|teacher| {
            let _ = writeln!(text, "- {teacher}");
        });
        text.push('\n');
    }
    for (title, games) in [("Trained on", &from.train), ("Held out", &from.held_out)] {
        let _ = writeln!(text, "{title} ({}):\n", games.len());
        games.iter().for_each(|game| {
            let _ = writeln!(text, "- {game}");
        });
        text.push('\n');
    }
    if !trained.table.is_empty() {
        let _ = writeln!(text, "## Likelihood of the held-out games\n");
        let _ = writeln!(text, "Nats per frame; the count tables are fitted on the training games. `change` are frames whose action");
        let _ = writeln!(text, "differs from the one before, `hold` the others.\n");
        text.push_str(&table(&trained.table));
        let _ = writeln!(text, "\n{}", trained.calibration);
    }
    Ok(text)
}
