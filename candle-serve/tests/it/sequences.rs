//! Sequences: sessions that stay from request to request.

use crate::client::{Client, Reply, Running, SHIPPED, alone, weights};
use crate::sum::{self, FAILS, WAITS};
use candle_models::prelude::*;
use candle_models::random::Random;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

const PATH: &str = "/v2/models/m/infer";

/// A server of one model that sums, whose gate has that name.
fn server(gate: &str) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", gate);
    (Running::new(sum::options(folder.path()), sum::families()), folder)
}

fn request(x: f32, parameters: Value) -> Value {
    json!({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}], "parameters": parameters})
}

fn step(client: &mut Client<TcpStream>, x: f32, parameters: Value) -> Reply {
    client.post(PATH, &request(x, parameters))
}

#[track_caller]
fn sum_of(reply: Reply) -> f64 {
    reply.ok().json()["outputs"][0]["data"][0].as_f64().unwrap()
}

fn unknown(id: &str) -> String {
    format!("inference request for sequence {id} to model 'm' must specify the START flag on the first request of the sequence")
}

#[test]
fn a_sequence_remembers_from_its_start_to_its_end() {
    let (server, _folder) = server("remembers");
    let mut client = server.client();
    assert_eq!(sum_of(step(&mut client, 1.0, json!({"sequence_id": 7, "sequence_start": true}))), 1.0);
    assert_eq!(sum_of(step(&mut client, 2.0, json!({"sequence_id": 7}))), 3.0);
    // Another connection, another sequence, and requests of none.
    let mut other = server.client();
    assert_eq!(sum_of(step(&mut other, 4.0, json!({"sequence_id": 7}))), 7.0);
    assert_eq!(sum_of(step(&mut other, 8.0, json!({"sequence_id": "seven", "sequence_start": true}))), 8.0);
    assert_eq!(sum_of(step(&mut other, 8.0, json!({}))), 8.0);
    assert_eq!(sum_of(step(&mut other, 8.0, json!({"sequence_id": 0}))), 8.0);
    let mut all = request(8.0, json!({}));
    all["outputs"] = json!([]);
    assert_eq!(sum_of(other.post(PATH, &all)), 8.0);
    // A text that is a number is that number, and an input that is left out has its default, whatever it was before.
    let reply = client.post(PATH, &json!({"inputs": [], "parameters": {"sequence_id": "7"}}));
    assert_eq!(sum_of(reply), 7.5);
    let described = client.get("/v2/models/m/sequences/7").ok().json();
    assert_eq!((&described["frames"], &described["sequence_id"]), (&json!(4), &json!("7")));
    // It begins anew, unless that is refused, and ends.
    let mut wrong = request(1.0, json!({"sequence_id": 7, "sequence_start": true}));
    wrong["inputs"][0]["data"] = json!([1e39]);
    assert_eq!(client.post(PATH, &wrong).status, 400);
    let mut body = json!({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}]});
    body["parameters"] = json!({"sequence_id": 7, "sequence_start": true});
    let body = [body.to_string().as_bytes(), &f32::NAN.to_le_bytes()].concat();
    let length = (body.len() - 4).to_string();
    assert_eq!(client.call("POST", PATH, &[("Inference-Header-Content-Length", &length)], &body).status, 400);
    assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": 7}))), 7.5);
    assert_eq!(sum_of(step(&mut client, 1.0, json!({"sequence_id": 7, "sequence_start": true}))), 1.0);
    assert_eq!(sum_of(step(&mut client, 1.0, json!({"sequence_id": 7, "sequence_end": true}))), 2.0);
    let reply = step(&mut client, 1.0, json!({"sequence_id": 7}));
    assert_eq!((reply.status, reply.error()), (400, unknown("7")));
    client.call("DELETE", "/v2/models/m/sequences/seven", &[], b"").ok();
    assert_eq!(client.get("/v2/models/m/sequences/seven").status, 404);
    assert_eq!(client.metric("candle_sequences", "m"), 0.0);
}

#[test]
fn a_sequence_can_stand_in_a_header() {
    let (server, _folder) = server("header");
    let mut client = server.client();
    let mut with = |header: &str, x: f32, parameters: Value| {
        client.call("POST", PATH, &[("X-Sequence-Id", header)], request(x, parameters).to_string().as_bytes())
    };
    assert_eq!(sum_of(with("7", 1.0, json!({"sequence_start": true}))), 1.0);
    assert_eq!(sum_of(with("7", 2.0, json!({}))), 3.0);
    assert_eq!(sum_of(with("7", 4.0, json!({"sequence_id": 7}))), 7.0);
    assert_eq!(sum_of(with("left", 1.0, json!({"sequence_start": true}))), 1.0);
    // None, and the body's alone.
    assert_eq!(sum_of(with("", 8.0, json!({}))), 8.0);
    assert_eq!(sum_of(with("0", 8.0, json!({"sequence_id": 7}))), 15.0);
    let refused = |reply: Reply, message: &str| assert_eq!((reply.status, reply.error().as_str()), (400, message));
    let message = "expected one sequence, found sequence_id 7 and the header x-sequence-id left";
    refused(with("left", 1.0, json!({"sequence_id": 7})), message);
    refused(with("none", 1.0, json!({})), &unknown("none"));
    refused(with(&"x".repeat(129), 1.0, json!({})), "sequence_id: expected at most 128 bytes, found 129");
    assert_eq!(sum_of(with("7", 0.0, json!({"sequence_end": true}))), 15.0, "what was refused has changed it");
    refused(with("7", 1.0, json!({})), &unknown("7"));
    // Beside a body without JSON, for a model that has to be given one input.
    let headers = [("Inference-Header-Content-Length", "0"), ("x-sequence-id", "header")];
    let reply = SHIPPED.client().call("POST", "/v2/models/cartpole/infer", &headers, &[0; 16]);
    refused(reply, &unknown("header").replace("'m'", "'cartpole'"));
}

#[test]
fn a_sequence_of_a_policy_is_a_session_of_its_own() {
    let model = families::shipped().load(&Bundle::open(weights().join("policy-mamba")).unwrap()).unwrap();
    let engine = Engine::start(model.clone(), &Options::default()).unwrap();
    let mut session = engine.open().unwrap();
    let server = alone();
    let mut client = server.client();
    for frame in 0..5 {
        let random = Random::new(frame);
        let mut inputs = Vec::new();
        for spec in &model.signature().inputs {
            let flat = spec.draw(&[1], &random).unwrap().flatten_all().unwrap();
            let shape: Vec<usize> = std::iter::once(1).chain(spec.shape.iter().copied()).collect();
            let (datatype, data) = if spec.dtype() == DType::U32 {
                let values = flat.to_vec1::<u32>().unwrap();
                session.set_u32(&spec.name, &values).unwrap();
                ("UINT32", json!(values))
            } else {
                let values = flat.to_vec1::<f32>().unwrap();
                session.set_f32(&spec.name, &values).unwrap();
                ("FP32", json!(values))
            };
            inputs.push(json!({"name": spec.name, "shape": shape, "datatype": datatype, "data": data}));
        }
        session.step().unwrap();
        let parameters = json!({"sequence_id": "a policy", "sequence_start": frame == 0});
        let reply = client.post("/v2/models/policy-mamba/infer", &json!({"inputs": inputs, "parameters": parameters})).ok().json();
        for (spec, output) in model.signature().outputs.iter().zip(reply["outputs"].as_array().unwrap()) {
            if spec.dtype() == DType::U32 {
                let found: Vec<u32> = serde_json::from_value(output["data"].clone()).unwrap();
                assert_eq!(found, session.indices(&spec.name).unwrap(), "{} in frame {frame}", spec.name);
            } else {
                let found: Vec<f32> = serde_json::from_value(output["data"].clone()).unwrap();
                assert_eq!(found, session.floats(&spec.name).unwrap(), "{} in frame {frame}", spec.name);
            }
        }
    }
}

#[test]
fn requests_of_a_sequence_take_turns_in_order_of_arrival() {
    let (server, _folder) = server("turns");
    let gate = sum::gate("turns");
    let address = server.address();
    let (tell, told) = mpsc::channel();
    let send = |x: f32, parameters: Value| {
        let tell = tell.clone();
        std::thread::spawn(move || {
            let mut client = Client::connect(address).patient();
            tell.send((x, step(&mut client, x, parameters))).unwrap();
        })
    };
    let mut watch = server.client();
    let mut threads = vec![send(WAITS, json!({"sequence_id": 1, "sequence_start": true}))];
    gate.reached(1);
    for (waiting, x) in (1..=8).zip(1..) {
        threads.push(send(x as f32, json!({"sequence_id": 1})));
        watch.wait_for("candle_sequence_requests_waiting", "m", f64::from(waiting));
    }
    // There is no room for a ninth, and room for others.
    let reply = step(&mut watch, 9.0, json!({"sequence_id": 1}));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    assert_eq!(reply.error(), "sequence 1 of model 'm': 8 requests wait for it");
    gate.open();
    let mut sums: Vec<(f32, f64)> = (0..9).map(|_| told.recv().unwrap()).map(|(x, reply)| (x, sum_of(reply))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    sums.sort_by(|a, b| a.1.total_cmp(&b.1));
    let order: Vec<f32> = sums.iter().map(|(x, _)| *x).collect();
    assert_eq!(order, [WAITS, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
}

#[test]
fn a_state_goes_out_and_in_and_forks() {
    let (server, _folder) = server("states");
    let mut client = server.client();
    step(&mut client, 5.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    let state = client.get("/v2/models/m/sequences/1/state").ok().body;
    let tensors = safetensors::SafeTensors::deserialize(&state).unwrap();
    assert_eq!((tensors.names(), tensors.tensor("sum").unwrap().shape()), (vec!["sum"], &[1, 1][..]));
    client.post("/v2/models/m/sequences/1/fork", &json!({"sequence_id": "fork"})).ok();
    assert_eq!(sum_of(step(&mut client, 1.0, json!({"sequence_id": 1}))), 6.0);
    assert_eq!(sum_of(step(&mut client, 2.0, json!({"sequence_id": "fork"}))), 7.0);
    // Into one that is there, and one that is not.
    client.call("PUT", "/v2/models/m/sequences/1/state", &[], &state).ok();
    client.call("PUT", "/v2/models/m/sequences/new/state", &[], &state).ok();
    assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": 1}))), 5.0);
    assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": "new"}))), 5.0);
    let reply = client.call("PUT", "/v2/models/m/sequences/other/state", &[], b"no tensors");
    assert_eq!(reply.status, 400);
    assert!(reply.error().starts_with("the body is no safetensors file: "), "{}", reply.error());
    let reply = client.call("PUT", "/v2/models/m/sequences/1/state", &[], &state[..state.len() - 1]);
    assert_eq!(reply.status, 400);
    // What failed has opened none, and harmed none.
    assert_eq!(client.get("/v2/models/m/sequences/other").status, 404);
    assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": 1}))), 5.0);
    let reply = client.post("/v2/models/m/sequences/1/fork", &json!({"sequence_id": "new"}));
    assert_eq!((reply.status, reply.error()), (400, "sequence new of model 'm': expected a new id, found one in use".to_owned()));
    let reply = client.post("/v2/models/m/sequences/1/fork", &json!({}));
    assert_eq!(reply.status, 400);
    let reply = client.post("/v2/models/m/sequences/none/fork", &json!({"sequence_id": 9}));
    assert_eq!((reply.status, reply.error()), (404, "model 'm' has no sequence none".to_owned()));
}

#[test]
fn a_request_can_step_many_sequences() {
    let (server, _folder) = server("many");
    let mut client = server.client();
    let vector = |x: Value, ids: Value, datatype: &str, starts: Option<Value>, ends: Option<Value>| {
        let count = ids.as_array().unwrap().len();
        let mut inputs = vec![
            json!({"name": "x", "shape": [count, 1], "datatype": "FP32", "data": x}),
            json!({"name": "__sequence_id", "shape": [count], "datatype": datatype, "data": ids}),
        ];
        let flags = [("__sequence_start", starts), ("__sequence_end", ends)];
        let flags = flags.into_iter().filter_map(|(name, flags)| Some((name, flags?)));
        inputs.extend(flags.map(|(name, data)| json!({"name": name, "shape": [count], "datatype": "BOOL", "data": data})));
        json!({"inputs": inputs})
    };
    let mut call = |request: Value| client.post(PATH, &request);
    let sums = |reply: Reply| reply.ok().json()["outputs"][0]["data"].clone();
    let starts = Some(json!([true, true, true]));
    assert_eq!(sums(call(vector(json!([1, 2, 3]), json!([30, 20, 10]), "UINT64", starts, None))), json!([1.0, 2.0, 3.0]));
    // The others in another order, one of which ends.
    let request = vector(json!([10, 20]), json!(["10", "30"]), "BYTES", None, Some(json!([false, true])));
    assert_eq!(sums(call(request)), json!([13.0, 21.0]));
    // One that is unknown, or there twice: none is stepped.
    let reply = call(vector(json!([1, 1]), json!([10, 30]), "UINT64", None, None));
    assert_eq!((reply.status, reply.error()), (400, unknown("30")));
    let reply = call(vector(json!([1, 1]), json!([10, 30]), "UINT64", Some(json!([true, false])), None));
    assert_eq!((reply.status, reply.error()), (400, unknown("30")));
    let reply = call(vector(json!([1, 1]), json!([10, 10]), "UINT64", None, None));
    assert_eq!((reply.status, reply.error()), (400, "tensor __sequence_id: expected each sequence once, found 10 twice".to_owned()));
    let reply = call(vector(json!([1, 1]), json!([10, 0]), "UINT64", None, None));
    assert_eq!(
        (reply.status, reply.error()),
        (400, "tensor __sequence_id: expected a sequence for each row, found 0 or an empty text".to_owned())
    );
    assert_eq!(sums(call(vector(json!([0, 0]), json!([20, 10]), "UINT64", None, None))), json!([2.0, 13.0]));
    let parameter = request_batch();
    let reply = call(parameter);
    assert_eq!(reply.error(), "expected a batch of 1 with a sequence_id, found 2: the tensor __sequence_id has one for each");
}

fn request_batch() -> Value {
    json!({"inputs": [{"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}], "parameters": {"sequence_id": 20}})
}

#[test]
fn a_client_that_goes_away_gives_its_step_up() {
    let (server, _folder) = server("goes away");
    let gate = sum::gate("goes away");
    let mut client = server.client();
    step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    step(&mut client, 1.0, json!({"sequence_id": 2, "sequence_start": true})).ok();
    // The engine is busy with one, a second waits for the engine, a third for the first.
    let send = |x: f32, id: u64| {
        let mut client = server.client();
        client.send("POST", PATH, &[], request(x, json!({"sequence_id": id})).to_string().as_bytes());
        client
    };
    let first = send(WAITS, 1);
    gate.reached(1);
    let second = send(10.0, 2);
    client.wait_for("nv_inference_pending_request_count", "m", 2.0);
    let third = send(100.0, 1);
    client.wait_for("candle_sequence_requests_waiting", "m", 1.0);
    third.hang_up();
    second.hang_up();
    first.hang_up();
    client.wait_for("nv_inference_pending_request_count", "m", 0.0);
    assert_eq!(client.metric("candle_sequence_requests_waiting", "m"), 0.0);
    gate.open();
    // The one that ran is finished, the one that waited was never made.
    assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": 1}))), f64::from(1.0 + WAITS));
    assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": 2}))), 1.0);
    let text = String::from_utf8(client.get("/metrics").ok().body).unwrap();
    assert!(text.contains("nv_inference_request_failure{model=\"m\",version=\"1\",reason=\"CANCELED\"} 3"), "{text}");
}

#[test]
fn a_deadline_that_is_over_leaves_the_state_as_it_was() {
    let (server, _folder) = server("deadline");
    let gate = sum::gate("deadline");
    let mut client = server.client();
    step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    let mut busy = server.client().patient();
    busy.send("POST", PATH, &[], request(WAITS, json!({})).to_string().as_bytes());
    gate.reached(1);
    let mut late = server.client().patient();
    late.send("POST", PATH, &[], request(2.0, json!({"sequence_id": 1, "timeout": 1000})).to_string().as_bytes());
    client.wait_for("nv_inference_pending_request_count", "m", 2.0);
    // Another one waits for that sequence's turn, and for nothing longer than its own deadline.
    std::thread::sleep(Duration::from_millis(5));
    gate.open();
    let reply = late.receive();
    assert_eq!((reply.status, reply.error()), (504, "the deadline was over before the step began".to_owned()));
    busy.receive().ok();
    assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": 1}))), 1.0);
}

#[test]
fn a_failed_step_is_told_until_the_sequence_begins_anew() {
    let (server, _folder) = server("fails");
    let mut client = server.client();
    step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    let reply = step(&mut client, FAILS, json!({"sequence_id": 1}));
    assert_eq!((reply.status, reply.error()), (500, "the model failed: asked to fail".to_owned()));
    let reply = step(&mut client, 1.0, json!({"sequence_id": 1}));
    assert_eq!((reply.status, reply.error()), (409, "the state was lost in a failed step: reset or restore the session".to_owned()));
    assert_eq!(client.get("/v2/models/m/sequences/1").status, 409);
    assert_eq!(sum_of(step(&mut client, 3.0, json!({"sequence_id": 1, "sequence_start": true}))), 3.0);
    // One whose first step failed was never there.
    assert_eq!(step(&mut client, FAILS, json!({"sequence_id": 2, "sequence_start": true})).status, 500);
    assert_eq!(step(&mut client, 1.0, json!({"sequence_id": 2})).error(), unknown("2"));
}

#[test]
fn sequences_that_nobody_uses_end() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "unused");
    let mut options = sum::options(folder.path());
    options.limits.sequence_time = Duration::from_millis(1);
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    client.wait_for("candle_sequences", "m", 0.0);
    let reply = step(&mut client, 1.0, json!({"sequence_id": 1}));
    assert_eq!((reply.status, reply.error()), (400, unknown("1") + " (it was idle for too long and ended)"));
    step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_start": true, "sequence_end": true})).ok();
    assert_eq!(step(&mut client, 1.0, json!({"sequence_id": 1})).error(), unknown("1"));
}

#[test]
fn sessions_that_are_all_taken_are_told() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "taken");
    let mut options = sum::options(folder.path());
    options.engine.sessions = 1;
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    let reply = step(&mut client, 1.0, json!({"sequence_id": 2, "sequence_start": true}));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    assert_eq!(reply.error(), "all 1 sessions of the engine are open");
    assert_eq!(step(&mut client, 1.0, json!({})).status, 429);
    step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_end": true})).ok();
    step(&mut client, 1.0, json!({"sequence_id": 2, "sequence_start": true})).ok();
}
