//! `candle-train fno-ensemble`: operators that were trained alike but for their seeds as one bundle, which answers with their mean and with a variance that
//! was calibrated on pairs that none of them has learnt from.
//!
//! Two numbers are found there. `noise` makes the mean variance the mean square error, with what the members disagree about as it is; `scale` then stretches
//! deviations until intervals of 90% of a normal distribution hold 90% of the values.

use super::fields::Fields;
use super::stored::{Stored, values};
use crate::command::command_line;
use anyhow::{Result, ensure};
use candle_core::Device;
use candle_models::Error;
use candle_models::bundle::{self, Bundle, CARD, Manifest, Parameter};
use candle_models::fno::metrics::relative_l2;
use candle_models::fno::{Ensemble, FAMILY, FnoConfig, FnoFamily};
use candle_models::nn::Params;
use candle_models::registry::Family;
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct Arguments {
    /// Bundles of operators that differ in what they learnt alone, two or more.
    #[arg(long, value_name = "DIR", num_args = 2.., required = true)]
    members: Vec<PathBuf>,
    /// Pairs that no member has learnt from, by which variances are calibrated: a file, or a data set of pde-data.
    #[arg(long, value_name = "FILE")]
    fields: PathBuf,
    /// Takes only so many runs at the end of these, as a run with the same held_out has left them out [default: all].
    #[arg(long, value_name = "N")]
    held_out: Option<usize>,
    /// Pairs that are looked at once, when the variances are found, on any grid.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    tests: Vec<PathBuf>,
    /// Directory of the new bundle.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Parts of a normal distribution, and how many deviations around its mean they reach.
const PARTS: [(f64, f64); 2] = [(0.5, 0.674_489_750_196_081_7), (0.9, 1.644_853_626_951_472_2)];

/// An answer beside the truth: the error, and the variance that was said.
type Seen = Vec<[f64; 2]>;

impl Arguments {
    /// Calibrates, measures and writes the bundle.
    ///
    /// # Errors
    /// If a member cannot be read or is no twin of the others, pairs do not fit, or the directory cannot be written.
    pub fn run(&self) -> Result<()> {
        let members = self.members.iter().map(|path| Stored::read(path)).collect::<candle_models::Result<Vec<_>>>()?;
        let first = &members[0].config;
        for (path, member) in self.members.iter().zip(&members) {
            if member.config != *first || first.ensemble.is_some() {
                let reason = format!("expected members of one configuration, {}", self.members[0].display());
                return Err(Error::file(path, format!("{reason}; this is another one, or an ensemble itself")).into());
            }
        }
        let held = self.held(read(&self.fields)?)?;
        let tests = self.tests.iter().map(|path| Ok((name(path), read(path)?))).collect::<Result<Vec<_>>>()?;
        let parameters = self.parameters()?;
        let stored = |ensemble| {
            let config = FnoConfig { ensemble: Some(ensemble), ..first.clone() };
            Stored { config, parameters: Params::stored(parameters.clone(), &Device::Cpu), pairs: None }
        };
        let raw = Ensemble { members: members.len(), noise: 0.0, scale: 1.0 };
        let calibrated = calibrate(raw, &seen(&stored(raw), &held)?)?;
        let whole = stored(calibrated);
        let held = [(format!("held out of {}", name(&self.fields)), held)];
        let rows = held.iter().chain(&tests).map(|(name, pairs)| row(name, &members, &whole, pairs)).collect::<Result<Vec<_>>>()?;
        let commands = self.commands()?;
        let metadata = serde_json::json!({ "members": commands, "command": command_line() });
        let files = [(CARD, Some(card(&whole.config, calibrated, (&rows.concat(), &commands)).into_bytes()))];
        bundle::save_parameters(&self.out, &Manifest::new(FAMILY, &whole.config)?, &parameters, metadata, &files)?;
        println!("{}: {}", self.out.display(), whole.config.name());
        print!("{HEAD}{}", rows.concat());
        Ok(())
    }

    /// The pairs that variances are calibrated by.
    fn held(&self, fields: Fields) -> Result<Fields> {
        let Some(count) = self.held_out else { return Ok(fields) };
        if !(1..=fields.runs()).contains(&count) {
            return Err(Error::config("--held-out", format!("expected 1 to {}, found {count}", fields.runs())).into());
        }
        let [_, held] = fields.split(count);
        Ok(held)
    }

    /// What trained the members, as far as they say.
    fn commands(&self) -> Result<Vec<String>> {
        let command = |path: &PathBuf| Ok(Bundle::open(path)?.metadata()?["command"].as_str().unwrap_or("(unknown)").to_owned());
        self.members.iter().map(command).collect()
    }

    /// Those of all members, as an ensemble names them.
    fn parameters(&self) -> Result<BTreeMap<String, Parameter>> {
        let mut all = BTreeMap::new();
        for (i, path) in self.members.iter().enumerate() {
            let bundle = Bundle::open(path)?;
            let own = bundle.read_parameters(&FnoFamily.parameters(&bundle)?)?;
            all.extend(own.into_iter().map(|(name, parameter)| (format!("members.{i}.{name}"), parameter)));
        }
        Ok(all)
    }
}

/// The pairs of a file.
fn read(path: &Path) -> Result<Fields> {
    let pairs = Fields::read(path)?;
    if pairs.channels != [1, 1] {
        return Err(Error::file(path, format!("expected one channel of each field, found {:?}", pairs.channels)).into());
    }
    Ok(pairs)
}

fn name(path: &Path) -> String {
    path.file_stem().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// What an ensemble says of pairs, value by value.
fn seen(ensemble: &Stored, pairs: &Fields) -> Result<Seen> {
    let answers = ensemble.answers(pairs)?;
    let (y, variance) = (values(&answers, "y")?, values(&answers, "variance")?);
    let errors = y.iter().zip(&pairs.answers).map(|(y, truth)| f64::from(*y) - f64::from(*truth));
    Ok(errors.zip(variance).map(|(error, variance)| [error, f64::from(variance)]).collect())
}

/// The noise and the scale with which what was seen without them is as spread as is said.
fn calibrate(raw: Ensemble, seen: &[[f64; 2]]) -> Result<Ensemble> {
    let mean = |of: &dyn Fn(&[f64; 2]) -> f64| seen.iter().map(of).sum::<f64>() / seen.len() as f64;
    let spread = mean(&|[_, variance]| *variance);
    ensure!(spread > 0.0, "all members say the same: expected members that differ");
    let noise = (mean(&|[error, _]| error * error) - spread).max(0.0).sqrt();
    let (part, reach) = PARTS[1];
    let ratio = |[error, variance]: &[f64; 2]| if *error == 0.0 { 0.0 } else { error.abs() / (noise * noise + variance).sqrt() };
    let mut ratios: Vec<f64> = seen.iter().map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let at = ((part * ratios.len() as f64).ceil() as usize).clamp(1, ratios.len()) - 1;
    ensure!(ratios[at].is_finite(), "the members say the same of many values and are wrong: no scale makes that variance right");
    Ok(Ensemble { noise, scale: ratios[at] / reach, ..raw })
}

/// The columns of [`row`].
const HEAD: &str = "| pairs | number | places | L2 of the mean | of a member | in 50% | in 90% | in 50%, one width for all | in 90%, one width for all |\n|---|---|---|---|---|---|---|---|---|\n";

/// What an ensemble reaches on pairs, as a line of a Markdown table: errors, and how much of the truth lies within intervals. Beside them, what intervals
/// hold that are as wide everywhere as the mean variance has it.
fn row(name: &str, members: &[Stored], ensemble: &Stored, pairs: &Fields) -> Result<String> {
    let ([n, m], width) = (pairs.grid, pairs.widths()[1]);
    let error = |stored: &Stored| {
        let y = values(&stored.answers(pairs)?, "y")?;
        let rows = y.chunks_exact(width).zip(pairs.answers.chunks_exact(width));
        Ok::<_, anyhow::Error>(rows.map(|(y, truth)| relative_l2(y, truth)).sum::<f64>() / pairs.len() as f64)
    };
    let each = members.iter().map(error).sum::<Result<f64>>()? / members.len() as f64;
    let seen = seen(ensemble, pairs)?;
    let same = seen.iter().map(|[_, variance]| variance).sum::<f64>() / seen.len() as f64;
    let within = |variance: &dyn Fn(f64) -> f64| {
        PARTS.map(|(_, reach)| {
            let inside = seen.iter().filter(|[error, own]| error.abs() <= reach * variance(*own).sqrt()).count();
            format!("{:.1}%", 100.0 * inside as f64 / seen.len() as f64)
        })
    };
    let ([half, most], [plain_half, plain_most]) = (within(&|own| own), within(&|_| same));
    let mean = error(ensemble)?;
    let pairs = pairs.len();
    Ok(format!("| {name} | {pairs} | {n} x {m} | {mean:.4} | {each:.4} | {half} | {most} | {plain_half} | {plain_most} |\n"))
}

fn card(config: &FnoConfig, Ensemble { members, noise, scale }: Ensemble, (rows, commands): (&str, &[String])) -> String {
    format!(
        "# Neural operators that answer together\n\nA field to a field, and the variance of the truth around it: {}.\n\n\
         The answer is the mean of {members} operators that were trained alike but for their seeds. The variance is `scale^2 (noise^2 + s^2)`, with the variance `s^2` of \
         their answers at a place,\na deviation of {noise:.4} that they do not disagree about, and a scale of {scale:.4}: found on the pairs that were held out, so that 90% of \
         their values lie within 1.645 deviations.\n\n## Figures\n\nMean relative errors, and how much of the truth lies within intervals of a normal distribution that \
         should hold 50% and 90% of it.\n\n{HEAD}{rows}\n## Training\n\n\
         The members, and what made them one:\n\n```sh\n{}\n{}\n```\n",
        config.name(),
        commands.join("\n"),
        command_line()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_models::random::Random;

    /// Errors with a part that members show and one that they do not.
    #[test]
    fn intervals_hold_what_they_say() {
        let mut drawn = [0.0; 30_000];
        Random::new(1).fill_normal(0, &mut drawn);
        let seen: Seen = drawn.chunks_exact(3).map(|x| [0.5 * f64::from(x[0]) + f64::from(x[2] * x[1]), f64::from(x[1] * x[1])]).collect();
        let raw = Ensemble { members: 4, noise: 0.0, scale: 1.0 };
        let found = calibrate(raw, &seen).unwrap();
        assert!((found.noise - 0.5).abs() < 0.1 && (found.scale - 1.0).abs() < 0.1, "{found:?}");
        let inside = seen.iter().filter(|[error, s]| error.abs() <= PARTS[1].1 * found.scale * (found.noise.powi(2) + s).sqrt()).count();
        assert!((inside as f64 / seen.len() as f64 - 0.9).abs() < 1e-3);
        assert!(calibrate(raw, &[[0.1, 0.0], [0.2, 0.0]]).is_err());
        // Where all say the same and are wrong no scale helps.
        assert!(calibrate(raw, &[[0.1, 0.0], [0.0, 1.0]]).is_err());
    }
}
