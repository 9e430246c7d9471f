//! Inputs and outputs in shared memory of this machine.

use crate::client::{Client, Reply, Running, SHIPPED, options};
use crate::sum;
use serde_json::{Value, json};
use std::fs::File;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PATH: &str = "/v2/models/m/infer";

/// A shared memory object of this test's own, removed in the end.
struct Object {
    key: String,
    file: File,
}

impl Object {
    fn new(size: u64) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let key = format!("candle-serve-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let file = File::options().read(true).write(true).create_new(true).open(format!("/dev/shm/{key}")).unwrap();
        file.set_len(size).unwrap();
        Self { key, file }
    }

    fn put(&self, at: u64, values: &[f32]) {
        self.file.write_all_at(bytemuck::cast_slice(values), at).unwrap();
    }

    fn get(&self, at: u64) -> f32 {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        f32::from_le_bytes(bytes)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(format!("/dev/shm/{}", self.key));
    }
}

fn server(gate: &str) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", gate);
    let mut options = options(folder.path());
    options.shared_memory = true;
    (Running::new(options, sum::families()), folder)
}

fn register(client: &mut Client<TcpStream>, name: &str, key: &str, offset: u64, size: u64) -> Reply {
    client.post(&format!("/v2/systemsharedmemory/region/{name}/register"), &json!({"key": key, "offset": offset, "byte_size": size}))
}

fn range(region: &str, offset: u64, size: u64) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size})
}

/// A request whose input, and output where it has a place, are in shared memory.
fn request(rows: usize, input: Value, output: Option<Value>) -> Value {
    let outputs: Vec<Value> = output.into_iter().map(|place| json!({"name": "y", "parameters": place})).collect();
    json!({"inputs": [{"name": "x", "shape": [rows, 1], "datatype": "FP32", "parameters": input}], "outputs": outputs})
}

#[track_caller]
fn refused(reply: &Reply, status: u16, message: &str) {
    assert_eq!((reply.status, reply.error().as_str()), (status, message));
}

#[test]
fn tensors_lie_in_regions() {
    let (server, _folder) = server("regions");
    let mut client = server.client();
    let object = Object::new(4096);
    object.put(100, &[1.0, 2.0, 4.0]);
    register(&mut client, "in", &object.key, 100, 12).ok();
    register(&mut client, "out", &format!("/{}", object.key), 2048, 2048).ok();
    let status = client.get("/v2/systemsharedmemory/status").ok().json();
    let described = json!({"name": "in", "key": object.key, "offset": 100, "byte_size": 12});
    assert_eq!((status.as_array().unwrap().len(), &status[0]), (2, &described));
    assert_eq!(client.get("/v2/systemsharedmemory/region/in/status").ok().json(), json!([described]));
    // An input alone, both, and the end of an input.
    assert_eq!(client.post(PATH, &request(3, range("in", 0, 12), None)).ok().json()["outputs"][0]["data"], json!([1.0, 2.0, 4.0]));
    let reply = client.post(PATH, &request(3, range("in", 0, 12), Some(range("out", 8, 100)))).ok();
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let output = json!({"name": "y", "datatype": "FP32", "shape": [3, 1], "parameters": range("out", 8, 12)});
    assert_eq!(reply.json()["outputs"], json!([output]));
    assert_eq!([2056, 2060, 2064, 2068].map(|at| object.get(at)), [1.0, 2.0, 4.0, 0.0]);
    client.post(PATH, &request(1, range("in", 8, 4), Some(range("out", 0, 4)))).ok();
    assert_eq!(object.get(2048), 4.0);
    // An output in place of its input, in a sequence whose mark lies there as well.
    object.file.write_all_at(&7_u64.to_le_bytes(), 3000).unwrap();
    let mut step = request(1, range("in", 0, 4), Some(range("in", 0, 4)));
    let id = json!({"name": "__sequence_id", "shape": [1], "datatype": "UINT64", "parameters": range("out", 952, 8)});
    let start = json!({"name": "__sequence_start", "shape": [1], "datatype": "BOOL", "data": [true]});
    step["inputs"].as_array_mut().unwrap().extend([id, start]);
    client.post(PATH, &step).ok();
    step["inputs"].as_array_mut().unwrap().pop();
    client.post(PATH, &step).ok();
    assert_eq!(object.get(100), 2.0, "1 + 1");
    client.get("/v2/models/m/sequences/7").ok();
    // What is gone is gone, twice too, and what is registered anew is another one.
    for _ in 0..2 {
        client.call("POST", "/v2/systemsharedmemory/region/in/unregister", &[], b"").ok();
    }
    refused(&client.post(PATH, &request(1, range("in", 0, 4), None)), 400, "there is no shared memory region 'in'");
    register(&mut client, "in", &object.key, 104, 4).ok();
    client.call("POST", "/v2/systemsharedmemory/unregister", &[], b"").ok();
    assert_eq!(client.get("/v2/systemsharedmemory/status").ok().json(), json!([]));
}

#[test]
fn a_region_is_no_more_than_its_object() {
    let (server, _folder) = server("hostile regions");
    let mut client = server.client();
    let object = Object::new(100);
    register(&mut client, "r", &object.key, 40, 60).ok();
    refused(&register(&mut client, "r", &object.key, 0, 4), 400, "shared memory region 'r': is registered already");
    let short = |size: u64, at: u64| {
        format!("shared memory region 's': expected a shared memory object of {size} bytes from {at} on, found a shorter one")
    };
    for (offset, size) in [(41, 60), (100, 1), (0, 101), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX), (0, 1 << 63)] {
        refused(&register(&mut client, "s", &object.key, offset, size), 400, &short(size, offset));
    }
    refused(&register(&mut client, "s", &object.key, 0, 0), 400, "shared memory region 's': expected a byte_size above 0, found 0");
    // Whatever a key leads to, its answer is one, and says nothing of it.
    let link = format!("/dev/shm/{}-link", object.key);
    std::os::unix::fs::symlink(format!("/dev/shm/{}", object.key), &link).unwrap();
    let none = "shared memory region 's': expected the key of a shared memory object that the server may read and write, found another";
    for key in ["", "/", ".", "..", "../../etc/passwd", "/../../etc/passwd", "no such object", "a\0b", &format!("{}-link", object.key)] {
        refused(&register(&mut client, "s", key, 0, 4), 400, none);
    }
    std::fs::remove_file(link).unwrap();
    for (name, found) in [("%2e%2e", ".."), ("a%20b", "a b"), ("a%2fb", "a/b")] {
        let message = format!("shared memory region: expected a name as models have it, found {found}");
        refused(&register(&mut client, name, &object.key, 0, 4), 400, &message);
    }
    // Nor is a window more than its region.
    for (offset, size) in [(57, 4), (60, 4), (u64::MAX, 4), (u64::MAX - 3, 4)] {
        let message = format!("shared memory region 'r': expected at most 60 bytes, found {size} from {offset} on");
        refused(&client.post(PATH, &request(1, range("r", offset, size), None)), 400, &message);
        refused(&client.post(PATH, &request(1, range("r", 0, 4), Some(range("r", offset, size)))), 400, &message);
    }
    for (reply, message) in [
        (request(1, range("r", 0, 8), None), "tensor x: expected a shared_memory_byte_size of at most 4, found 8"),
        (
            request(1, range("r", 0, u64::MAX), None),
            "tensor x: expected a shared_memory_byte_size of at most 4, found 18446744073709551615",
        ),
        (request(1, range("r", 0, 3), None), "tensor x: expected 4 bytes, found 3"),
        (request(1, range("r", 0, 4), Some(range("r", 0, 3))), "tensor y: expected a shared_memory_byte_size of at least 4, found 3"),
        (request(1, range("none", 0, 4), None), "there is no shared memory region 'none'"),
        (
            request(1, json!({"shared_memory_region": "r"}), None),
            "tensor x: expected the parameter shared_memory_byte_size with shared_memory_region, found none",
        ),
    ] {
        refused(&client.post(PATH, &reply), 400, message);
    }
    let mut both = request(1, range("r", 0, 4), None);
    both["inputs"][0]["data"] = json!([1.0]);
    refused(&client.post(PATH, &both), 400, "tensor x: expected either shared_memory_region or values in the body, found both");
    let mut classes = request(1, range("r", 0, 4), Some(range("r", 0, 4)));
    classes["outputs"][0]["parameters"]["classification"] = json!(1);
    refused(&client.post(PATH, &classes), 400, "tensor y: expected either classification or shared_memory_region, found both");
    // The server lives on where an object becomes shorter under it, and makes none longer.
    object.file.set_len(43).unwrap();
    let message = "shared memory region 'r': expected a shared memory object of 60 bytes from 40 on, found a shorter one";
    refused(&client.post(PATH, &request(1, range("r", 0, 4), None)), 400, message);
    let mut step = request(1, json!({}), Some(range("r", 0, 4)));
    step["inputs"] = json!([]);
    refused(&client.post(PATH, &step), 400, message);
    assert_eq!(object.file.metadata().unwrap().len(), 43);
    assert_eq!(client.metric("nv_inference_count", "m"), 0.0, "a request was stepped that could not be answered");
}

#[test]
fn outputs_have_places_of_their_own() {
    let folder = crate::client::weights().join("policy-mlp");
    let mut options = options(folder);
    options.shared_memory = true;
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    let object = Object::new(1 << 16);
    register(&mut client, "r", &object.key, 0, 1 << 16).ok();
    let inputs = json!([
        {"name": "features", "shape": [1, 288], "datatype": "FP32", "data": vec![0.1; 288]},
        {"name": "ids", "shape": [1, 6], "datatype": "UINT32", "data": [14, 14, 14, 14, 14, 14]},
    ]);
    let places = |a: u64, b: u64| {
        let outputs = json!([{"name": "logits", "parameters": range("r", a, 8000)}, {"name": "action", "parameters": range("r", b, 8000)}]);
        json!({"inputs": inputs, "outputs": outputs})
    };
    let path = "/v2/models/policy-mlp/infer";
    let sizes = client.post(path, &places(0, 8000)).ok().json();
    let logits = sizes["outputs"][0]["parameters"]["shared_memory_byte_size"].as_u64().unwrap();
    client.post(path, &places(0, logits)).ok();
    let message = "expected a place of its own in shared memory for each output, found two that overlap";
    refused(&client.post(path, &places(0, logits - 4)), 400, message);
    refused(&client.post(path, &places(4, 4)), 400, message);
}

#[test]
fn there_is_none_where_it_was_not_asked_for() {
    let mut client = SHIPPED.client();
    let off = "shared memory is not allowed: the server was started without --allow-shared-memory";
    let object = Object::new(100);
    refused(&register(&mut client, "r", &object.key, 0, 4), 501, off);
    refused(&client.get("/v2/systemsharedmemory/status"), 501, off);
    refused(&client.call("POST", "/v2/systemsharedmemory/unregister", &[], b""), 501, off);
    let input = json!({"name": "state", "shape": [1, 4], "datatype": "FP32", "parameters": range("r", 0, 16)});
    refused(&client.post("/v2/models/cartpole/infer", &json!({"inputs": [input]})), 501, off);
    let extensions = |client: &mut Client<TcpStream>| client.get("/v2").ok().json()["extensions"].to_string();
    assert!(!extensions(&mut client).contains("system_shared_memory"));
    let (server, _folder) = server("allowed");
    assert!(extensions(&mut server.client()).contains("system_shared_memory"));
    // Memory on a GPU is nobody's.
    assert_eq!(client.get("/v2/cudasharedmemory/status").ok().json(), json!([]));
    for page in ["region/r/register", "region/r/unregister", "unregister"] {
        let reply = client.post(&format!("/v2/cudasharedmemory/{page}"), &json!({}));
        refused(&reply, 501, "shared memory on a GPU is not supported");
    }
}
