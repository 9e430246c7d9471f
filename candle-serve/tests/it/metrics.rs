//! Histograms, in the format that Prometheus reads.

use crate::client::{Client, PATIENCE, Running, options, weights};
use crate::sum::{self, FAILS};
use candle_models::families;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Values by names with labels, as they stand there.
fn read(client: &mut Client<std::net::TcpStream>) -> BTreeMap<String, f64> {
    let text = String::from_utf8(client.get("/metrics").ok().body).unwrap();
    let mut values = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with("# ")) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(values.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{name} stands there twice");
    }
    values
}

/// The buckets of a histogram by their upper ends.
fn buckets(values: &BTreeMap<String, f64>, name: &str) -> Vec<(f64, f64)> {
    let start = format!("{name}_bucket{{model=\"policy-mlp\",version=\"1\",le=\"");
    let found = values.iter().filter_map(|(name, count)| {
        let most = name.strip_prefix(&start)?.strip_suffix("\"}")?;
        Some((if most == "+Inf" { f64::INFINITY } else { most.parse().unwrap() }, *count))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found
}

#[test]
fn histograms_have_every_request_and_every_batch() {
    let server = Running::new(options(weights().join("policy-mlp")), families::shipped());
    let mut client = server.client();
    let row = |rows: usize| {
        let features = json!({"name": "features", "datatype": "FP32", "shape": [rows, 288], "data": vec![0.1; 288 * rows]});
        let ids = json!({"name": "ids", "datatype": "UINT32", "shape": [rows, 6], "data": vec![14; 6 * rows]});
        json!({"inputs": [features, ids]})
    };
    for rows in [1, 1, 3] {
        client.post("/v2/models/policy-mlp/infer", &row(rows)).ok();
    }
    assert_eq!(client.post("/v2/models/policy-mlp/infer", &json!({"inputs": []})).status, 400);
    let values = read(&mut client);
    let of = |name: &str, part: &str| values[&format!("{name}_{part}{{model=\"policy-mlp\",version=\"1\"}}")];
    for (name, count) in [
        ("candle_request_seconds", 4.0),
        ("candle_queue_seconds", 5.0),
        ("candle_execute_seconds", 3.0),
        ("candle_reply_seconds", 5.0),
        ("candle_batch_size", 3.0),
    ] {
        let buckets = buckets(&values, name);
        assert_eq!((of(name, "count"), *buckets.last().unwrap()), (count, (f64::INFINITY, count)), "{name}");
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name}: {buckets:?}");
        let mut before = 0.0;
        let most: f64 =
            buckets.iter().filter(|(end, _)| end.is_finite()).map(|(end, all)| end * (all - std::mem::replace(&mut before, *all))).sum();
        // The widest bucket is the first of a power of two; below a microsecond all are one.
        assert!(of(name, "sum") <= most && of(name, "sum") >= most * 8.0 / 9.0 - 1.2e-6 * count, "{name}: {} of {most}", of(name, "sum"));
    }
    let sizes = buckets(&values, "candle_batch_size");
    assert_eq!((&sizes[..3], sizes.len()), (&[(1.0, 2.0), (2.0, 2.0), (3.0, 3.0)][..], 33));
    assert_eq!(of("candle_batch_size", "sum"), 5.0);
}

/// Series of several servers are added up bucket by bucket.
#[test]
fn histograms_of_all_models_have_the_same_buckets() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["fast", "slow", "idle"] {
        sum::save(folder.path(), model, "histograms");
    }
    let server = Running::new(sum::options(folder.path()), sum::families());
    let mut client = server.client();
    let step = |x: f32| json!({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]});
    client.post("/v2/models/fast/infer", &step(1.0)).ok();
    let gate = sum::gate("histograms");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| server.client().post("/v2/models/slow/infer", &step(sum::WAITS)).ok());
        gate.reached(1);
        gate.open();
        slow.join().unwrap();
    });
    let values = read(&mut client);
    let ends = |name: &str, model: &str| {
        let start = format!("{name}_bucket{{model=\"{model}\",version=\"1\",le=\"");
        values.keys().filter_map(|name| name.strip_prefix(&start).map(str::to_owned)).collect::<Vec<_>>()
    };
    for (name, count) in [("candle_request_seconds", 193), ("candle_execute_seconds", 193), ("candle_batch_size", 33)] {
        assert_eq!((ends(name, "fast").len(), ends(name, "fast")), (count, ends(name, "slow")), "{name}");
        assert_eq!(ends(name, "idle"), ["+Inf\"}"], "{name}");
    }
}

#[test]
fn sequences_that_end_and_requests_that_are_refused_are_counted_by_their_reasons() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("models")).unwrap();
    sum::save(&folder.path().join("models"), "m", "metrics");
    let mut options = options(folder.path().join("models"));
    options.limits.sequence_time = Duration::from_secs(3);
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    let mut step = |id: &str, x: f32, start: bool, end: bool| {
        let inputs = json!([{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]);
        let parameters = json!({"sequence_id": id, "sequence_start": start, "sequence_end": end});
        client.post("/v2/models/m/infer", &json!({"inputs": inputs, "parameters": parameters})).status
    };
    // Asked for, lost in a step that fails, and one that never was.
    assert_eq!((step("a", 1.0, true, true), step("b", FAILS, true, false), step("c", 1.0, false, false)), (200, 500, 400));
    assert_eq!((step("d", 1.0, true, false), step("e", 1.0, true, false)), (200, 200));
    client.call("DELETE", "/v2/models/m/sequences/d", &[], b"").ok();
    let count = |client: &mut Client<std::net::TcpStream>, name: &str| read(client)[name];
    client.wait_for("candle_sequences", "m", 0.0);
    let ended = |reason: &str| format!("candle_sequences_ended_total{{reason=\"{reason}\"}}");
    let found = ["end", "lost", "deleted", "idle", "reload", "unload"].map(|reason| count(&mut client, &ended(reason)));
    assert_eq!(found, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(client.get("/v2/nowhere").status, 404);
    assert_eq!(client.call("PUT", "/v2/models/m/infer", &[], b"").status, 405);
    let refused = ["input", "not_found", "method", "overloaded"].map(|reason| format!("candle_rejected_total{{reason=\"{reason}\"}}"));
    assert_eq!(refused.map(|name| count(&mut client, &name)), [1.0, 1.0, 1.0, 0.0]);
    // A connection is one as long as it is there.
    assert_eq!(count(&mut client, "candle_connections"), 1.0);
    let second = server.client();
    let since = Instant::now();
    while count(&mut client, "candle_connections") != 2.0 {
        assert!(since.elapsed() < PATIENCE);
    }
    drop(second);
    while count(&mut client, "candle_connections") != 1.0 {
        assert!(since.elapsed() < PATIENCE);
    }
}
