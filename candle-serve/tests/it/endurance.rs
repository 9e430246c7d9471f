//! Many clients, and many loads.

use crate::client::{Client, Reply, Running, options, weights};
use crate::life::serve_in_one_arena;
use crate::sum;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::time::Duration;

const PATH: &str = "/v2/models/m/infer";

fn infer(x: f32) -> Value {
    json!({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]})
}

/// A number from a file of `/proc` that names it at the beginning of a line.
pub fn proc(file: &str, name: &str) -> usize {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX)
}

#[test]
fn a_thousand_idle_connections_leave_the_others_alone() {
    // Each is an open file on both sides, which are the same process here.
    let count = 1000.min(proc("/proc/self/limits", "Max open files").saturating_sub(300) / 2);
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "idle connections");
    let mut options = options(folder.path());
    options.limits.connections = count + 1;
    (options.limits.idle_time, options.limits.header_time) = (Duration::from_secs(3600), Duration::from_secs(3600));
    let server = Running::new(options, sum::families());
    let mut working = server.client().patient();
    let idle = |at: usize| {
        let mut client = server.client().patient();
        match at % 3 {
            0 => {}
            1 => client.write(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: te"),
            _ => drop(client.get("/v2/health/live").ok()),
        }
        client
    };
    let mut clients: Vec<Client<TcpStream>> = (0..count).map(idle).collect();
    for _ in 0..200 {
        working.post(PATH, &infer(1.0)).ok();
    }
    // There is no room for one more before another one goes.
    let mut waiting = server.client();
    waiting.send("POST", PATH, &[], infer(2.0).to_string().as_bytes());
    working.post(PATH, &infer(1.0)).ok();
    assert!(waiting.is_silent());
    clients.pop().unwrap().hang_up();
    waiting.patient().receive().ok();
    for (at, client) in clients.iter_mut().enumerate() {
        match at % 3 {
            1 => {
                let body = infer(1.0).to_string();
                client.write(format!("st\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
                client.receive().ok();
            }
            _ => drop::<Reply>(client.post(PATH, &infer(1.0)).ok()),
        }
    }
}

#[test]
#[ignore = "deep: loads a bundle more than a thousand times"]
fn loading_and_unloading_leaves_no_memory_behind() {
    let bundle = weights().join("policy-mlp");
    let (program, [http, _]) = serve_in_one_arena(bundle.to_str().unwrap(), &[]);
    let mut client = Client::connect(http).patient();
    // What memory comes down to in the second half of so many cycles: it goes up and down with each.
    let mut cycles = |count: usize| {
        let mut least = usize::MAX;
        for cycle in 0..count {
            // Anew, while it is served, and after it was not.
            client.post("/v2/repository/models/policy-mlp/load", &json!({})).ok();
            client.post("/v2/repository/models/policy-mlp/unload", &json!({})).ok();
            client.post("/v2/repository/models/policy-mlp/load", &json!({})).ok();
            if cycle >= count / 2 {
                least = least.min(proc(&format!("/proc/{}/status", program.0.id()), "VmRSS:"));
            }
        }
        least
    };
    // What threads and the allocator keep for themselves is there after the first.
    let before = cycles(100);
    let after = cycles(1000);
    println!("{before} kB, {after} kB after 1000 cycles");
    drop(program);
    // A bundle has more than a megabyte: of one that stayed in every hundredth cycle there would be ten.
    assert!(after < before + 4096, "{before} kB became {after} kB");
}
