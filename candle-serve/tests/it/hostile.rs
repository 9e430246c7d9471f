//! Requests that are wrong: each is answered with its status and with words that say what is wrong, and nothing else goes wrong with it.

use crate::client::{Client, Reply, Running, SHIPPED, options};
use crate::sum;
use bytes::Bytes;
use candle_models::random::Random;
use candle_serve::protocol::request::InferRequest;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MLP: &str = "/v2/models/policy-mlp/infer";
const BINARY: &str = "Inference-Header-Content-Length";

fn valid() -> Value {
    json!({"inputs": [
        {"name": "features", "shape": [1, 288], "datatype": "FP32", "data": vec![0.1; 288]},
        {"name": "ids", "shape": [1, 6], "datatype": "UINT32", "data": [14, 14, 14, 14, 14, 14]},
    ]})
}

/// The valid request with something else in one place.
fn with(pointer: &str, value: Value) -> Value {
    let mut request = valid();
    *request.pointer_mut(pointer).unwrap() = value;
    request
}

/// The valid request with one thing more in one place.
fn and(pointer: &str, key: &str, value: Value) -> Value {
    let mut request = valid();
    request.pointer_mut(pointer).unwrap()[key] = value;
    request
}

#[track_caller]
fn refused(reply: &Reply, status: u16, message: &str) {
    let error = reply.error();
    assert_eq!((reply.status, error.as_str()), (status, message));
    assert_eq!(reply.header("content-type"), Some("application/json"));
}

#[test]
fn a_wrong_request_is_told_what_is_wrong() {
    let mut client = SHIPPED.client();
    client.post(MLP, &valid()).ok();
    let nan = json!({"name": "features", "shape": [1, 288], "datatype": "FP32", "data": vec![Value::Null; 288]});
    let cases: Vec<(Value, &str)> = vec![
        (json!({}), "request: missing field `inputs` at line 1 column 2"),
        (json!({"inputs": []}), "tensor features: expected FP32 [-1, 288]: it has no default, found no such input"),
        (
            with("/inputs/0/name", json!("feature")),
            "tensor feature: expected an input of the model, found only [features, ids, uniform, previous_action]",
        ),
        (with("/inputs/1/name", json!("features")), "input features: expected once, found twice"),
        (with("/inputs/0/datatype", json!("FP64")), "tensor features: expected datatype FP32, found FP64"),
        (with("/inputs/1/datatype", json!("INT64")), "tensor ids: expected datatype UINT32, found INT64"),
        (
            with("/inputs/1/datatype", json!("float")),
            "tensor ids: datatype: expected one of [BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, \
             BYTES], found float",
        ),
        (with("/inputs/0/shape", json!([288])), "tensor features: expected shape [-1, 288], found [288]"),
        (with("/inputs/0/shape", json!([1, 287])), "tensor features: expected shape [-1, 288], found [1, 287]"),
        (with("/inputs/0/shape", json!([0, 288])), "tensor features: expected a batch from 1 to 32, found 0"),
        (with("/inputs/0/shape", json!([33, 288])), "tensor features: expected a batch from 1 to 32, found 33"),
        (with("/inputs/0/shape", json!([u64::MAX, 288])), "tensor features: expected a batch from 1 to 32, found 18446744073709551615"),
        (with("/inputs/1/shape", json!([2, 6])), "tensor ids: expected a batch of 1, as of the tensors before it, found 2"),
        (with("/inputs/0/data", json!(vec![0.1; 287])), "tensor features: expected 288 values, found 287"),
        (with("/inputs/0/data", json!(vec![0.1; 289])), "tensor features: expected 288 values, found more"),
        (with("/inputs/0/data", json!(1.5)), "tensor features: expected an array in data, found 1.5"),
        (with("/inputs/0/data", json!({"a": 1})), "tensor features: expected an array in data, found {\"a\":1}"),
        (with("/inputs/0/data/7", json!("x")), "tensor features: expected numbers that 32-bit floats hold, found \"x\" at index 7"),
        (with("/inputs/0/data/7", json!(1e300)), "tensor features: expected numbers that 32-bit floats hold, found 1e300 at index 7"),
        (with("/inputs/0/data/7", json!(true)), "tensor features: expected numbers that 32-bit floats hold, found true at index 7"),
        (with("/inputs/0", nan), "tensor features: invalid type: null, expected numbers that 32-bit floats hold"),
        (with("/inputs/1/data/2", json!(-1)), "tensor ids: expected integers from 0 to 2^32 - 1, found -1 at index 2"),
        (with("/inputs/1/data/2", json!(1.5)), "tensor ids: expected integers from 0 to 2^32 - 1, found 1.5 at index 2"),
        (
            with("/inputs/1/data/2", json!(4_294_967_296_u64)),
            "tensor ids: expected integers from 0 to 2^32 - 1, found 4294967296 at index 2",
        ),
        (with("/inputs/1/data", json!(null)), "tensor ids: expected data or the parameter binary_data_size, found neither"),
        (
            and("/inputs/1", "parameters", json!({"binary_data_size": 24})),
            "tensor ids: expected either data or binary_data_size, found both",
        ),
        (and("", "outputs", json!([{"name": "logit"}])), "tensor logit: expected an output of the model, found only [OUTPUTS]"),
        (and("", "outputs", json!([{"name": "logits"}, {"name": "logits"}])), "output logits: expected once, found twice"),
        (
            and("", "parameters", json!({"sequence_id": 7})),
            "inference request for sequence 7 to model 'policy-mlp' must specify the START flag on the first request of the sequence",
        ),
        (
            and("", "parameters", json!({"sequence_id": "left"})),
            "inference request for sequence left to model 'policy-mlp' must specify the START flag on the first request of the sequence",
        ),
        (and("", "parameters", json!({"sequence_id": "x".repeat(129)})), "sequence_id: expected at most 128 bytes, found 129"),
        (
            and("", "parameters", json!({"sequence_id": -1})),
            "request: expected sequence_id to be a number from 0 to 2^64 - 1 or a text at line 1 column COLUMN",
        ),
    ];
    let classes = and("", "outputs", json!([{"name": "value", "parameters": {"classification": -1}}]));
    let reply = client.post(MLP, &classes);
    assert_eq!(reply.status, 400);
    assert!(reply.error().starts_with("request: invalid value: integer `-1`, expected u64"), "{}", reply.error());
    let outputs = client.get("/v2/models/policy-mlp").ok().json();
    let outputs: Vec<&str> = outputs["outputs"].as_array().unwrap().iter().map(|output| output["name"].as_str().unwrap()).collect();
    let inputs = client.get("/v2/models/policy-mlp").ok().json();
    let inputs: Vec<&str> = inputs["inputs"].as_array().unwrap().iter().map(|input| input["name"].as_str().unwrap()).collect();
    for (request, message) in &cases {
        let reply = client.post(MLP, request);
        let message =
            message.replace("OUTPUTS", &outputs.join(", ")).replace("features, ids, uniform, previous_action", &inputs.join(", "));
        // Where in the text a value ends is for people to look at.
        let error = match message.contains("COLUMN") {
            true => reply.error().rsplit_once(' ').map(|(start, _)| format!("{start} COLUMN")).unwrap(),
            false => reply.error(),
        };
        assert_eq!((reply.status, error), (400, message), "{request}");
    }
    let model = json!({"name": "ids", "shape": [1, 6], "datatype": "UINT32", "data": [999_999, 14, 14, 14, 14, 14]});
    let reply = client.post(MLP, &with("/inputs/1", model));
    assert_eq!(reply.status, 400);
    assert!(reply.error().starts_with("tensor ids: expected an index up to ") && reply.error().ends_with("found 999999 in column 0"));
    client.post(MLP, &valid()).ok();
}

#[test]
fn rows_of_a_batch_are_checked_before_one_is_stepped() {
    let mut client = SHIPPED.client();
    let mut rows = vec![[14; 6]; 2];
    rows[1][3] = 999_999;
    let request = json!({"inputs": [
        {"name": "features", "shape": [2, 288], "datatype": "FP32", "data": vec![vec![0.1; 288]; 2]},
        {"name": "ids", "shape": [2, 6], "datatype": "UINT32", "data": rows},
    ]});
    let reply = client.post(MLP, &request);
    assert_eq!(reply.status, 400);
    assert!(reply.error().ends_with("found 999999 in column 3 of row 1"), "{}", reply.error());
}

#[test]
fn a_body_that_is_no_json_is_refused() {
    let mut client = SHIPPED.client();
    let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
    let deep = |data: String| format!(r#"{{"inputs": [{{"name": "features", "shape": [1, 288], "datatype": "FP32", "data": {data}}}]}}"#);
    for (body, start) in [
        (&b""[..], "request: EOF while parsing a value"),
        (b"{", "request: EOF while parsing an object"),
        (b"\xff\xfe", "request: expected an object of JSON"),
        (b" [null, null, []]", "request: expected an object of JSON"),
        (b"{\"inputs\": [{\"name\": \"\xff\"}]}", "request: invalid unicode code point"),
        (br#"{"inputs": []} x"#, "request: trailing characters"),
        (br#"{"inputs": [{"name": 7}]}"#, "request: invalid type: integer `7`, expected a string"),
        (deep(nested(100_000)).as_bytes(), "tensor features: recursion limit exceeded"),
        (deep("[".repeat(100_000)).as_bytes(), "request: expected value"),
    ] {
        let reply = client.call("POST", MLP, &[], body);
        assert_eq!(reply.status, 400);
        assert!(reply.error().starts_with(start), "{start}: {}", reply.error());
    }
}

#[test]
fn binary_tensors_are_as_long_as_they_say() {
    let mut client = SHIPPED.client();
    let input = |name: &str, shape: Value, datatype: &str, size: Value| json!({"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}});
    let request = |features: Value, ids: Value| {
        json!({"inputs": [input("features", json!([1, 288]), "FP32", features), input("ids", json!([1, 6]), "UINT32", ids)]}).to_string()
    };
    let right = request(json!(1152), json!(24));
    let length = right.len().to_string();
    let body = |json: &str, tail: usize| [json.as_bytes(), &vec![0; tail]].concat();
    client.call("POST", MLP, &[(BINARY, &length)], &body(&right, 1176)).ok();
    let cases = [
        (right.clone(), 1175, "tensor ids: expected 24 bytes in the body, found 23"),
        (right.clone(), 1177, "the body has 1 bytes more than its inputs behind the JSON"),
        (request(json!(1151), json!(25)), 1176, "tensor features: expected 1152 bytes, found 1151"),
        (request(json!(u64::MAX), json!(24)), 1176, "tensor features: expected 18446744073709551615 bytes in the body, found 1176"),
    ];
    for (json, tail, message) in &cases {
        let reply = client.call("POST", MLP, &[(BINARY, &json.len().to_string())], &body(json, *tail));
        refused(&reply, 400, message);
    }
    for (value, message) in [
        ("x", "Inference-Header-Content-Length: expected a number of bytes, found x"),
        ("-1", "Inference-Header-Content-Length: expected a number of bytes, found -1"),
        ("99999999999999999999", "Inference-Header-Content-Length: expected a number of bytes, found 99999999999999999999"),
        ("100000", "expected 100000 bytes of JSON, found a body of 1500"),
    ] {
        let padded = body(&right, 1500 - right.len());
        refused(&client.call("POST", MLP, &[(BINARY, value)], &padded), 400, message);
    }
    // Without the header the tensors have nowhere to be.
    let message = "tensor features: expected the header Inference-Header-Content-Length with binary data, found none";
    refused(&client.call("POST", MLP, &[], right.as_bytes()), 400, message);
    // Numbers that are none get as far as the engine, which answers no nonsense.
    let mut not_finite = body(&right, 1176);
    let at = right.len();
    not_finite[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let reply = client.call("POST", MLP, &[(BINARY, &length)], &not_finite);
    refused(&reply, 400, "tensor features: expected finite numbers, found NaN in column 0");
}

#[test]
fn what_is_not_there_is_not_found() {
    let mut client = SHIPPED.client();
    for (method, path, status, message) in [
        ("GET", "/", 404, "there is no page /"),
        ("GET", "/v2/models/none", 404, "unknown model: 'none' is not found"),
        ("GET", "/v2/models/none/ready", 404, "unknown model: 'none' is not found"),
        ("POST", "/v2/models/none/infer", 404, "unknown model: 'none' is not found"),
        ("GET", "/v2/models/policy-mlp/versions/2", 404, "model 'policy-mlp' has version 1, and no version 2"),
        ("GET", "/v2/models/..%2f..%2fetc/config", 404, "unknown model: '..%2f..%2fetc' is not found"),
        ("GET", "/v2/models/policy-mlp/infer", 405, "expected POST, found GET"),
        ("POST", "/v2", 405, "expected GET, found POST"),
        ("PATCH", "/v2/models/policy-mlp/sequences/7", 405, "expected GET, DELETE, found PATCH"),
        ("GET", "/v2/models/policy-mlp/sequences/7", 404, "model 'policy-mlp' has no sequence 7"),
        ("GET", "/v2/models/policy-mlp/sequences/0", 400, "sequence_id: expected one of a sequence, found 0 or an empty text"),
    ] {
        refused(&client.call(method, path, &[], b""), status, message);
    }
    assert_eq!(client.call("PATCH", "/v2/models/policy-mlp/sequences/7", &[], b"").header("allow"), Some("GET, DELETE"));
}

#[test]
fn parts_of_the_protocol_that_are_missing_say_so() {
    let mut client = SHIPPED.client();
    let load = json!({"parameters": {"config": "{}"}});
    refused(&client.post("/v2/repository/models/policy-mlp/load", &load), 501, "the parameter config of a load is not supported");
}

#[test]
fn large_and_bloated_bodies_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "large");
    let mut options = options(folder.path());
    options.limits.body = 10_000;
    let server = Running::new(options, sum::families());
    let path = "/v2/models/m/infer";
    let message = "expected a body of at most 10000 bytes, found more";
    refused(&server.client().call("POST", path, &[], &vec![b' '; 10_001]), 413, message);
    // In pieces of unknown number.
    let mut client = server.client();
    client.write(format!("POST {path} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes());
    let chunk = [b"1000\r\n".to_vec(), vec![b' '; 0x1000], b"\r\n".to_vec()].concat();
    (0..3).for_each(|_| client.write(&chunk));
    refused(&client.receive(), 413, message);
    // A megabyte of zeros in a kilobyte.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; 1 << 20]).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 10_000);
    let mut client = server.client();
    refused(&client.call("POST", path, &[("Content-Encoding", "gzip")], &bomb), 413, message);
    let reply = client.call("POST", path, &[("Content-Encoding", "gzip")], b"no gzip");
    assert_eq!(reply.status, 400);
    assert!(reply.error().starts_with("the body is no gzip: "), "{}", reply.error());
    let reply = client.call("POST", path, &[("Content-Encoding", "br")], b"");
    refused(&reply, 415, "Content-Encoding: expected gzip, deflate or identity, found br");
    client.post(path, &json!({"inputs": []})).ok();
}

/// A client is closed, at last.
fn closed(mut client: Client<TcpStream>) {
    assert!(client.try_receive().is_none());
}

#[test]
fn slow_clients_are_left_alone_after_their_time() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "slow");
    let mut options = options(folder.path());
    options.limits.header_time = Duration::from_millis(50);
    options.limits.body_time = Duration::from_millis(50);
    options.limits.idle_time = Duration::from_secs(3600);
    let server = Running::new(options, sum::families());
    let mut idle = server.client();
    idle.get("/v2").ok();
    let mut headers = server.client().patient();
    headers.write(b"GET /v2 HTTP/1.1\r\nHost:");
    closed(headers);
    let mut body = server.client().patient();
    body.write(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{");
    refused(&body.receive(), 408, "the body did not come within 50ms");
    // One that only waits is none of them.
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(200) {
        std::thread::sleep(Duration::from_millis(20));
    }
    idle.get("/v2").ok();
}

#[test]
fn idle_connections_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "idle connection");
    let mut options = options(folder.path());
    options.limits.idle_time = Duration::from_millis(50);
    let server = Running::new(options, sum::families());
    let client = server.client().patient();
    closed(client);
}

#[test]
fn what_is_no_http_is_closed() {
    let mut client = SHIPPED.client().patient();
    client.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not a request at all\r\n\r\n");
    if let Some(reply) = client.try_receive() {
        assert_eq!(reply.status, 400);
    }
    assert!(client.try_receive().is_none());
    SHIPPED.client().get("/v2/health/live").ok();
}

#[test]
fn mutilated_requests_are_answered_or_refused() {
    let json = json!({"id": "x", "parameters": {"binary_data_output": true, "timeout": 60_000_000}, "inputs": [
        {"name": "features", "shape": [1, 288], "datatype": "FP32", "parameters": {"binary_data_size": 1152}},
        {"name": "ids", "shape": [1, 6], "datatype": "UINT32", "data": [[14, 14, 14, 14, 14, 14]]},
    ], "outputs": [{"name": "logits"}, {"name": "action", "parameters": {"binary_data": false}}]});
    let json = json.to_string();
    let whole = [json.as_bytes(), &[0; 1152]].concat();
    let length = json.len().to_string();
    let mut client = SHIPPED.client();
    client.call("POST", MLP, &[(BINARY, &length)], &whole).ok();
    let (mut understood, mut refused) = (0, 0);
    for round in 0..4000 {
        let random = Random::new(round);
        let mut body = whole.clone();
        for change in 0..1 + u64::from(random.below(0, 4)) {
            let at = random.below(10 + 4 * change, json.len() as u32) as usize;
            let other = random.below(11 + 4 * change, json.len() as u32) as usize;
            match random.below(12 + 4 * change, 4) {
                0 => body[at] = random.below(13 + 4 * change, 256) as u8,
                1 => body[at] = body[other],
                2 => body.swap(at, other),
                _ => body.truncate(body.len() - at.min(body.len())),
            }
            // What was cut off is missing from then on.
            body.resize(body.len().max(json.len()), b' ');
        }
        let bytes = Bytes::from(body.clone());
        match InferRequest::parse(&bytes, Some(json.len()), None) {
            Ok(_) => understood += 1,
            Err(fault) => {
                refused += 1;
                assert!(!fault.message.contains(char::is_control) && fault.message.len() < 600, "{}", fault.message);
            }
        }
        if round % 20 == 0 {
            let reply = client.call("POST", MLP, &[(BINARY, &length)], &body);
            assert!([200, 400, 501].contains(&reply.status), "{}", reply.error());
        }
    }
    assert!(understood > 100 && refused > 100, "{understood} understood, {refused} refused");
}
