//! What to change, from what was measured: every recommendation names the row that it rests on and what it gained there.
//!
//! A gain counts where its 95% interval lies above one, or where two steady means' intervals do not overlap, and where it is at least
//! [`LEAST_GAIN`].

use crate::batch_size::{BatchRow, Mark};
use crate::case::{Case, Execution};
use crate::formulas::{Bound, speed_ratio};
use crate::graph::GraphRow;
use crate::harness::Comparison;
use crate::latency::LatencyRow;
use crate::overlap::OverlapRow;
use crate::precision::PrecisionRow;
use crate::roofline::RooflineRow;
use crate::run;
use crate::table::micros;
use anyhow::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;

/// Gains below are not worth a change.
pub const LEAST_GAIN: f64 = 1.1;

/// A change that was measured to pay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// `batch`, `graph`, `dtype`, `alignment`, `threads`, `quantisation` or `prefetch`.
    pub kind: String,
    /// What to do, and where.
    pub what: String,
    /// What it brings.
    pub gain: String,
    /// The rows that say so.
    pub evidence: String,
}

impl Recommendation {
    fn new(kind: &str, what: String, gain: String, evidence: String) -> Self {
        Self { kind: kind.to_owned(), what, gain, evidence }
    }
}

/// What the reports of a run directory recommend; nothing where there are none that could.
///
/// # Errors
/// Names a report that cannot be read.
pub fn of_run(directory: &Path) -> Result<Vec<Recommendation>> {
    let mut found = batches(&rows::<BatchRow>(directory, "batch-size")?);
    found.extend(graphs(&rows::<GraphRow>(directory, "graph")?));
    let latency = rows::<LatencyRow>(directory, "latency")?;
    let roofline = rows::<RooflineRow>(directory, "roofline")?;
    found.extend(narrower(&latency, &roofline));
    found.extend(threads(&latency));
    found.extend(products(&rows::<PrecisionRow>(directory, "precision")?));
    found.extend(prefetch(&rows::<OverlapRow>(directory, "overlap")?));
    Ok(found)
}

fn rows<R: DeserializeOwned>(directory: &Path, suite: &str) -> Result<Vec<R>> {
    let exists = directory.join(format!("{suite}.json")).exists();
    if exists { Ok(run::report(directory, suite)?.rows) } else { Ok(Vec::new()) }
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2} times")
}

/// Whether a comparison shows a gain that is worth a change.
fn gains(c: &Comparison) -> bool {
    c.ratio >= LEAST_GAIN && c.ratio_ci.low > 1.0
}

/// How many times as fast `after` is, where that is sure and worth a change.
fn gain(before: &LatencyRow, after: &LatencyRow) -> Option<f64> {
    let [a, b] = [before, after].map(|row| &row.measurement);
    let sure = a.steady && b.steady && !a.latency_us.mean_ci.overlaps(b.latency_us.mean_ci);
    Some(speed_ratio(a.latency_us.p50, b.latency_us.p50)).filter(|ratio| sure && *ratio >= LEAST_GAIN)
}

fn batches(rows: &[BatchRow]) -> Vec<Recommendation> {
    let better = |knee: &BatchRow| {
        let same = |row: &&BatchRow| row.case.batch == 1 && Case { batch: 1, ..knee.case.clone() } == row.case;
        let one = rows.iter().find(same)?;
        let ratio = knee.rows_per_s() / one.rows_per_s();
        let steady = knee.measurement.steady && one.measurement.steady;
        (steady && knee.case.batch > 1 && ratio >= LEAST_GAIN).then(|| {
            let Case { model, dtype, threads, device, batch, .. } = &knee.case;
            Recommendation::new(
                "batch",
                format!("{model}, {dtype}, {threads} threads, {device}: run up to {batch} rows together (at most {} fit)", knee.fits),
                format!(
                    "{} the rows a second of single rows; a step takes {} us instead of {}",
                    times(ratio),
                    micros(knee.measurement.latency_us.p50),
                    micros(one.measurement.latency_us.p50)
                ),
                format!(
                    "batch-size: {:.0} rows/s at batch {batch}, {:.0} at 1; p99 {} us within {:.0}",
                    knee.rows_per_s(),
                    one.rows_per_s(),
                    micros(knee.tail_us()),
                    knee.limits.latency_us
                ),
            )
        })
    };
    rows.iter().filter(|row| row.mark == Mark::Knee).filter_map(better).collect()
}

fn graphs(rows: &[GraphRow]) -> Vec<Recommendation> {
    let better = |row: &GraphRow| {
        let (c, calls) = (row.comparison.as_ref().filter(|c| gains(c))?, row.break_even()?);
        let case = &row.case;
        Some(Recommendation::new(
            "graph",
            format!(
                "{}, {}, batch {}, {} threads, {}: run it captured, through the engine",
                case.model,
                case.pass_name(),
                case.batch,
                case.threads,
                case.device
            ),
            format!("{} as fast, from call {:.0} on", times(c.ratio), calls.ceil().max(1.0)),
            format!(
                "graph: {} us captured, {} us eager, 95% of the ratio {:.2} to {:.2}",
                micros(c.ours_us.p50),
                micros(c.theirs_us.p50),
                c.ratio_ci.low,
                c.ratio_ci.high
            ),
        ))
    };
    rows.iter().filter_map(better).collect()
}

/// The row of the same call but for one thing.
fn same_but<'a>(rows: &'a [LatencyRow], row: &LatencyRow, edit: impl Fn(&mut Case)) -> Option<&'a LatencyRow> {
    let mut case = row.case.clone();
    edit(&mut case);
    rows.iter().find(|other| other.case == case)
}

fn narrower(rows: &[LatencyRow], roofline: &[RooflineRow]) -> Vec<Recommendation> {
    let better = |row: &LatencyRow| {
        let case = &row.case;
        let wide = same_but(rows, row, |case| case.dtype = "f32".to_owned()).filter(|_| case.dtype != "f32")?;
        let ratio = gain(wide, row)?;
        let (kind, how) = if case.dtype == "q8" {
            ("quantisation", "store its weights in 8 bits")
        } else {
            ("dtype", "store its weights in bf16, and run it with --dtype bf16 where the device takes that")
        };
        let mut evidence = format!(
            "latency: {} us in {}, {} us in f32",
            micros(row.measurement.latency_us.p50),
            case.dtype,
            micros(wide.measurement.latency_us.p50)
        );
        let [operation, shape] = wide.case.placed_as();
        let place = |r: &&RooflineRow| (&r.operation, &r.shape, r.threads) == (&operation, &shape, case.threads);
        if let Some(placed) = roofline.iter().find(place).filter(|placed| placed.bound == Bound::Memory) {
            let _ = write!(evidence, "; bound by memory: {}", placed.reason);
        }
        Some(Recommendation::new(
            kind,
            format!(
                "{}, {}, batch {}, {} threads, {}: {how} (candle-infer export --dtype {} tells what it costs in answers)",
                case.model,
                case.pass_name(),
                case.batch,
                case.threads,
                case.device,
                case.dtype
            ),
            format!("{} as fast", times(ratio)),
            evidence,
        ))
    };
    rows.iter().filter_map(better).collect()
}

fn threads(rows: &[LatencyRow]) -> Vec<Recommendation> {
    let better = |row: &LatencyRow| {
        let case = &row.case;
        if case.execution != Execution::Captured {
            return None;
        }
        let one = same_but(rows, row, |case| case.threads = 1).filter(|_| case.threads > 1)?;
        let (count, ratio, from) = match gain(one, row) {
            Some(ratio) => (case.threads, ratio, one),
            None => (1, gain(row, one)?, row),
        };
        Some(Recommendation::new(
            "threads",
            format!(
                "{}, {}, {}, batch {}, {}: {count} of {} threads",
                case.model,
                case.dtype,
                case.pass_name(),
                case.batch,
                case.device,
                case.threads
            ),
            format!("{} as fast as on {}", times(ratio), from.case.threads),
            format!(
                "latency: {} us on one thread, {} us on {}",
                micros(one.measurement.latency_us.p50),
                micros(row.measurement.latency_us.p50),
                case.threads
            ),
        ))
    };
    rows.iter().filter_map(better).collect()
}

fn products(rows: &[PrecisionRow]) -> Vec<Recommendation> {
    let better = |row: &PrecisionRow| {
        let c = row.over.as_ref().filter(|c| gains(c))?;
        let [count, terms, columns] = row.shape;
        let evidence = format!(
            "precision: {} us against {} us, 95% of the ratio {:.2} to {:.2}",
            micros(c.ours_us.p50),
            micros(c.theirs_us.p50),
            c.ratio_ci.low,
            c.ratio_ci.high
        );
        let gain = format!("{} as fast", times(c.ratio));
        let place = format!("{count} rows, {} threads, {}", row.threads, row.device);
        Some(match row.padded {
            Some([from_terms, from_columns]) => {
                let (name, from, to) =
                    if from_columns == columns { ("inputs", from_terms, terms) } else { ("outputs", from_columns, columns) };
                Recommendation::new(
                    "alignment",
                    format!("a layer of {from_terms} to {from_columns}, {place}: pad its {name} from {from} to {to}"),
                    gain,
                    evidence,
                )
            }
            None => Recommendation::new(
                "dtype",
                format!("a product of {terms} to {columns}, {place}: weights in {}", row.dtype),
                format!("{gain}, with an error of {:.1e}", row.error.unwrap_or(f64::NAN)),
                evidence,
            ),
        })
    };
    rows.iter().filter_map(better).collect()
}

fn prefetch(rows: &[OverlapRow]) -> Vec<Recommendation> {
    let better = |row: &OverlapRow| {
        let (hidden, case) = (row.pays()?, &row.case);
        Some(Recommendation::new(
            "prefetch",
            format!("{}, batch {}, {} threads, {}: {}", case.model, case.batch, case.threads, case.device, row.what),
            format!("{} as fast as one after the other", times(hidden.gain)),
            format!(
                "overlap: {} us together, {} and {} us alone; 95% of the gain {:.2} to {:.2}",
                micros(row.both_us.p50),
                micros(row.copy_us.p50),
                micros(row.compute_us.p50),
                hidden.gain_ci.low,
                hidden.gain_ci.high
            ),
        ))
    };
    rows.iter().filter_map(better).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_size::Limits;
    use crate::calls::Agreement;
    use crate::case::Pass;
    use crate::harness::Measurement;
    use crate::host::Host;
    use crate::stats::{Interval, Summary};

    fn case(dtype: &str, batch: usize, threads: usize) -> Case {
        Case {
            model: "mlp 512-512".to_owned(),
            backbone: "mlp".to_owned(),
            pass: Pass::Step,
            batch,
            frames: 1,
            threads,
            device: "cpu".to_owned(),
            dtype: dtype.to_owned(),
            execution: Execution::Captured,
        }
    }

    fn measurement(us: f64) -> Measurement {
        let latency_us = Summary::of(&[us; 200]).unwrap();
        Measurement { latency_us, calls_per_s: 1e6 / us, windows: 3, steady: true, late: None, waited: None, clock: None }
    }

    fn latency(dtype: &str, threads: usize, us: f64) -> LatencyRow {
        LatencyRow { host: Host::detect(None), case: case(dtype, 1, threads), measurement: measurement(us), bytes: None, gpu_mb: None }
    }

    fn comparison(ours: f64, theirs: f64, low: f64) -> Comparison {
        let ratio_ci = Interval { low, high: theirs / ours + 0.2 };
        let [ours_us, theirs_us] = [ours, theirs].map(|us| Summary::of(&[us]).unwrap());
        Comparison { ours_us, theirs_us, ratio: theirs / ours, ratio_ci, ratio_range: ratio_ci, rounds: 4 }
    }

    #[test]
    fn weights_and_threads_are_recommended_where_they_gain_and_only_there() {
        let rows =
            [latency("f32", 1, 100.0), latency("q8", 1, 40.0), latency("bf16", 1, 95.0), latency("q8", 2, 60.0), latency("f32", 2, 55.0)];
        let found = narrower(&rows, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].kind == "quantisation"
                && found[0].gain == "2.50 times as fast"
                && found[0].evidence.contains("40.0 us in q8, 100 us in f32")
        );
        let found: Vec<String> = threads(&rows).into_iter().map(|r| format!("{} | {}", r.what, r.gain)).collect();
        assert_eq!(
            found,
            [
                "mlp 512-512, q8, step, batch 1, cpu: 1 of 2 threads | 1.50 times as fast as on 2",
                "mlp 512-512, f32, step, batch 1, cpu: 2 of 2 threads | 1.82 times as fast as on 1"
            ]
        );
        // What was not steady recommends nothing.
        let mut unsteady = rows.clone();
        unsteady.iter_mut().for_each(|row| row.measurement.steady = false);
        assert!(narrower(&unsteady, &[]).is_empty() && threads(&unsteady).is_empty());
    }

    #[test]
    fn a_batch_is_recommended_by_its_knee() {
        let row = |batch, us, mark| BatchRow {
            host: Host::detect(None),
            case: case("f32", batch, 1),
            measurement: measurement(us),
            bytes: 1,
            limits: Limits { latency_us: 1e4, memory_mb: 1.0 },
            fits: 99,
            share_of_best: 1.0,
            mark,
        };
        let found = batches(&[row(1, 100.0, Mark::Below), row(8, 200.0, Mark::Knee), row(16, 400.0, Mark::Above)]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].what.ends_with("run up to 8 rows together (at most 99 fit)") && found[0].gain.starts_with("4.00 times"),
            "{found:?}"
        );
        assert!(batches(&[row(1, 100.0, Mark::Knee), row(2, 200.0, Mark::Above)]).is_empty());
    }

    #[test]
    fn a_padded_dimension_is_named_with_its_size() {
        let row = |over: Comparison, padded| PrecisionRow {
            host: Host::detect(None),
            what: "padded layer".to_owned(),
            shape: [32, 128, 112],
            dtype: "f32".to_owned(),
            threads: 1,
            device: "cpu".to_owned(),
            latency_us: Some(over.ours_us.clone()),
            over: Some(over),
            padded,
            error: Some(1e-7),
            roofs: None,
            unavailable: None,
        };
        let found = products(&[row(comparison(10.0, 12.0, 1.1), Some([128, 107]))]);
        assert_eq!(
            (found[0].kind.as_str(), found[0].what.as_str()),
            ("alignment", "a layer of 128 to 107, 32 rows, 1 threads, cpu: pad its outputs from 107 to 112")
        );
        // The interval reaches below one; the gain is too small.
        assert!(products(&[row(comparison(10.0, 12.0, 0.9), Some([128, 107])), row(comparison(10.0, 10.5, 1.01), None)]).is_empty());
    }

    #[test]
    fn a_slower_graph_is_not_recommended() {
        let agreement = Agreement { output: "all".to_owned(), worst: 0.0, tolerance: 1e-4 };
        let row = |comparison| GraphRow {
            host: Host::detect(None),
            case: case("f32", 1, 1),
            agreement: agreement.clone(),
            comparison: Some(comparison),
            capture_us: 1000.0,
            eager_prepare_us: 0.0,
        };
        let found = graphs(&[row(comparison(50.0, 150.0, 2.0)), row(comparison(150.0, 50.0, 0.3))]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].gain, "3.00 times as fast, from call 10 on");
    }

    #[test]
    fn a_directory_without_reports_recommends_nothing_and_a_broken_one_is_named() {
        let directory = tempfile::tempdir().unwrap();
        assert!(of_run(directory.path()).unwrap().is_empty());
        std::fs::write(directory.path().join("graph.json"), "{}").unwrap();
        assert!(format!("{:#}", of_run(directory.path()).unwrap_err()).contains("graph.json: not a report of suite graph"));
    }
}
