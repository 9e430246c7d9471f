//! The table of what has happened between two moments.

use super::text::{Figures, Reading, percentile};
use std::time::Duration;

/// Shares of requests and rows whose times are shown.
const SHARES: [f64; 3] = [0.5, 0.99, 0.999];
const TIMES: [&str; 3] = ["candle_request_seconds", "candle_queue_seconds", "candle_execute_seconds"];
/// When the server was started: another value is another server.
const START: &str = "process_start_time_seconds";

/// The lines of the table: of the server first, then of each model, the busiest first. `unix` is the time, in seconds since 1970.
pub(super) fn table(place: &str, before: &Reading, now: &Reading, time: Duration, unix: f64) -> Vec<String> {
    let seconds = time.as_secs_f64().max(1e-3);
    let nothing = Reading::default();
    let same = now.server.value(START) == before.server.value(START) && now.server.goes_on_from(&before.server);
    let before = if same { before } else { &nothing };
    let mut rows: Vec<Row> = now.models.iter().map(|(name, figures)| Row::new(name, before.models.get(name), figures, seconds)).collect();
    rows.sort_by(|a, b| b.requests.total_cmp(&a.requests).then_with(|| a.name.cmp(b.name)));
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(5);
    let mut lines = vec![server(place, before, now, seconds, unix), String::new()];
    lines.push(format!("{:width$}  {:>44}{:>24}{:>24}{:>24}", "", "", "request", "queue", "execute"));
    let heads = ["requests/s", "failures/s", "steps/s", "batch"].map(|head| format!("{head:>11}")).concat();
    let shares = ["p50", "p99", "p99.9"].map(|head| format!("{head:>8}")).concat().repeat(TIMES.len());
    lines.push(format!("{:width$}  {heads}{shares}{:>11}{:>9}", "model", "sequences", "waiting"));
    lines.extend(rows.iter().map(|row| row.line(width)));
    lines
}

fn server(place: &str, before: &Reading, now: &Reading, seconds: f64, unix: f64) -> String {
    let value = |name| now.server.value(name);
    let shown = |name, show: &dyn Fn(f64) -> String| value(name).map_or_else(|| "-".to_owned(), show);
    let rejected = value("candle_rejected_total").map(|all| (all - before.server.value("candle_rejected_total").unwrap_or(0.0)) / seconds);
    format!(
        "{place}  up {}  memory {}  connections {}  rejected/s {}  machine {} busy",
        shown(START, &|start| duration(unix - start)),
        shown("process_resident_memory_bytes", &|bytes| format!("{:.1} MB", bytes / 1e6)),
        shown("candle_connections", &|count| count.to_string()),
        rejected.map_or_else(|| "-".to_owned(), rate),
        shown("nv_cpu_utilization", &|share| format!("{:.0} %", 100.0 * share)),
    )
}

/// A model.
struct Row<'a> {
    name: &'a str,
    /// A second, as all that follow.
    requests: f64,
    failures: f64,
    steps: f64,
    /// Rows of a batch, on average.
    batch: Option<f64>,
    times: Vec<Option<f64>>,
    sequences: Option<f64>,
    waiting: Option<f64>,
}

impl<'a> Row<'a> {
    fn new(name: &'a str, before: Option<&Figures>, now: &Figures, seconds: f64) -> Self {
        let nothing = Figures::default();
        // One that was loaded anew counts from nothing.
        let before = before.filter(|before| now.goes_on_from(before)).unwrap_or(&nothing);
        let added = |name| now.value(name).unwrap_or(0.0) - before.value(name).unwrap_or(0.0);
        let times = TIMES.iter().flat_map(|name| {
            let since = now.since(before, name);
            SHARES.map(|share| percentile(&since, share))
        });
        let batches = added("candle_batch_size_count");
        Self {
            name,
            requests: added("candle_request_seconds_count") / seconds,
            failures: added("nv_inference_request_failure") / seconds,
            steps: added("nv_inference_count") / seconds,
            batch: (batches > 0.0).then(|| added("candle_batch_size_sum") / batches),
            times: times.collect(),
            sequences: now.value("candle_sequences"),
            waiting: now.value("candle_sequence_requests_waiting"),
        }
    }

    fn line(&self, width: usize) -> String {
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let rates = [self.requests, self.failures, self.steps].map(|value| format!("{:>11}", rate(value))).concat();
        let batch = or_none(self.batch.map(|rows| format!("{rows:.2}")));
        let times: String = self.times.iter().map(|time| format!("{:>8}", or_none(time.map(short)))).collect();
        let [sequences, waiting] = [self.sequences, self.waiting].map(|count| or_none(count.map(|count| count.to_string())));
        format!("{:width$}  {rates}{batch:>11}{times}{sequences:>11}{waiting:>9}", self.name)
    }
}

fn rate(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Three digits of a time in seconds, with its unit.
fn short(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}

/// The two largest units of a time in seconds.
fn duration(seconds: f64) -> String {
    let all = seconds.max(0.0) as u64;
    match (all / 86400, all / 3600 % 24, all / 60 % 60, all % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose model has answered `count` requests in 1 ms and one in 8 ms.
    fn reading(start: f64, count: f64, failed: f64) -> Reading {
        let all = count + 1.0;
        Reading::parse(&format!(
            "{START} {start}\ncandle_connections 3\nprocess_resident_memory_bytes 2500000\nnv_cpu_utilization 0.25\n\
             candle_rejected_total{{reason=\"input\"}} {failed}\n\
             candle_request_seconds_bucket{{model=\"m\",le=\"0.001\"}} {count}\ncandle_request_seconds_bucket{{model=\"m\",le=\"0.008\"}} {all}\n\
             candle_request_seconds_bucket{{model=\"m\",le=\"+Inf\"}} {all}\ncandle_request_seconds_count{{model=\"m\"}} {all}\n\
             nv_inference_request_failure{{model=\"m\",reason=\"OTHER\"}} {failed}\nnv_inference_count{{model=\"m\"}} {all}\n\
             candle_batch_size_sum{{model=\"m\"}} {all}\ncandle_batch_size_count{{model=\"m\"}} {}\n\
             candle_sequences{{model=\"m\",state=\"open\"}} 7\ncandle_sequence_requests_waiting{{model=\"m\"}} 2\n\
             candle_sequences{{model=\"idle\",state=\"open\"}} 0\n",
            all / 2.0,
        ))
        .unwrap()
    }

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn rates_and_times_are_those_of_the_interval() {
        let (before, now) = (reading(100.0, 9.0, 4.0), reading(100.0, 999.0, 5.0));
        let lines = table("here", &before, &now, Duration::from_secs(2), 3800.0);
        assert_eq!(lines[0], "here  up 1 h 1 min  memory 2.5 MB  connections 3  rejected/s 0.5  machine 25 % busy");
        assert_eq!(
            words(&lines[4]),
            ["m", "495", "0.5", "495", "2.00", "1.00ms", "1.00ms", "1.00ms", "-", "-", "-", "-", "-", "-", "7", "2"]
        );
        let idle = ["idle", "0.0", "0.0", "0.0", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "0", "-"];
        assert_eq!(words(&lines[5]), idle);
        assert!(lines[2..].iter().all(|line| line.chars().count() == lines[3].chars().count() || line == &lines[2]), "{lines:#?}");
    }

    #[test]
    fn counters_that_start_anew_count_from_nothing() {
        let before = reading(100.0, 99.0, 4.0);
        // One that was loaded anew, and one of another server that has counted more already.
        for now in [reading(100.0, 19.0, 4.0), reading(200.0, 199.0, 9.0)] {
            let lines = table("here", &before, &now, Duration::from_secs(1), 200.0);
            let all = now.models["m"].value("nv_inference_count").map(rate);
            assert_eq!((words(&lines[4])[1], words(&lines[4])[7]), (all.as_deref().unwrap(), "8.00ms"), "{lines:#?}");
        }
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let times = [0.000_012_34, 0.000_123_4, 0.001_234, 0.5, 12.34, 0.0].map(short);
        assert_eq!(times, ["12.3us", "123us", "1.23ms", "500ms", "12.3s", "0.00us"]);
        assert_eq!([5.0, 65.0, 3700.0, 90000.0, -1.0].map(duration), ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h", "0 s"]);
    }
}
