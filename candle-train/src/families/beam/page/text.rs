//! The page's words and tables, as Markdown.

use super::measure::{Carried, Estimate, OfModel, Other, Row};
use super::{ABLATION_PRECISION_DB, MEASUREMENTS_SNR_DB, PRECISION_DB, Page, SEED, SNR_DB, SNRS_DB};
use crate::host::Host;
use candle_models::beam::metrics::SATISFIED_DB;
use candle_models::beam::{ChannelConfig, ChannelModel, Summary};

/// In front of the figure of learned codebooks.
pub(super) const PATTERNS: &str = "\n## Learned codebooks\n\nWhat each learned beam gains over azimuth, \
    10 log10 of abs(a(phi)^H f)^2 / N_TX: 0 dB is what a beam towards that azimuth has.\n\n![Beam patterns](codebook.svg)\n";

/// Title, and how everything was measured.
pub(super) fn head(page: &Page, host: &Host) -> String {
    format!(
        "# Beam alignment: what the models reach\n\n\
         ```sh\n{}\n```\n\n\
         {} channels, seed {SEED}, the same for all methods; {}, {} processors. Gains G = abs(w^H H f)^2 are given as the mean of \
         10 log10 G with its standard error, unless a column says otherwise. Exhaustive search and OMP, which are slow, and the points \
         of the curves take the first of these channels until the standard error is below {PRECISION_DB} dB, ablations until it is below \
         {ABLATION_PRECISION_DB} dB. Distances are means over the channels that both methods met.\n",
        page.command, page.channels, host.cpu, host.cpus
    )
}

/// The tables of the usual setup.
pub(super) fn body(rows: &[Row]) -> String {
    let setup = describe(&ChannelConfig::default());
    let mut text =
        format!("\n## At {SNR_DB} dB\n\n{setup}. Satisfied is a link with G and SNR of together at least {SATISFIED_DB} dB.\n\n");
    let columns = ["", "measurements", "mean of dB", "dB of the mean", "10th percentile", "satisfied", "below the genie", "channels"];
    text += &table(&columns, rows.iter().map(at_one_snr));
    text += &ceilings(rows);

    let snrs = SNRS_DB.map(|snr| format!("{snr} dB"));
    let columns: Vec<&str> = std::iter::once("").chain(snrs.iter().map(String::as_str)).collect();
    text += "\n## Gain against SNR\n\n![Gain against SNR](gain.svg)\n\n";
    text += &table(&columns, rows.iter().map(|row| line(&row.name, row.by_snr.iter().map(mean))));
    text += "\n## Satisfaction against SNR\n\n![Satisfaction against SNR](satisfaction.svg)\n\n";
    text += &table(&columns, rows.iter().map(|row| line(&row.name, row.by_snr.iter().map(|s| format!("{:.3}", s.satisfaction)))));
    text + &by_measurements(rows) + &ablations(rows)
}

fn at_one_snr(row: &Row) -> Vec<String> {
    let Summary { db_of_mean, percentiles_db: [_, tenth, ..], satisfaction, count, .. } = row.table;
    let rest = [format!("{db_of_mean:.2}"), format!("{tenth:.2}"), format!("{satisfaction:.3}")];
    let rest = rest.into_iter().chain([estimate(row.below_genie), count.to_string()]);
    line(&row.name, [probes(row.probes), mean(&row.table)].into_iter().chain(rest))
}

fn models(rows: &[Row]) -> impl Iterator<Item = (&Row, &OfModel)> {
    rows.iter().filter_map(|row| row.model.as_ref().map(|model| (row, model)))
}

fn ceilings(rows: &[Row]) -> String {
    let found = models(rows).filter_map(|(row, model)| {
        let (ceiling, below) = model.ceiling.as_ref()?;
        Some(line(&row.name, [mean(&row.table), mean(ceiling), estimate(*below)]))
    });
    let found: Vec<_> = found.collect();
    if found.is_empty() {
        return String::new();
    }
    let columns = ["", "gain", "ceiling", "below it"];
    let text =
        "\nThe base station of scheme C1 transmits a beam of its codebook; with the best of them and ideal maximum-ratio combining:\n\n";
    text.to_owned() + &table(&columns, found)
}

fn by_measurements(rows: &[Row]) -> String {
    let mut counts: Vec<usize> = models(rows).flat_map(|(_, model)| model.by_measurements.iter().map(|(t, _)| *t)).collect();
    counts.sort_unstable();
    counts.dedup();
    let mut text = format!(
        "\n## Gain against the number of measurements\n\nAt {MEASUREMENTS_SNR_DB} dB, episodes ended behind T measurements.\n\n\
         ![Gain against the number of measurements](steps.svg)\n\n"
    );
    let columns: Vec<String> = std::iter::once(String::new()).chain(counts.iter().map(|t| format!("T = {t}"))).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    text += &table(
        &columns,
        models(rows).map(|(row, model)| {
            let at = |t: &usize| model.by_measurements.iter().find(|(found, _)| found == t);
            line(&row.name, counts.iter().map(|t| at(t).map_or_else(String::new, |(_, summary)| mean(summary))))
        }),
    );
    text.push('\n');
    for (row, model) in models(rows) {
        text += &format!("- {}: {}\n", row.name, monotone(&model.by_measurements));
    }
    text
}

/// Whether more measurements never cost more than two standard errors of the difference.
fn monotone(curve: &[(usize, Summary)]) -> String {
    let falls = curve.windows(2).filter_map(|pair| {
        let [(t, before), (next, after)] = pair else { return None };
        let (fall, error) = (before.mean_db - after.mean_db, before.error_db.hypot(after.error_db));
        (fall > 2.0 * error).then(|| format!("from T = {t} to {next} by {fall:.2} dB"))
    });
    let falls: Vec<String> = falls.collect();
    if falls.is_empty() {
        return "the curve is monotone within its error bars (two standard errors).".to_owned();
    }
    format!("the curve is not monotone: it falls {}.", falls.join(", "))
}

fn ablations(rows: &[Row]) -> String {
    let Some((_, first)) = models(rows).next() else { return String::new() };
    let text =
        format!("\n## Ablations\n\nAt {SNR_DB} dB, with something else in place of the measurements; in brackets what that costs.\n\n");
    let columns: Vec<&str> = ["", "measurements"].into_iter().chain(first.ablations.iter().map(|(what, _)| *what)).collect();
    let cell = |row: &Row, with: &Summary| format!("{} ({:.1})", mean(with), row.table.mean_db - with.mean_db);
    let cells = |row: &Row, model: &OfModel| {
        let without = model.ablations.iter().map(|(_, with)| cell(row, with));
        line(&row.name, std::iter::once(mean(&row.table)).chain(without))
    };
    text + &table(&columns, models(rows).map(|(row, model)| cells(row, model)))
}

/// The tables of other setups.
pub(super) fn others(others: &[Other]) -> String {
    let mut text = String::new();
    for Other { setup, genie, rows } in others {
        text += &format!("\n## Another setup, at {SNR_DB} dB\n\n{}.\n\n", describe(setup));
        let columns = ["", "measurements", "dB of the mean", "below the genie", "mean of dB", "below the genie"];
        let cells = rows.iter().map(|row| {
            let means = [format!("{:.2}", row.summary.db_of_mean), format!("{:.2}", genie.db_of_mean - row.summary.db_of_mean)];
            line(&row.name, [probes(row.probes)].into_iter().chain(means).chain([mean(&row.summary), estimate(row.below_genie)]))
        });
        let bound = [probes(0), format!("{:.2}", genie.db_of_mean), "0.00".to_owned(), mean(genie), "0.00".to_owned()];
        text += &table(&columns, cells.chain([line("SVD genie", bound)]));
    }
    text
}

/// What the models' measurements carry.
pub(super) fn carried(models: &[Carried]) -> String {
    if models.is_empty() {
        return String::new();
    }
    let count = models[0].model.count;
    let text = format!(
        "\n## What the measurements carry\n\nAt {SNR_DB} dB, on the first {count} channels: an estimator that knows how the channels are drawn \
         finds their posterior by sequential Monte Carlo (ten milliseconds a channel) in the very measurements that a model made, and \
         takes the beams of which it expects most. What a model is below the estimator, a better decision could gain; what the estimator is \
         below the bound (the genie; with scheme C1 the codebook's best beam with ideal combining), only other measurements could.\n\n"
    );
    let columns = ["", "the model", "estimator", "model below the estimator", "estimator below the bound"];
    let row = |carried: &Carried| {
        let means = [mean(&carried.model), mean(&carried.estimator)];
        line(&carried.name, means.into_iter().chain([estimate(carried.decision), estimate(carried.measurements)]))
    };
    text + &table(&columns, models.iter().map(row))
}

fn probes(count: usize) -> String {
    if count == 0 { "none".to_owned() } else { count.to_string() }
}

/// A setup in words.
fn describe(setup: &ChannelConfig) -> String {
    let [transmit, receive] = [&setup.transmit, &setup.receive].map(|array| array.elements());
    let paths = match &setup.model {
        ChannelModel::Geometric(model) => {
            let mut text = format!("{} paths within {} degrees to either side", model.paths, model.azimuth);
            if model.normalise {
                text += ", divided by the square root of their number";
            }
            if let Some(factor) = model.rician_db {
                text += &format!(", the first {factor} dB above the others together");
            }
            text
        }
        ChannelModel::Cdl(model) => format!("TR 38.901 profile CDL-{:?}", model.profile),
    };
    let moving = setup.mobility.as_ref().map_or_else(String::new, |mobility| {
        format!(", moving: up to {} cycles of Doppler shift and {} degrees from step to step", mobility.doppler, mobility.drift)
    });
    format!("{transmit} transmit and {receive} receive antennas, {paths}{moving}")
}

fn mean(summary: &Summary) -> String {
    estimate(Estimate { value: summary.mean_db, error: summary.error_db })
}

fn estimate(Estimate { value, error }: Estimate) -> String {
    // No negative zero: the genie is not below itself.
    format!("{:.2} ± {error:.2}", if value.abs() < 0.005 { 0.0 } else { value })
}

fn line(name: &str, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    // A bar in a directory's name would end its cell.
    std::iter::once(name.replace('|', "\\|")).chain(cells).collect()
}

fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let columns: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
    let rule = format!("|---|{}\n", "---:|".repeat(columns.len() - 1));
    row(&columns) + &rule + &rows.into_iter().map(|cells| row(&cells)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(mean_db: f64, error_db: f64) -> Summary {
        Summary { mean_db, error_db, ..Summary::new(&[1.0], 0.0).unwrap() }
    }

    #[test]
    fn a_fall_counts_from_two_standard_errors_on() {
        let curve = |last: f64| vec![(1, summary(1.0, 0.3)), (3, summary(5.0, 0.03)), (5, summary(last, 0.04))];
        assert!(monotone(&curve(4.91)).contains("monotone within"), "0.09 dB are less than twice 0.05");
        assert_eq!(monotone(&curve(4.89)), "the curve is not monotone: it falls from T = 3 to 5 by 0.11 dB.");
        assert!(monotone(&curve(5.0)[..1]).contains("monotone within"));
    }

    #[test]
    fn tables_have_a_cell_for_every_column() {
        let text = table(&["", "a", "b"], [line("x|y", ["1".to_owned(), estimate(Estimate { value: -1e-9, error: 0.0 })])]);
        assert_eq!(text, "|  | a | b |\n|---|---:|---:|\n| x\\|y | 1 | 0.00 ± 0.00 |\n");
    }

    #[test]
    fn setups_in_words() {
        let mut setup = ChannelConfig::default();
        assert_eq!(describe(&setup), "32 transmit and 16 receive antennas, 3 paths within 90 degrees to either side");
        let geometric = candle_models::beam::Geometric { azimuth: 60.0, normalise: true, ..Default::default() };
        setup.model = ChannelModel::Geometric(geometric);
        assert!(describe(&setup).ends_with("3 paths within 60 degrees to either side, divided by the square root of their number"));
    }
}
