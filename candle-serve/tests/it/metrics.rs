//! Histograms, in the format that Prometheus reads.

use crate::client::{Client, Running, options, weights};
use candle_models::families;
use serde_json::json;
use std::collections::BTreeMap;

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
        // A bucket is 1/64 wide.
        assert!(of(name, "sum") <= most && of(name, "sum") >= most * 63.0 / 65.0 - 1e-8, "{name}: {} of {most}", of(name, "sum"));
    }
    assert_eq!(buckets(&values, "candle_batch_size"), [(1.0, 2.0), (3.0, 3.0), (f64::INFINITY, 3.0)]);
    assert_eq!(of("candle_batch_size", "sum"), 5.0);
}
