//! Every shipped bundle, through its signature alone: what the server answers is what the engine does, to the bit where a row is alone in its
//! batch.

use crate::client::{Client, Reply, SHIPPED, alone, weights};
use candle_models::engine::Model;
use candle_models::prelude::*;
use candle_models::random::Random;
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpStream;
use std::sync::{Arc, LazyLock};

/// Rows of the requests.
pub const ROWS: usize = 3;

pub struct Shipped {
    pub name: String,
    pub model: Arc<dyn Model>,
}

impl Shipped {
    /// Each is read once for all tests.
    pub fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Shipped>> = LazyLock::new(Shipped::read);
        &ALL
    }

    fn read() -> Vec<Self> {
        let bundles = |folder: &str| {
            let entries = std::fs::read_dir(weights().join(folder)).unwrap().map(|entry| entry.unwrap().path());
            let mut folders: Vec<_> = entries.filter(|path| path.join("config.json").is_file()).collect();
            folders.sort();
            folders
        };
        let read = |path: std::path::PathBuf| {
            let way = path.strip_prefix(weights()).unwrap().iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(".");
            let networks = families::shipped().networks(&Bundle::open(path).unwrap()).unwrap();
            let name = move |at, network| if at == 0 { way.clone() } else { format!("{way}.{network}") };
            networks.into_iter().enumerate().map(move |(at, (network, model))| Self { name: name(at, network), model })
        };
        // Those of other seeds are alike; some of them lie deeper.
        bundles("").into_iter().chain(bundles("rf/seeds").into_iter().take(2)).flat_map(read).collect()
    }

    /// Inputs of some rows.
    pub fn draw(&self, seed: u64, rows: usize) -> Vec<Tensor> {
        let random = Random::new(seed);
        self.model.signature().inputs.iter().map(|spec| spec.draw(&[rows], &random).unwrap()).collect()
    }

    /// What the engine answers to each row in a fresh session: the bytes of each output.
    pub fn expected(&self, inputs: &[Tensor], rows: usize) -> Vec<Vec<u8>> {
        let signature = self.model.signature();
        let mut runner = Runner::new(self.model.clone(), rows, 1).unwrap();
        for (spec, input) in signature.inputs.iter().zip(inputs) {
            let flat = input.flatten_all().unwrap();
            match spec.dtype() {
                DType::U32 => runner.set_u32(&spec.name, &flat.to_vec1::<u32>().unwrap()).unwrap(),
                _ => runner.set_f32(&spec.name, &flat.to_vec1::<f32>().unwrap()).unwrap(),
            }
        }
        runner.step(&vec![true; rows]).unwrap();
        let bytes = |spec: &TensorSpec, row| match spec.dtype() {
            DType::U32 => bytemuck::cast_slice(runner.indices(&spec.name, row).unwrap()).to_vec(),
            _ => bytemuck::cast_slice(runner.floats(&spec.name, row).unwrap()).to_vec(),
        };
        signature.outputs.iter().map(|spec| (0..rows).flat_map(|row| bytes(spec, row)).collect()).collect()
    }

    fn path(&self) -> String {
        format!("/v2/models/{}/infer", self.name)
    }

    /// That outputs are those: to the bit where there is one row. Several may have been in batches of another size than the runner's.
    #[track_caller]
    pub fn agree(&self, found: &[Vec<u8>], expected: &[Vec<u8>], rows: usize) {
        for ((spec, found), expected) in self.model.signature().outputs.iter().zip(found).zip(expected) {
            if rows == 1 || spec.dtype() == DType::U32 {
                assert_eq!(found, expected, "{} of {}", spec.name, self.name);
                continue;
            }
            let [found, expected] = [found, expected].map(|bytes| floats(bytes));
            let scale = expected.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let off = (found - expected).abs();
                assert!(off <= 1e-4 * scale, "{} of {} at {at}: {found} in place of {expected}", spec.name, self.name);
            }
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub fn datatype(spec: &TensorSpec) -> &'static str {
    if spec.dtype() == DType::U32 { "UINT32" } else { "FP32" }
}

pub fn bytes(tensor: &Tensor) -> Vec<u8> {
    let flat = tensor.flatten_all().unwrap();
    match tensor.dtype() {
        DType::U32 => bytemuck::cast_slice(&flat.to_vec1::<u32>().unwrap()).to_vec(),
        _ => bytemuck::cast_slice(&flat.to_vec1::<f32>().unwrap()).to_vec(),
    }
}

fn array(tensor: &Tensor) -> Value {
    let flat = tensor.flatten_all().unwrap();
    match tensor.dtype() {
        DType::U32 => json!(flat.to_vec1::<u32>().unwrap()),
        _ => json!(flat.to_vec1::<f32>().unwrap()),
    }
}

/// A request with its tensors as JSON.
fn as_json(signature: &Signature, inputs: &[Tensor]) -> Value {
    let tensor = |(spec, input): (&TensorSpec, &Tensor)| json!({"name": spec.name, "shape": input.dims(), "datatype": datatype(spec), "data": array(input)});
    json!({"id": "a request", "inputs": signature.inputs.iter().zip(inputs).map(tensor).collect::<Vec<_>>()})
}

/// The same with tensors behind the JSON, in the request and the answer; the length of the JSON first.
fn as_binary(signature: &Signature, inputs: &[Tensor]) -> (usize, Vec<u8>) {
    let tensor = |(spec, input): (&TensorSpec, &Tensor)| {
        let parameters = json!({"binary_data_size": bytes(input).len()});
        json!({"name": spec.name, "shape": input.dims(), "datatype": datatype(spec), "parameters": parameters})
    };
    let inputs_json: Vec<_> = signature.inputs.iter().zip(inputs).map(tensor).collect();
    let mut body = json!({"inputs": inputs_json, "parameters": {"binary_data_output": true}}).to_string().into_bytes();
    let length = body.len();
    inputs.iter().for_each(|input| body.extend(bytes(input)));
    (length, body)
}

/// The bytes of each output of an answer, whichever way it was given, after its description was compared with the signature.
fn outputs(signature: &Signature, rows: usize, reply: &Reply) -> Vec<Vec<u8>> {
    let length = reply.header("inference-header-content-length").map_or(reply.body.len(), |length| length.parse().unwrap());
    let (head, mut tail) = reply.body.split_at(length);
    let head: Value = serde_json::from_slice(head).unwrap();
    let list = head["outputs"].as_array().unwrap();
    assert_eq!(list.len(), signature.outputs.len());
    let read = |(spec, output): (&TensorSpec, &Value)| {
        let shape: Vec<usize> = [rows].iter().chain(&spec.shape).copied().collect();
        assert_eq!((&output["name"], &output["datatype"], &output["shape"]), (&json!(spec.name), &json!(datatype(spec)), &json!(shape)));
        if let Some(size) = output["parameters"]["binary_data_size"].as_u64() {
            let (tensor, rest) = tail.split_at(size as usize);
            tail = rest;
            return tensor.to_vec();
        }
        let values = output["data"].as_array().unwrap().iter();
        match spec.dtype() {
            DType::U32 => values.flat_map(|value| (value.as_u64().unwrap() as u32).to_le_bytes()).collect(),
            _ => values.flat_map(|value| (value.as_f64().unwrap() as f32).to_le_bytes()).collect(),
        }
    };
    let outputs = signature.outputs.iter().zip(list).map(read).collect();
    assert!(tail.is_empty());
    outputs
}

fn compare(client: &mut Client<TcpStream>, shipped: &Shipped, rows: usize) {
    let signature = shipped.model.signature();
    let inputs = shipped.draw(7, rows);
    let expected = shipped.expected(&inputs, rows);
    let json = as_json(signature, &inputs);
    let reply = client.post(&shipped.path(), &json).ok();
    assert_eq!((reply.json()["id"].as_str(), reply.json()["model_name"].as_str()), (Some("a request"), Some(shipped.name.as_str())));
    shipped.agree(&outputs(signature, rows, &reply), &expected, rows);
    let (length, body) = as_binary(signature, &inputs);
    let headers = [("Inference-Header-Content-Length", &*length.to_string())];
    let reply = client.call("POST", &shipped.path(), &headers, &body).ok();
    assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
    shipped.agree(&outputs(signature, rows, &reply), &expected, rows);
}

#[test]
fn every_bundle_answers_as_its_engine_does() {
    let server = alone();
    let mut client = server.client();
    client.get("/v2/health/ready").ok();
    let all = Shipped::all();
    assert!(all.len() >= 20);
    for shipped in all {
        compare(&mut client, shipped, ROWS);
        compare(&mut client, shipped, 1);
    }
    let index = client.post("/v2/repository/index", &json!({"ready": true})).ok().json();
    let index: Vec<&str> = index.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    let names = all.iter().map(|shipped| shipped.name.as_str()).chain(["fno.seeds.ns-2", "beam-c3.decision", "tictactoe.recurrent"]);
    names.for_each(|name| assert!(index.contains(&name), "{name} of {index:?}"));
}

#[test]
fn every_bundle_describes_itself() {
    let mut client = SHIPPED.client();
    for Shipped { name, model } in Shipped::all() {
        let signature = model.signature();
        client.get(&format!("/v2/models/{name}/ready")).ok();
        let metadata = client.get(&format!("/v2/models/{name}/versions/1")).ok().json();
        let tensor = |spec: &TensorSpec| {
            let shape: Vec<i64> = std::iter::once(-1).chain(spec.shape.iter().map(|n| *n as i64)).collect();
            json!({"name": spec.name, "datatype": datatype(spec), "shape": shape})
        };
        let tensors = |specs: &[TensorSpec]| specs.iter().map(tensor).collect::<Vec<_>>();
        let (inputs, outputs) = (tensors(&signature.inputs), tensors(&signature.outputs));
        assert_eq!(metadata, json!({"name": name, "versions": ["1"], "platform": "candle", "inputs": inputs, "outputs": outputs}));
        let config = client.get(&format!("/v2/models/{name}/config")).ok().json();
        assert_eq!((&config["name"], &config["max_batch_size"]), (&json!(name), &json!(32)));
        assert_eq!(config["sequence_batching"].is_null(), signature.state.is_empty());
        for (spec, input) in signature.inputs.iter().zip(config["input"].as_array().unwrap()) {
            assert_eq!((&input["optional"], &input["dims"]), (&json!(!spec.is_required()), &json!(spec.shape)));
        }
    }
    let server = client.get("/v2").ok().json();
    assert_eq!((&server["name"], &server["version"]), (&json!("candle-serve"), &json!(env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_server_describes_its_pages() {
    let mut client = SHIPPED.client();
    let document = client.get("/v2/docs/openapi.json").ok().json();
    assert_eq!((&document["openapi"], &document["info"]["version"]), (&json!("3.1.0"), &json!(env!("CARGO_PKG_VERSION"))));
    let reply = client.get("/v2/docs").ok();
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(reply.header("content-security-policy"), Some("default-src 'none'; style-src 'unsafe-inline'"));
    let page = String::from_utf8(reply.body).unwrap();
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"), "it loads something");
    for (path, operations) in document["paths"].as_object().unwrap() {
        assert!(page.contains(&format!("<code>{path}</code>")), "{path} is not on the page");
        // Every page that can be asked without a body answers with what it is described to.
        if operations.get("get").is_none() {
            continue;
        }
        let example = path.replace("{model}", "cartpole");
        if example.contains('{') || example.starts_with("/v2/systemsharedmemory") {
            continue;
        }
        let described = operations["get"]["responses"]["200"]["content"].as_object();
        let reply = client.get(&example).ok();
        let kind = reply.header("content-type").map(|kind| kind.split(';').next().unwrap().to_owned());
        assert_eq!(kind, described.map(|content| content.keys().next().unwrap().to_owned()), "{path}");
    }
}

#[test]
fn inputs_with_defaults_can_be_left_out() {
    let server = alone();
    let mut client = server.client();
    for shipped in Shipped::all() {
        let signature = shipped.model.signature();
        let mut inputs = shipped.draw(3, 1);
        for (spec, input) in signature.inputs.iter().zip(&mut inputs) {
            if let Some(default) = spec.default_row().unwrap() {
                *input = default.unsqueeze(0).unwrap();
            }
        }
        let mut request = as_json(signature, &inputs);
        let required = |name: &Value| signature.inputs.iter().any(|spec| *name == spec.name && spec.is_required());
        request["inputs"].as_array_mut().unwrap().retain(|input| required(&input["name"]));
        let reply = client.post(&shipped.path(), &request).ok();
        assert_eq!(outputs(signature, 1, &reply), shipped.expected(&inputs, 1), "{}", shipped.name);
    }
}

#[test]
fn outputs_are_chosen_one_by_one() {
    let server = alone();
    let mut client = server.client();
    let all = Shipped::all();
    let shipped = all.iter().find(|shipped| shipped.name == "policy-mlp").unwrap();
    let inputs = shipped.draw(5, 1);
    let mut request = as_json(shipped.model.signature(), &inputs);
    request["outputs"] = json!([{"name": "logits", "parameters": {"binary_data": true}}, {"name": "action"}]);
    let reply = client.post(&shipped.path(), &request).ok();
    let length: usize = reply.header("inference-header-content-length").unwrap().parse().unwrap();
    let head: Value = serde_json::from_slice(&reply.body[..length]).unwrap();
    let place = |name: &str| shipped.model.signature().outputs.iter().position(|spec| spec.name == name).unwrap();
    let expected = shipped.expected(&inputs, 1);
    assert_eq!(reply.body[length..], expected[place("logits")]);
    let action: Vec<u32> = serde_json::from_value(head["outputs"][1]["data"].clone()).unwrap();
    assert_eq!(bytemuck::cast_slice::<u32, u8>(&action), expected[place("action")]);
    assert_eq!(head["outputs"].as_array().unwrap().len(), 2);
}

/// The best places of each row of an output with two of them at most, as a client would find them itself.
fn two_best(values: &[f32], width: usize) -> Vec<String> {
    let best = |row: &[f32]| {
        let mut places: Vec<usize> = (0..width).collect();
        places.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        places.iter().take(2).map(|at| format!("{}:{at}", row[*at])).collect::<Vec<_>>()
    };
    values.chunks(width).flat_map(best).collect()
}

#[test]
fn classes_are_the_best_places_of_the_last_dimension() {
    let server = alone();
    let mut client = server.client();
    let shipped = Shipped::all().iter().find(|shipped| shipped.name == "policy-mlp").unwrap();
    let signature = shipped.model.signature();
    let width = *signature.outputs.iter().find(|spec| spec.name == "logits").unwrap().shape.last().unwrap();
    for rows in [1, ROWS] {
        let mut request = as_json(signature, &shipped.draw(5, rows));
        let mut ask = |outputs: Value| {
            request["outputs"] = outputs;
            client.post(&shipped.path(), &request).ok()
        };
        let classes = |count: u64, binary: bool| json!({"name": "logits", "parameters": {"classification": count, "binary_data": binary}});
        // 0 are none: these are the values themselves.
        let values = ask(json!([classes(0, true)]));
        let length: usize = values.header("inference-header-content-length").unwrap().parse().unwrap();
        let expected = two_best(&floats(&values.body[length..]), width);
        let reply = ask(json!([classes(2, false)])).json();
        let output = &reply["outputs"][0];
        assert_eq!((&output["datatype"], &output["shape"]), (&json!("BYTES"), &json!([rows, 2])));
        let found: Vec<String> = serde_json::from_value(output["data"].clone()).unwrap();
        // Where rows were together they may have been in batches of two sizes.
        let places = |texts: &[String]| texts.iter().map(|text| text.rsplit_once(':').unwrap().1.to_owned()).collect::<Vec<_>>();
        if rows == 1 {
            assert_eq!(found, expected)
        } else {
            assert_eq!(places(&found), places(&expected))
        }
        // The same behind the JSON, each text behind its length.
        let reply = ask(json!([classes(2, true)]));
        let length: usize = reply.header("inference-header-content-length").unwrap().parse().unwrap();
        let (head, mut tail) = reply.body.split_at(length);
        let head: Value = serde_json::from_slice(head).unwrap();
        assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], json!(tail.len()));
        let mut texts = Vec::new();
        while let Some((size, rest)) = tail.split_first_chunk::<4>() {
            let (text, rest) = rest.split_at(u32::from_le_bytes(*size) as usize);
            texts.push(String::from_utf8(text.to_vec()).unwrap());
            tail = rest;
        }
        assert_eq!(places(&texts), places(&expected));
        // More than there are is all of them.
        let reply = ask(json!([classes(u64::MAX, false)])).json();
        assert_eq!(reply["outputs"][0]["shape"], json!([rows, width]));
    }
}

#[test]
fn bodies_are_compressed_both_ways() {
    let server = alone();
    let mut client = server.client();
    let all = Shipped::all();
    let shipped = all.iter().find(|shipped| shipped.name == "policy-mamba").unwrap();
    let inputs = shipped.draw(5, 1);
    let (length, body) = as_binary(shipped.model.signature(), &inputs);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, &body).unwrap();
    let gzip = encoder.finish().unwrap();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, &body).unwrap();
    let deflate = encoder.finish().unwrap();
    for (encoding, body) in [("gzip", gzip), ("deflate", deflate)] {
        let length = length.to_string();
        let headers =
            [("Inference-Header-Content-Length", &*length), ("Content-Encoding", encoding), ("Accept-Encoding", "br, gzip;q=0.5")];
        let mut reply = client.call("POST", &shipped.path(), &headers, &body).ok();
        assert_eq!(reply.header("content-encoding"), Some("gzip"));
        let mut plain = Vec::new();
        GzDecoder::new(&reply.body[..]).read_to_end(&mut plain).unwrap();
        reply.body = plain;
        assert_eq!(outputs(shipped.model.signature(), 1, &reply), shipped.expected(&inputs, 1));
    }
}

#[test]
fn a_body_without_json_is_the_only_input() {
    let server = alone();
    let mut client = server.client();
    let all = Shipped::all();
    let required = |shipped: &Shipped| shipped.model.signature().inputs.iter().filter(|spec| spec.is_required()).count();
    let shipped = all.iter().find(|s| required(s) == 1 && s.model.signature().inputs.len() == 1).unwrap();
    let inputs = shipped.draw(9, 1);
    let headers = [("Inference-Header-Content-Length", "0")];
    let reply = client.call("POST", &shipped.path(), &headers, &bytes(&inputs[0])).ok();
    assert_eq!(outputs(shipped.model.signature(), 1, &reply), shipped.expected(&inputs, 1));
    let several = all.iter().find(|shipped| required(shipped) > 1).unwrap();
    let reply = client.call("POST", &several.path(), &headers, b"");
    assert_eq!(reply.status, 400);
    assert!(reply.error().starts_with("a body without JSON: expected a model that has to be given one input, found "), "{}", reply.error());
}
