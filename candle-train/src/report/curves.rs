//! The figures of a run as curves of bounded size, however long the run is.

use crate::metrics::METRICS;
use candle_models::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Places along the axis of steps: steps that fall on one place are drawn together.
const PLACES: usize = 600;
/// Keys at most: a task has a few dozen.
const KEYS: usize = 80;

/// The values that fall on one place.
#[derive(Debug, Clone, Copy)]
struct Bin {
    /// Sum of the steps.
    steps: f64,
    sum: f64,
    least: f64,
    greatest: f64,
    /// 0 where nothing falls.
    values: u64,
}

impl Bin {
    const EMPTY: Self = Self { steps: 0.0, sum: 0.0, least: f64::INFINITY, greatest: f64::NEG_INFINITY, values: 0 };

    fn add(&mut self, step: f64, value: f64) {
        (self.steps, self.sum, self.values) = (self.steps + step, self.sum + value, self.values + 1);
        (self.least, self.greatest) = (self.least.min(value), self.greatest.max(value));
    }
}

/// One figure over the steps.
#[derive(Debug, Clone)]
pub(super) struct Curve(Vec<Bin>);

impl Curve {
    fn bins(&self) -> impl Iterator<Item = &Bin> {
        self.0.iter().filter(|bin| bin.values > 0)
    }

    /// Step and value, both the lowest and the highest where several steps share a place.
    pub(super) fn raw(&self) -> Vec<(f64, f64)> {
        let point = |bin: &Bin| {
            let step = bin.steps / bin.values as f64;
            if bin.least == bin.greatest { vec![(step, bin.least)] } else { vec![(step, bin.least), (step, bin.greatest)] }
        };
        self.bins().flat_map(point).collect()
    }

    /// Step and mean over a thirtieth of the run around it: over fewer places at the start, where figures move fastest, and over
    /// those before at the end.
    pub(super) fn smooth(&self) -> Vec<(f64, f64)> {
        let means: Vec<(f64, f64)> = self.bins().map(|bin| (bin.steps / bin.values as f64, bin.sum / bin.values as f64)).collect();
        let half = means.len() / 60;
        let point = |i: usize| {
            let left = half.min(i);
            let right = left.min(means.len() - 1 - i);
            let around = &means[i - left..=i + right];
            (means[i].0, around.iter().map(|mean| mean.1).sum::<f64>() / around.len() as f64)
        };
        (0..means.len()).map(point).collect()
    }

    /// Mean over all values; not a number without any.
    pub(super) fn mean(&self) -> f64 {
        let (sum, values) = self.bins().fold((0.0, 0), |(sum, values), bin| (sum + bin.sum, values + bin.values));
        sum / values as f64
    }
}

/// What `metrics.jsonl` holds.
#[derive(Debug, Default)]
pub(super) struct Curves {
    /// By key: `loss`, `parts.buttons`, `evaluation.score`.
    pub(super) by_key: BTreeMap<String, Curve>,
    /// The last line of a step.
    pub(super) last: Value,
    /// The best `evaluation.score` and its step.
    pub(super) best: Option<(u64, f64)>,
    /// The last reliability diagram: probability and share of every bin.
    pub(super) reliability: Vec<(f64, f64)>,
    /// Lines that could not be read.
    pub(super) unreadable: u64,
}

impl Curves {
    /// Reads the metrics below `directory`, in memory that does not grow with their length.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct At {
            step: u64,
        }
        let path = directory.join(METRICS);
        let mut end = 0;
        lines(&path, |line| end = end.max(serde_json::from_slice::<At>(line).map_or(0, |at| at.step)))?;
        let mut curves = Self::default();
        lines(&path, |line| match serde_json::from_slice::<Value>(line) {
            Ok(value) if value["step"].is_u64() => curves.take(value, end),
            _ => curves.unreadable += 1,
        })?;
        Ok(curves)
    }

    fn take(&mut self, line: Value, end: u64) {
        let step = line["step"].as_u64().unwrap_or(0);
        let place = ((step as f64 / (end as f64 + 1.0) * PLACES as f64) as usize).min(PLACES - 1);
        self.add("", &line, place, step);
        if let Some(score) = line["evaluation"]["score"].as_f64() {
            let maximise = line["direction"] == "maximise";
            self.best = self.best.filter(|best| if maximise { best.1 >= score } else { best.1 <= score }).or(Some((step, score)));
        }
        if let Some(bins) = line["reliability"].as_array() {
            let bin = |bin: &Value| Some((bin[0].as_f64()?, bin[1].as_f64()?));
            self.reliability = bins.iter().take(PLACES).filter_map(bin).collect();
        }
        if line.get("loss").is_some() {
            self.last = line;
        }
    }

    fn add(&mut self, key: &str, value: &Value, place: usize, step: u64) {
        if let Some(object) = value.as_object() {
            for (inner, value) in object {
                self.add(&if key.is_empty() { inner.clone() } else { format!("{key}.{inner}") }, value, place, step);
            }
        }
        let Some(number) = value.as_f64() else { return };
        if self.by_key.len() < KEYS && !self.by_key.contains_key(key) {
            self.by_key.insert(key.to_owned(), Curve(vec![Bin::EMPTY; PLACES]));
        }
        if let Some(curve) = self.by_key.get_mut(key) {
            curve.0[place].add(step as f64, number);
        }
    }

    /// The curve of that key, if there is one.
    pub(super) fn get(&self, key: &str) -> Option<&Curve> {
        self.by_key.get(key)
    }
}

fn lines(path: &Path, mut each: impl FnMut(&[u8])) -> Result<()> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(Error::io(path))?);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).map_err(Error::io(path))? > 0 {
        each(&line);
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn read(text: &str) -> Curves {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(METRICS), text).unwrap();
        Curves::read(dir.path()).unwrap()
    }

    #[test]
    fn a_short_run_keeps_every_point() {
        let curves = read(
            "{\"step\":1,\"loss\":3,\"parts\":{\"x\":1}}\n{\"step\":2,\"loss\":null}\n{\"step\":2,\"evaluation\":{\"score\":0.5}}\n\
             {\"step\":3,\"loss\":1}\n{\"step\":3,\"evaluation\":{\"score\":0.75}}\nnonsense\n[1]\n{\"step\":4,\"lo",
        );
        assert_eq!(curves.get("loss").unwrap().raw(), [(1.0, 3.0), (3.0, 1.0)]);
        assert_eq!(curves.get("loss").unwrap().smooth(), [(1.0, 3.0), (3.0, 1.0)], "two points are not smoothed");
        assert_eq!(curves.get("parts.x").unwrap().raw(), [(1.0, 1.0)]);
        assert_eq!((curves.best, curves.unreadable), (Some((2, 0.5)), 3));
        assert_eq!(curves.last["step"], 3);
        assert!(read("").by_key.is_empty());
    }

    #[test]
    fn a_long_run_keeps_its_extremes_and_its_means() {
        let mut text = String::new();
        for step in 1..=60_000u64 {
            let loss = if step == 31_234 { 1e3 } else { f64::from(step as u32 % 2) };
            writeln!(text, "{{\"step\":{step},\"loss\":{loss}}}").unwrap();
        }
        let curves = read(&text);
        let loss = curves.get("loss").unwrap();
        let (raw, smooth) = (loss.raw(), loss.smooth());
        assert!(raw.len() <= 2 * PLACES && smooth.len() <= PLACES);
        assert!(raw.iter().any(|p| p.1 == 1e3), "the outlier is shown");
        assert!(smooth[..300].iter().all(|p| (p.1 - 0.5).abs() < 0.01), "the mean of 0 and 1");
        assert!(smooth.iter().filter(|p| p.1 > 0.6).all(|p| (p.0 - 31_234.0).abs() < 1_200.0), "an outlier is spread to both sides");
        assert!(smooth.windows(2).all(|w| w[0].0 < w[1].0));
        assert!((loss.mean() - (0.5 + 1e3 / 60_000.0)).abs() < 1e-3);
    }

    #[test]
    fn a_hostile_file_takes_no_more_memory_than_a_long_one() {
        let mut text = format!("{{\"step\":{}}}\n", u64::MAX);
        for i in 0..10 * KEYS {
            writeln!(text, "{{\"step\":{i},\"parts\":{{\"p{i}\":1e308,\"q\":-1e308}}}}").unwrap();
        }
        assert_eq!(read(&text).by_key.len(), KEYS);
    }
}
