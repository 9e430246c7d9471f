//! How fast this CPU runs a bundle: a few milliseconds of each way to run it.

use super::{Finding, Severity};
use crate::Result;
use crate::device::{self, Purpose};
use crate::engine::{Model, Placement, Runner};
use crate::random::Random;
use candle_core::{DType, Device};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows of a step: of a lone agent, and of a full batch of the engine.
const ROWS: [usize; 2] = [1, 32];
/// How long a way is tried, at least three times.
const WARM_UP: Duration = Duration::from_millis(5);
const MEASURED: Duration = Duration::from_millis(20);
/// Ratios below are not worth a change.
const LEAST_GAIN: f64 = 1.1;

/// Steps of some rows, run in one way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speed {
    /// What products are taken in.
    pub dtype: &'static str,
    /// Threads of a step.
    pub threads: usize,
    /// Rows of a step.
    pub rows: usize,
    /// The median of a step in microseconds.
    pub us: f64,
}

/// Every way to run a model on this CPU, on up to so many threads.
pub fn measure(model: &Arc<dyn Model>, threads: usize) -> Result<Vec<Speed>> {
    let mut found = Vec::new();
    let narrow = device::compute_dtype(Some(DType::BF16), &Device::Cpu, Purpose::Inference).ok();
    for dtype in [DType::F32].into_iter().chain(narrow) {
        for rows in ROWS {
            for threads in [1].into_iter().chain((threads > 1).then_some(threads)) {
                let place = Placement { dtype: Some(dtype), ..Placement::cpu(threads) };
                found.push(Speed { dtype: dtype.as_str(), threads, rows, us: median_us(model, rows, &place)? });
            }
        }
    }
    Ok(found)
}

fn median_us(model: &Arc<dyn Model>, rows: usize, place: &Placement) -> Result<f64> {
    let mut runner = Runner::on(model.clone(), (rows, 1), place)?;
    for spec in &model.signature().inputs {
        let drawn = spec.draw(&[rows], &Random::new(0))?.flatten_all()?;
        match spec.dtype() {
            DType::U32 => runner.set_u32(&spec.name, &drawn.to_vec1()?)?,
            _ => runner.set_f32(&spec.name, &drawn.to_vec1()?)?,
        }
    }
    let resets = vec![false; rows];
    let mut times = Vec::new();
    for limit in [WARM_UP, MEASURED] {
        times.clear();
        let start = Instant::now();
        while times.len() < 3 || start.elapsed() < limit {
            let begin = Instant::now();
            runner.step(&resets)?;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// What the fastest way gains over one thread in f32, for each number of rows.
pub fn findings(speeds: &[Speed]) -> Vec<Finding> {
    let better = |rows: usize| {
        let usual = speeds.iter().find(|speed| (speed.dtype, speed.threads, speed.rows) == ("f32", 1, rows))?;
        let best = speeds.iter().filter(|speed| speed.rows == rows).min_by(|a, b| a.us.total_cmp(&b.us))?;
        let gain = usual.us / best.us;
        (gain >= LEAST_GAIN).then(|| {
            let how = format!(
                "computed in {} on {} threads a step of {rows} rows is {gain:.1} times as fast as in f32 on one",
                best.dtype, best.threads
            );
            let remedy = match best.dtype {
                "f32" => format!("--threads {}", best.threads),
                dtype => format!(
                    "--dtype {dtype} --threads {}; `candle-infer export --dtype {dtype}` tells what it costs in answers",
                    best.threads
                ),
            };
            Finding::new(Severity::Note, how, remedy)
        })
    };
    ROWS.into_iter().filter_map(better).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_way_is_named_where_it_gains() {
        let speed = |dtype, threads, rows, us| Speed { dtype, threads, rows, us };
        let speeds = [
            speed("f32", 1, 1, 10.0),
            speed("f32", 2, 1, 9.5),
            speed("bf16", 1, 1, 11.0),
            speed("f32", 1, 32, 100.0),
            speed("f32", 2, 32, 60.0),
            speed("bf16", 1, 32, 50.0),
        ];
        let found = findings(&speeds);
        assert_eq!(found.len(), 1, "a twentieth is no gain: {found:?}");
        assert_eq!(found[0].what, "computed in bf16 on 1 threads a step of 32 rows is 2.0 times as fast as in f32 on one");
        assert!(found[0].remedy.starts_with("--dtype bf16 --threads 1; "));
        assert_eq!(findings(&speeds[3..5])[0].remedy, "--threads 2");
    }
}
