//! `candle-train fno-ensemble`: operators that were trained alike but for their seeds as one bundle, which answers with their mean and with a variance that
//! was calibrated on pairs that none of them has learnt from.
//!
//! Two numbers are found there. `noise` is the one with which the errors are most likely, each of a normal distribution with its variance, stretched as suits
//! them; `scale` then stretches deviations until intervals of 90% of a normal distribution hold 90% of the values.

use super::fields::{self, Fields};
use super::stored::Stored;
use crate::command::command_line;
use crate::feed::values;
use anyhow::{Result, ensure};
use candle_models::Error;
use candle_models::bundle::{self, CARD, Manifest, Parameter};
use candle_models::fno::metrics::mean_relative_l2;
use candle_models::fno::{Ensemble, FAMILY, FnoConfig};
use candle_models::tensors::NamedTensors;
use clap::Args;
use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::path::PathBuf;

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

/// Noises that are looked at, from the root of the mean square error down to a part of it.
const NOISES: u32 = 64;
const LEAST_NOISE: f64 = 1e-2;

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
        let held = self.held(Fields::read_single(&self.fields)?)?;
        let tests = self.tests.iter().map(|path| Ok((fields::name(path), Fields::read_single(path)?))).collect::<Result<Vec<_>>>()?;
        let stored = |ensemble| {
            let config = FnoConfig { ensemble: Some(ensemble), ..first.clone() };
            Stored { config, parameters: parameters(&members), pairs: None, command: None }
        };
        let raw = Ensemble { members: members.len(), noise: 0.0, scale: 1.0 };
        let calibrated = calibrate(raw, &seen(&stored(raw).answers(&held)?, &held)?)?;
        let whole = stored(calibrated);
        let held = [(format!("held out of {}", fields::name(&self.fields)), held)];
        let rows = held.iter().chain(&tests).map(|(name, pairs)| row(name, &members, &whole, pairs)).collect::<Result<Vec<_>>>()?;
        let commands: Vec<String> = members.iter().map(|member| member.command.clone().unwrap_or_else(|| "(unknown)".to_owned())).collect();
        let metadata = serde_json::json!({ "members": commands, "command": command_line() });
        let files = [(CARD, Some(card(&whole.config, calibrated, (&rows.concat(), &commands)).into_bytes()))];
        bundle::save_parameters(&self.out, &Manifest::new(FAMILY, &whole.config)?, &whole.parameters, metadata, &files)?;
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
}

/// Those of all members, as an ensemble names them.
fn parameters(members: &[Stored]) -> BTreeMap<String, Parameter> {
    let of = |(i, member): (usize, &Stored)| {
        member.parameters.iter().map(move |(name, parameter)| (format!("members.{i}.{name}"), parameter.clone())).collect::<Vec<_>>()
    };
    members.iter().enumerate().flat_map(of).collect()
}

/// What an ensemble says of pairs, value by value.
fn seen(answers: &NamedTensors, pairs: &Fields) -> Result<Seen> {
    let (y, variance) = (values(answers, "y")?, values(answers, "variance")?);
    let errors = y.iter().zip(&pairs.answers).map(|(y, truth)| f64::from(*y) - f64::from(*truth));
    Ok(errors.zip(variance).map(|(error, variance)| [error, f64::from(variance)]).collect())
}

/// The noise and the scale with which what was seen without them is as spread as is said.
fn calibrate(raw: Ensemble, seen: &[[f64; 2]]) -> Result<Ensemble> {
    let mean = |of: &dyn Fn(&[f64; 2]) -> f64| seen.iter().map(of).sum::<f64>() / seen.len() as f64;
    let spread = mean(&|[_, variance]| *variance);
    ensure!(spread > 0.0, "all members say the same: expected members that differ");
    let most = mean(&|[error, _]| error * error).sqrt();
    // Up to a factor and a constant: the least is what is looked for.
    let negative_log_likelihood = |noise: f64| {
        // With the scale that suits it best.
        let scale = mean(&|[error, variance]| error * error / (noise * noise + variance));
        scale.ln() + mean(&|[_, variance]| (noise * noise + variance).ln())
    };
    let candidates = (0..NOISES).map(|i| most * LEAST_NOISE.powf(f64::from(i) / f64::from(NOISES - 1)));
    let noise = candidates.min_by(|a, b| negative_log_likelihood(*a).total_cmp(&negative_log_likelihood(*b))).unwrap_or(most);
    let (part, reach) = PARTS[1];
    let ratio = |[error, variance]: &[f64; 2]| if *error == 0.0 { 0.0 } else { error.abs() / (noise * noise + variance).sqrt() };
    let mut ratios: Vec<f64> = seen.iter().map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let at = ((part * ratios.len() as f64).ceil() as usize).clamp(1, ratios.len()) - 1;
    Ok(Ensemble { noise, scale: ratios[at] / reach, ..raw })
}

/// The columns of [`row`].
const HEAD: &str = "| pairs | number | places | L2 of the mean | of a member | in 50% | in 90% | NLL | NLL, one variance for all |\n|---|---|---|---|---|---|---|---|---|\n";

/// What an ensemble reaches on pairs, as a line of a Markdown table: errors, how much of the truth lies within intervals, and the mean negative log-likelihood
/// of a value, which is least for variances that are those of the errors. Beside it, that of intervals which are as wide everywhere as the mean variance has it.
fn row(name: &str, members: &[Stored], ensemble: &Stored, pairs: &Fields) -> Result<String> {
    let ([n, m], width) = (pairs.grid, pairs.widths()[1]);
    let error = |answers: &NamedTensors| Ok::<_, anyhow::Error>(mean_relative_l2(&values(answers, "y")?, &pairs.answers, width));
    let each = members.iter().map(|member| error(&member.answers(pairs)?)).sum::<Result<f64>>()? / members.len() as f64;
    let answers = ensemble.answers(pairs)?;
    let seen = seen(&answers, pairs)?;
    let same = seen.iter().map(|[_, variance]| variance).sum::<f64>() / seen.len() as f64;
    let [half, most] = PARTS.map(|(_, reach)| {
        let inside = seen.iter().filter(|[error, own]| error.abs() <= reach * own.sqrt()).count();
        format!("{:.1}%", 100.0 * inside as f64 / seen.len() as f64)
    });
    let nll = |variance: &dyn Fn(f64) -> f64| {
        let of = |[error, own]: &[f64; 2]| 0.5 * ((TAU * variance(*own)).ln() + error * error / variance(*own));
        seen.iter().map(of).sum::<f64>() / seen.len() as f64
    };
    let [own, plain] = [nll(&|own| own), nll(&|_| same)];
    let mean = error(&answers)?;
    let pairs = pairs.len();
    Ok(format!("| {name} | {pairs} | {n} x {m} | {mean:.4} | {each:.4} | {half} | {most} | {own:.2} | {plain:.2} |\n"))
}

fn card(config: &FnoConfig, Ensemble { members, noise, scale }: Ensemble, (rows, commands): (&str, &[String])) -> String {
    let spread = match config.variance {
        true => "`s^2`, the variance of their answers at a place and the mean of the variances that they have learnt to say",
        false => "the variance `s^2` of their answers at a place",
    };
    format!(
        "# Neural operators that answer together\n\nA field to a field, and the variance of the truth around it: {}.\n\n\
         The answer is the mean of {members} operators that were trained alike but for their seeds. The variance is `scale^2 (noise^2 + s^2)`, with {spread},\na deviation of {noise:.4} that is the same everywhere, \
         and a scale of {scale:.4}: found on the pairs that were held out, so that 90% of their values lie within 1.645 deviations.\n\n## Figures\n\nMean relative errors, how much of the truth lies within intervals of a normal distribution that \
         should hold 50% and 90% of it,\nand the mean negative log-likelihood of a value (NLL, in nats): with these variances, and with their mean at every place.\n\n{HEAD}{rows}\n## Training\n\n\
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
        // Where members differ and are right there is nothing to say.
        assert_eq!(calibrate(raw, &[[0.0, 0.5], [0.0, 1.0]]).unwrap().scale, 0.0);
    }
}
