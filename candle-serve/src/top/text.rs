//! Prometheus' text format, as far as the table needs it.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// A value with its name and labels.
#[derive(Debug, PartialEq)]
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, Cow<'a, str>)>,
    value: f64,
}

impl<'a> Sample<'a> {
    /// Of a line that is no comment.
    fn parse(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                rest = rest.trim_start_matches([',', ' ']);
                if let Some(behind) = rest.strip_prefix('}') {
                    rest = behind;
                    break;
                }
                let (label, quoted) = rest.split_once("=\"")?;
                let (value, behind) = quoted_text(quoted)?;
                labels.push((label, value));
                rest = behind;
            }
        }
        // A time may follow.
        let value = rest.split_whitespace().next()?.parse().ok()?;
        (!name.is_empty()).then_some(Self { name, labels, value })
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(found, _)| *found == name).map(|(_, value)| &**value)
    }
}

/// The text up to the quotation mark that ends it, and what stands behind that.
fn quoted_text(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut plain = String::new();
    let mut from = 0;
    loop {
        let at = from + text[from..].find(['"', '\\'])?;
        plain.push_str(&text[from..at]);
        if text[at..].starts_with('"') {
            let whole = if plain.len() == at { Cow::Borrowed(&text[..at]) } else { Cow::Owned(plain) };
            return Some((whole, &text[at + 1..]));
        }
        let escaped = text[at + 1..].chars().next()?;
        plain.push(if escaped == 'n' { '\n' } else { escaped });
        from = at + 1 + escaped.len_utf8();
    }
}

/// Buckets by the upper ends of their values: how many values are in each or in those below.
type Buckets = Vec<(f64, f64)>;

/// What a model, or the server, has counted.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Figures {
    /// By name; added up over labels that the table does not tell apart.
    values: BTreeMap<String, f64>,
    histograms: BTreeMap<String, Buckets>,
}

/// Names that do not only grow: all others are counters here.
const GAUGES: [&str; 9] = [
    "candle_connections",
    "candle_sequences",
    "candle_sequence_requests_waiting",
    "nv_inference_pending_request_count",
    "nv_model_load_duration_secs",
    "nv_cpu_utilization",
    "nv_cpu_memory_total_bytes",
    "nv_cpu_memory_used_bytes",
    "process_resident_memory_bytes",
];

impl Figures {
    /// A value; `None` where the server has none of that name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }

    /// Whether these are counted from an earlier state: no counter has become less.
    pub fn goes_on_from(&self, before: &Self) -> bool {
        let counters = before.values.iter().filter(|(name, _)| !GAUGES.contains(&name.as_str()));
        counters.into_iter().all(|(name, value)| self.value(name).is_none_or(|now| now >= *value))
    }

    /// What was counted since then, by the upper ends of the buckets.
    pub fn since(&self, before: &Self, histogram: &str) -> Buckets {
        let none = Buckets::new();
        let find = |figures: &Self| figures.histograms.get(histogram).unwrap_or(&none).clone();
        let (now, before) = (find(self), find(before));
        let (mut then, mut at, mut below) = (0.0, 0, 0.0);
        let each = now.into_iter().map(|(end, all)| {
            // A histogram without values had no buckets.
            while before.get(at).is_some_and(|(other, _)| *other <= end) {
                then = before[at].1;
                at += 1;
            }
            let count = (all - then - below).max(0.0);
            below += count;
            (end, count)
        });
        each.filter(|(_, count)| *count > 0.0).collect()
    }

    fn add(&mut self, sample: &Sample<'_>) {
        if let (Some(name), Some(end)) = (sample.name.strip_suffix("_bucket"), sample.label("le")) {
            let end = if end == "+Inf" { f64::INFINITY } else { end.parse().unwrap_or(f64::INFINITY) };
            self.histograms.entry(name.to_owned()).or_default().push((end, sample.value));
        } else if sample.label("state").is_none_or(|state| state == "open") {
            *self.values.entry(sample.name.to_owned()).or_default() += sample.value;
        }
    }
}

/// What a server says at one moment.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Reading {
    pub server: Figures,
    pub models: BTreeMap<String, Figures>,
}

impl Reading {
    /// Reads the answer of `/metrics`.
    ///
    /// # Errors
    /// With the line that is none of the format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reading = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let sample = Sample::parse(line).ok_or_else(|| format!("expected metrics in Prometheus' text format, found {line:?}"))?;
            let figures = match sample.label("model") {
                Some(model) => reading.models.entry(model.to_owned()).or_default(),
                None => &mut reading.server,
            };
            figures.add(&sample);
        }
        for figures in std::iter::once(&mut reading.server).chain(reading.models.values_mut()) {
            figures.histograms.values_mut().for_each(|buckets| buckets.sort_by(|a, b| a.0.total_cmp(&b.0)));
        }
        Ok(reading)
    }
}

/// The value that a share of those in the buckets does not exceed: the end of its bucket. `None` without any.
pub(super) fn percentile(buckets: &[(f64, f64)], share: f64) -> Option<f64> {
    let all: f64 = buckets.iter().map(|(_, count)| count).sum();
    let rank = (share * all).ceil().max(1.0);
    let mut below = 0.0;
    buckets.iter().find_map(|(end, count)| {
        below += count;
        (below >= rank).then_some(*end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_names_labels_and_values() {
        let sample = Sample::parse(r#"a_total{model="m\"\\\n}",le="+Inf", x="",} 1.5e3 1700000000"#);
        let labels = vec![("model", Cow::from("m\"\\\n}")), ("le", "+Inf".into()), ("x", "".into())];
        assert_eq!(sample, Some(Sample { name: "a_total", labels, value: 1500.0 }));
        assert_eq!(Sample::parse("up 1"), Some(Sample { name: "up", labels: Vec::new(), value: 1.0 }));
        for line in ["", "up", "up one", "{} 1", "a{b} 1", r#"a{b="c} 1"#, r#"a{b="c"#, r#"a{b="\"#, "<html>"] {
            assert_eq!(Sample::parse(line), None, "{line}");
        }
        assert!(Reading::parse("up 1\n<html>\n").unwrap_err().contains("<html>"));
    }

    fn reading(counts: &[(f64, f64)]) -> Reading {
        let mut all = 0.0;
        let mut text = String::from("# TYPE t histogram\n");
        for (end, count) in counts {
            all += count;
            text += &format!("t_bucket{{model=\"m\",le=\"{end}\"}} {all}\n");
        }
        Reading::parse(&format!("{text}t_bucket{{model=\"m\",le=\"+Inf\"}} {all}\nt_count{{model=\"m\"}} {all}\n")).unwrap()
    }

    #[test]
    fn percentiles_are_those_of_what_was_added() {
        let (before, now) = (reading(&[(1.0, 1000.0), (4.0, 5.0)]), reading(&[(0.5, 10.0), (1.0, 1080.0), (2.0, 9.0), (4.0, 6.0)]));
        let (before, now) = (&before.models["m"], &now.models["m"]);
        let since = now.since(before, "t");
        assert_eq!(since, [(0.5, 10.0), (1.0, 80.0), (2.0, 9.0), (4.0, 1.0)]);
        assert_eq!([0.1, 0.5, 0.9, 0.99, 0.999].map(|share| percentile(&since, share)), [0.5, 1.0, 1.0, 2.0, 4.0].map(Some));
        assert_eq!((percentile(&[], 0.5), now.since(now, "t").len(), now.since(before, "none").len()), (None, 0, 0));
        assert!(now.goes_on_from(before) && !before.goes_on_from(now));
    }

    #[test]
    fn only_counters_say_that_a_server_has_begun_anew() {
        let read = |sequences: u32, failures: u32| {
            let failed = format!("f{{model=\"m\",reason=\"A\"}} {failures}\nf{{model=\"m\",reason=\"B\"}} 1\n");
            let open = format!("candle_sequences{{model=\"m\",state=\"open\"}} {sequences}\n");
            Reading::parse(&format!("{failed}{open}candle_sequences{{model=\"m\",state=\"waiting\"}} 7\n")).unwrap().models["m"].clone()
        };
        let before = read(5, 2);
        assert_eq!((before.value("f"), before.value("candle_sequences"), before.value("none")), (Some(3.0), Some(5.0), None));
        assert!(read(3, 2).goes_on_from(&before) && !read(5, 1).goes_on_from(&before));
    }
}
