//! Traces: when each stage of a request began.

use crate::client::{Client, Running, SHIPPED, options};
use crate::grpc::add;
use crate::sum::{self, FAILS};
use candle_serve::proto::{TraceSettingRequest, trace_setting_request};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::path::Path;

fn infer(client: &mut Client<TcpStream>, model: &str, x: f32) -> u16 {
    let inputs = json!([{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]);
    client.post(&format!("/v2/models/{model}/infer"), &json!({"id": format!("request {x}"), "inputs": inputs})).status
}

fn lines(file: &Path) -> Vec<Value> {
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn stages_of_requests_are_written_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (models, file) = (folder.path().join("models"), folder.path().join("trace.json"));
    std::fs::create_dir(&models).unwrap();
    sum::save(&models, "a", "trace");
    sum::save(&models, "b", "trace");
    let mut options = options(&models);
    options.trace = Some(file.clone());
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    let off = json!({
        "trace_file": file, "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0",
    });
    assert_eq!(client.get("/v2/trace/setting").ok().json(), off);
    assert_eq!(client.get("/v2/models/a/trace/setting").ok().json(), off);
    assert!(client.get("/v2").ok().json()["extensions"].as_array().unwrap().contains(&json!("trace")));
    infer(&mut client, "a", 1.0);
    assert!(lines(&file).is_empty());
    let mut on = off.clone();
    (on["trace_level"], on["trace_rate"]) = (json!(["TIMESTAMPS"]), json!("1"));
    assert_eq!(client.post("/v2/trace/setting", &json!({"trace_level": ["TIMESTAMPS"], "trace_rate": 1})).ok().json(), on);
    // One model has a rate of its own, until it is as all again.
    on["trace_rate"] = json!("2");
    assert_eq!(client.post("/v2/models/b/trace/setting", &json!({"trace_rate": "2"})).ok().json(), on);
    let statuses = [("a", 2.0), ("b", 3.0), ("b", 4.0), ("b", 5.0), ("a", FAILS)].map(|(model, x)| infer(&mut client, model, x));
    assert_eq!(statuses, [200, 200, 200, 200, 500]);
    client.post("/v2/models/b/trace/setting", &json!({"trace_rate": null})).ok();
    infer(&mut client, "b", 6.0);
    infer(&mut client, "b", 7.0);
    // An end of its own for all.
    assert_eq!(client.post("/v2/trace/setting", &json!({"trace_count": "1"})).ok().json()["trace_count"], json!("1"));
    infer(&mut client, "a", 8.0);
    infer(&mut client, "a", 9.0);
    assert_eq!(client.get("/v2/trace/setting").ok().json()["trace_count"], json!("0"));
    let lines = lines(&file);
    let of = |line: &Value| (line["model_name"].as_str().unwrap().to_owned(), line["request_id"].as_str().unwrap().to_owned());
    let found: Vec<_> = lines.iter().map(of).collect();
    let expected =
        [("a", "request 2"), ("b", "request 3"), ("b", "request 5"), ("a", ""), ("b", "request 6"), ("b", "request 7"), ("a", "request 8")];
    assert_eq!(found, expected.map(|(model, id)| (model.to_owned(), id.to_owned())));
    let stages = |line: &Value| {
        line["timestamps"].as_array().unwrap().iter().map(|stage| stage["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
        "HTTP_SEND_START",
    ];
    for (at, line) in lines.iter().enumerate() {
        assert_eq!((&line["id"], &line["model_version"]), (&json!(at + 1), &json!(1)));
        // The one that failed came as far as its request.
        assert_eq!(stages(line), all[..if at == 3 { 3 } else { all.len() }]);
        let times: Vec<u64> = line["timestamps"].as_array().unwrap().iter().map(|stage| stage["ns"].as_u64().unwrap()).collect();
        assert!(times.is_sorted() && times[0] > 1_700_000_000_000_000_000, "{times:?}");
    }
}

#[test]
fn values_of_tensors_are_written_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (models, file) = (folder.path().join("models"), folder.path().join("trace.json"));
    std::fs::create_dir(&models).unwrap();
    sum::save(&models, "m", "tensors");
    let mut options = options(&models);
    options.trace = Some(file.clone());
    let server = Running::new(options, sum::families());
    let (mut client, mut grpc) = (server.client(), server.grpc());
    let set = |client: &mut Client<TcpStream>, level: Value| {
        let found = client.post("/v2/trace/setting", &json!({"trace_level": level.clone(), "trace_rate": "1"})).ok().json();
        assert_eq!(found["trace_level"], level);
    };
    set(&mut client, json!(["TENSORS"]));
    // Three rows, and one of a sequence whose input is left at its default.
    let rows = json!([{"name": "x", "shape": [3, 1], "datatype": "FP32", "data": [1.5, -2.0, 0.1]}]);
    client.post("/v2/models/m/infer", &json!({"inputs": rows})).ok();
    let parameters = json!({"sequence_id": 1, "sequence_start": true});
    client.post("/v2/models/m/infer", &json!({"id": "left out", "inputs": [], "parameters": parameters})).ok();
    // Whichever protocol they are asked for by.
    let value = ["TIMESTAMPS", "TENSORS"].map(str::to_owned).to_vec();
    let settings = [("trace_level".to_owned(), trace_setting_request::SettingValue { value: value.clone() })].into();
    let request = TraceSettingRequest { settings, model_name: String::new() };
    let settings = server.runtime.block_on(grpc.client.trace_setting(request)).unwrap().into_inner().settings;
    assert_eq!((&settings["trace_level"].value, &*settings["trace_rate"].value), (&value, &["1".to_owned()][..]));
    grpc.infer(add(3.0)).unwrap();
    // Of one that fails there are the inputs.
    assert_eq!(infer(&mut client, "m", FAILS), 500);
    set(&mut client, json!(["TIMESTAMPS"]));
    infer(&mut client, "m", 4.0);
    let lines = lines(&file);
    let head = |id: u64, request: &str| json!({"id": id, "model_name": "m", "model_version": 1, "request_id": request});
    let tensor = |id: u64, activity: &str, name: &str, data: &str, shape: &str| json!({"id": id, "activity": activity, "tensor": {"name": name, "data": data, "shape": shape, "dtype": "FP32"}});
    let (input, output) = ("TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT");
    let expected = [
        head(1, ""),
        tensor(1, input, "x", "1.5,-2,0.1", "3,1"),
        tensor(1, output, "y", "1.5,-2,0.1", "3,1"),
        head(2, "left out"),
        tensor(2, input, "x", "0.5", "1,1"),
        tensor(2, output, "y", "0.5", "1,1"),
        head(3, ""),
        tensor(3, input, "x", "3", "1,1"),
        tensor(3, output, "y", "3", "1,1"),
        head(4, ""),
        tensor(4, input, "x", "-1", "1,1"),
        head(5, "request 4"),
    ];
    let mut found = lines.clone();
    found.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("timestamps")));
    assert_eq!(found, expected);
    let timed: Vec<u64> = lines.iter().filter(|line| line.get("timestamps").is_some()).map(|line| line["id"].as_u64().unwrap()).collect();
    assert_eq!(timed, [3, 4, 5]);
}

#[test]
fn settings_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("models")).unwrap();
    sum::save(&folder.path().join("models"), "m", "trace settings");
    let mut options = options(folder.path().join("models"));
    options.trace = Some(folder.path().join("trace"));
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    let before = client.get("/v2/trace/setting").ok().json();
    for (change, status, message) in [
        (json!({"trace_level": "MAX"}), 400, "trace_level: expected OFF, or TIMESTAMPS, TENSORS or both, found MAX"),
        (json!({"trace_level": []}), 400, "trace_level: expected OFF, or TIMESTAMPS, TENSORS or both, found nothing"),
        (json!({"trace_level": ["TENSORS", "OFF"]}), 400, "trace_level: expected OFF, or TIMESTAMPS, TENSORS or both, found OFF"),
        (json!({"trace_rate": "-1"}), 400, "trace_rate: expected a number from 0 to 2^64 - 1, found -1"),
        (json!({"trace_count": "-2"}), 400, "trace_count: expected a number from 0 to 2^64 - 1, found -2"),
        (
            json!({"trace_rate": "5", "trace_file": "/etc/passwd"}),
            400,
            "trace_file: expected to be left as it is, which is set where the server is started",
        ),
        (
            json!({"mode": null}),
            400,
            "trace settings: expected [trace_file, trace_level, trace_rate, trace_count, log_frequency], found mode",
        ),
        (json!([]), 400, "request: invalid type: sequence, expected a map at line 1 column 0"),
    ] {
        for page in ["/v2/trace/setting", "/v2/models/m/trace/setting"] {
            let reply = client.post(page, &change);
            assert_eq!((reply.status, reply.error().as_str()), (status, message));
        }
    }
    assert_eq!(client.get("/v2/trace/setting").ok().json(), before);
    assert_eq!(client.post("/v2/trace/setting", &before).ok().json(), before, "what was read can be sent back");
    assert_eq!(client.get("/v2/models/none/trace/setting").status, 404);
    // Where there is no file there are none.
    let reply = SHIPPED.client().post("/v2/trace/setting", &json!({"trace_level": ["TIMESTAMPS"]}));
    let message = "trace_level: there is nowhere to write traces: the server was started without --trace-file";
    assert_eq!((reply.status, reply.error().as_str()), (501, message));
    assert!(!SHIPPED.client().get("/v2").ok().json()["extensions"].as_array().unwrap().contains(&json!("trace")));
}
