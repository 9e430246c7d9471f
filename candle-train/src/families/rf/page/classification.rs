//! Classifiers over the signal-to-noise ratio, beside the most likely modulation where that can be told.

use super::Seeds;
use crate::families::rf::classification::{Classification, Drawn, Said};
use crate::families::rf::config::RunConfig;
use crate::families::rf::signals::{Channel, Signals};
use crate::parallel::Single;
use crate::report::figure::{Axes, Line, chart};
use crate::report::sections::{Section, of_seeds};
use candle_core::Device;
use candle_models::random::Random;
use candle_models::rf::classifier::ceiling::Ceiling;
use candle_models::rf::{Classifier, ClassifierConfig, Complex32, Complex64, wide};
use candle_models::{Error, Result};
use rayon::prelude::*;

/// The ratio whose confusions are shown, dB: the nearest one from here on.
const CONFUSION_DB: f64 = 10.0;

/// The table over ratios with its figure, and which classes are taken for which.
pub fn section(
    Seeds { config, networks }: &Seeds<ClassifierConfig, Classifier>,
    (signals, preset): (&Signals, &str),
    random: Random,
    count: usize,
) -> Result<Section> {
    let task = Classification::new(&RunConfig::classifier(preset)?, config, signals, &Single);
    let said: Vec<Vec<Said>> =
        networks.iter().map(|network| task.measure(network, random, count, &Device::Cpu, &Single)).collect::<Result<_>>()?;
    let ceiling = match signals.channel {
        Channel::Coherent => Some(most_likely(&task, signals, random, count, config.samples)?),
        Channel::Received { .. } => None,
    };
    let ratios = task.ratios();
    let accuracies = |ratio: usize| said.iter().map(|said| 100.0 * said[ratio].accuracy()).collect::<Vec<_>>();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let mut text = format!(
        "\n## What kind a signal is: {preset}\n\n{}: {}. {count} signals at each signal-to-noise ratio. ",
        config.name(),
        config.classes.join(", ")
    );
    text += match signals.channel {
        Channel::Coherent => {
            "A sample is a symbol behind a filter of its pulse; phase, timing, power and noise are known. No classifier is right more often than the most likely modulation.\n\n\
             | dB | right, % | most likely, % | gap |\n|---|---|---|---|\n"
        }
        Channel::Received { .. } => {
            "Eight samples a symbol; phase, timing, frequency (500 Hz at most), power and three paths are unknown.\n\n| dB | right, % |\n|---|---|\n"
        }
    };
    for (ratio, snr_db) in ratios.iter().enumerate() {
        let found = accuracies(ratio);
        text += &match &ceiling {
            Some(ceiling) => {
                format!("| {snr_db:.0} | {} | {:.1} | {:.1} |\n", of_seeds(&found, 1), ceiling[ratio], ceiling[ratio] - mean(&found))
            }
            None => format!("| {snr_db:.0} | {} |\n", of_seeds(&found, 1)),
        };
    }
    let overall: Vec<f64> = said.iter().map(|said| 100.0 * said.iter().map(Said::accuracy).sum::<f64>() / said.len() as f64).collect();
    text += &format!("\nMean over all ratios: {}%", of_seeds(&overall, 2));
    if let Some(ceiling) = &ceiling {
        let gaps = ratios.iter().enumerate().map(|(ratio, _)| ceiling[ratio] - mean(&accuracies(ratio)));
        text += &format!(
            ", of the most likely one {:.2}%; the greatest gap is {:.1} points",
            mean(ceiling),
            gaps.fold(f64::NEG_INFINITY, f64::max)
        );
    }
    let name = format!("{preset}.svg");
    text += &format!(".\n\n![{name}]({name})\n");
    let shown = ratios.iter().position(|snr_db| *snr_db >= CONFUSION_DB).unwrap_or(ratios.len() - 1);
    text += &confusion(config, &said.iter().map(|said| &said[shown]).collect::<Vec<_>>());
    let points = |value: &dyn Fn(usize) -> f64| ratios.iter().enumerate().map(|(ratio, snr_db)| (*snr_db, value(ratio))).collect();
    let mut lines = vec![Line { name: "network".to_owned(), dashed: false, points: points(&|ratio| mean(&accuracies(ratio))) }];
    lines.extend(ceiling.iter().map(|ceiling| Line {
        name: "most likely".to_owned(),
        dashed: true,
        points: points(&|ratio| ceiling[ratio]),
    }));
    let chance = 100.0 / config.classes.len() as f64;
    lines.push(Line { name: "chance".to_owned(), dashed: true, points: points(&|_| chance) });
    let axes = Axes { across: (ratios[0]..ratios[ratios.len() - 1], "SNR (dB)"), up: (0.0..102.0, "right (%)".to_owned()) };
    Ok(Section { text, figures: vec![(name, chart(&axes, &lines)?)] })
}

/// Rows are what was sent, columns what was said, in percent.
fn confusion(config: &ClassifierConfig, said: &[&Said]) -> String {
    let n = config.classes.len();
    let mut text = format!(
        "\nAt {:.0} dB, in percent of what was sent (rows):\n\n| | {} |\n|---|{}\n",
        said[0].snr_db,
        config.classes.join(" | "),
        "---|".repeat(n)
    );
    for (class, name) in config.classes.iter().enumerate() {
        let count = |taken: usize| said.iter().map(|said| f64::from(said.confusion[class * n + taken])).sum::<f64>();
        let total = (0..n).map(count).sum::<f64>().max(1.0);
        let cells: Vec<String> = (0..n).map(|taken| format!("{:.0}", 100.0 * count(taken) / total)).collect();
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    text
}

/// How often the most likely modulation is right at each ratio, on the signals that the networks are shown, percent.
fn most_likely(task: &Classification, signals: &Signals, random: Random, count: usize, samples: usize) -> Result<Vec<f64>> {
    let modulations = signals.modulations().ok_or_else(|| Error::Input("expected modulations whose symbols are points".to_owned()))?;
    let ceiling = Ceiling::new(&modulations)?;
    let at = |ratio: (usize, f64)| {
        let right: Vec<bool> = (0..count)
            .into_par_iter()
            .map(|i| {
                let Drawn { random, class, snr_db } = task.shown(random, ratio, i);
                let mut symbols = vec![Complex32::default(); samples];
                signals.draw(random, class, snr_db, &mut symbols)?;
                let symbols: Vec<Complex64> = symbols.into_iter().map(wide).collect();
                Ok(ceiling.classify(&symbols, 10f64.powf(-snr_db / 10.0)) == class)
            })
            .collect::<Result<_>>()?;
        Ok(100.0 * right.iter().filter(|right| **right).count() as f64 / count as f64)
    };
    task.ratios().into_iter().enumerate().map(at).collect()
}
