//! Bundles that come, go and fail.

use crate::client::{Running, options, weights};
use crate::sum::{self, WAITS};
use serde_json::{Value, json};
use std::fs;

fn index(server: &Running) -> Value {
    server.client().post("/v2/repository/index", &json!({})).ok().json()
}

fn entry(name: &str, state: &str, reason: &str) -> Value {
    json!({"name": name, "version": "1", "state": state, "reason": reason})
}

fn infer(x: f32) -> Value {
    json!({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]})
}

#[test]
fn a_bundle_that_fails_is_reported_and_the_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "good", "good");
    for (name, config) in [("damaged", "{"), ("foreign", r#"{"family": "none", "format_version": 1, "model": {}}"#)] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("config.json"), config).unwrap();
    }
    sum::save(folder.path(), "a name", "good");
    // What is no bundle is none, and may have some below it.
    fs::create_dir_all(folder.path().join("notes/inner")).unwrap();
    sum::save(folder.path(), "notes/inner/deep", "good");
    fs::write(folder.path().join("config.txt"), "").unwrap();
    let server = Running::new(sum::options(folder.path()), sum::families());
    let mut client = server.client();
    client.get("/v2/health/ready").ok();
    let found = index(&server);
    let reason = |at: usize| found[at]["reason"].as_str().unwrap().to_owned();
    let names: Vec<&str> = found.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a name", "damaged", "foreign", "good", "notes.inner.deep"]);
    assert_eq!(reason(0), "expected a name of at most 128 letters, digits, '_', '-' and '.', found a name");
    assert!(reason(1).contains("config.json: EOF while parsing"), "{}", reason(1));
    assert!(reason(2).ends_with("muzero, sum], found none") || reason(2).ends_with("found none"), "{}", reason(2));
    assert_eq!(found[3], entry("good", "READY", ""));
    client.post("/v2/models/good/infer", &infer(1.0)).ok();
    let reply = client.post("/v2/models/damaged/infer", &infer(1.0));
    assert_eq!(reply.status, 503);
    assert!(reply.error().starts_with("model 'damaged' is not loaded: "), "{}", reply.error());
    assert_eq!(client.get("/v2/models/damaged/ready").status, 503);
    let ready = client.post("/v2/repository/index", &json!({"ready": true})).ok().json();
    assert_eq!(ready, json!([entry("good", "READY", ""), entry("notes.inner.deep", "READY", "")]));
}

#[test]
fn models_are_loaded_unloaded_and_loaded_anew() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "anew");
    let server = Running::new(sum::options(folder.path()), sum::families());
    let gate = sum::gate("anew");
    let mut client = server.client();
    // One that came later is there to be loaded.
    sum::save(folder.path(), "later", "anew");
    assert_eq!(index(&server), json!([entry("later", "UNAVAILABLE", "not loaded"), entry("m", "READY", "")]));
    assert_eq!(client.get("/v2/models/later/ready").status, 404);
    client.post("/v2/repository/models/later/load", &json!({})).ok();
    client.get("/v2/models/later/ready").ok();
    // A request that runs while its model goes is answered.
    let mut busy = server.client().patient();
    busy.send("POST", "/v2/models/m/infer", &[], infer(WAITS).to_string().as_bytes());
    gate.reached(1);
    client.post("/v2/repository/models/m/unload", &json!({"parameters": {"unload_dependents": false}})).ok();
    let reply = client.post("/v2/models/m/infer", &infer(1.0));
    assert_eq!((reply.status, reply.error()), (503, "model 'm' is not loaded: unloaded".to_owned()));
    gate.open();
    busy.receive().ok();
    assert_eq!(index(&server), json!([entry("later", "READY", ""), entry("m", "UNAVAILABLE", "unloaded")]));
    client.call("POST", "/v2/repository/models/m/load", &[], b"").ok();
    client.post("/v2/models/m/infer", &infer(1.0)).ok();
    // A bundle that has become worse leaves the old model where it was.
    fs::write(folder.path().join("m/config.json"), "{").unwrap();
    let reply = client.post("/v2/repository/models/m/load", &json!({}));
    assert_eq!(reply.status, 400);
    assert!(reply.error().starts_with("failed to load 'm': "), "{}", reply.error());
    client.post("/v2/models/m/infer", &infer(1.0)).ok();
    for name in ["none", "..", ".", "%2e%2e", "..%2fetc", "a%00b"] {
        let reply = client.post(&format!("/v2/repository/models/{name}/load"), &json!({}));
        assert_eq!((reply.status, reply.error()), (404, format!("unknown model: '{name}' is not found")), "{name}");
    }
    assert_eq!(client.post("/v2/repository/models/none/unload", &json!({})).status, 404);
    assert_eq!(index(&server).as_array().unwrap().len(), 2, "what is not there is not kept in mind");
}

#[test]
fn bundles_in_folders_of_folders_are_called_by_their_way() {
    let folder = tempfile::tempdir().unwrap();
    let save = |path: &str| {
        fs::create_dir_all(folder.path().join(path).parent().unwrap()).unwrap();
        sum::save(folder.path(), path, "folders");
    };
    ["seeds/a/one", "x.y", "x/y"].into_iter().for_each(save);
    let server = Running::new(sum::options(folder.path()), sum::families());
    let mut client = server.client();
    let twice = entry("x.y", "UNAVAILABLE", "two folders have this name, as a point stands for the way between folders: rename one");
    assert_eq!(index(&server), json!([entry("seeds.a.one", "READY", ""), twice]));
    client.post("/v2/models/seeds.a.one/infer", &infer(1.0)).ok();
    save("seeds/a/two");
    client.post("/v2/repository/models/seeds.a.two/load", &json!({})).ok();
    client.post("/v2/models/seeds.a.two/infer", &infer(1.0)).ok();
    for name in ["seeds", "seeds.a", "seeds%2fa%2fone", "a.one", "one"] {
        assert_eq!(client.post(&format!("/v2/repository/models/{name}/load"), &json!({})).status, 404, "{name}");
    }
    // Once one of the two is called otherwise, both can be served.
    fs::rename(folder.path().join("x.y"), folder.path().join("z")).unwrap();
    for name in ["x.y", "z"] {
        client.post(&format!("/v2/repository/models/{name}/load"), &json!({})).ok();
    }
}

#[test]
fn further_networks_of_a_bundle_are_models_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", sum::TWO);
    let server = Running::new(sum::options(folder.path()), sum::families());
    let mut client = server.client();
    assert_eq!(index(&server), json!([entry("m", "READY", ""), entry("m.other", "READY", "")]));
    assert_eq!(client.get("/v2/models/m.other").ok().json()["name"], json!("m.other"));
    let sum = |reply: crate::client::Reply| reply.ok().json()["outputs"][0]["data"][0].as_f64().unwrap();
    // Each has its own sequences, and is loaded alone or with its bundle.
    assert_eq!(sum(client.post("/v2/models/m/infer", &step(1.0, true))), 1.0);
    assert_eq!(sum(client.post("/v2/models/m.other/infer", &step(2.0, true))), 2.0);
    client.post("/v2/repository/models/m.other/load", &json!({})).ok();
    client.post("/v2/repository/models/m/load", &json!({})).ok();
    assert_eq!(sum(client.post("/v2/models/m/infer", &step(1.0, false))), 2.0);
    assert_eq!(sum(client.post("/v2/models/m.other/infer", &step(2.0, false))), 4.0);
    client.post("/v2/repository/models/m.other/unload", &json!({})).ok();
    assert_eq!(index(&server), json!([entry("m", "READY", ""), entry("m.other", "UNAVAILABLE", "unloaded")]));
    client.post("/v2/repository/models/m/load", &json!({})).ok();
    client.post("/v2/models/m.other/infer", &infer(1.0)).ok();
    client.post("/v2/repository/models/m/unload", &json!({})).ok();
    assert_eq!(client.get("/v2/models/m.other/ready").status, 503);
    client.post("/v2/repository/models/m/load", &json!({})).ok();
    // A bundle of the same name leaves everything as it was; one network fewer takes the model away.
    sum::save(folder.path(), "m.other", "other");
    let reply = client.post("/v2/repository/models/m/load", &json!({}));
    assert_eq!(reply.error(), "failed to load 'm': its network other would be called m.other, as another bundle is: rename one");
    client.post("/v2/models/m.other/infer", &infer(1.0)).ok();
    fs::remove_dir_all(folder.path().join("m.other")).unwrap();
    sum::save(folder.path(), "m", "one");
    client.post("/v2/repository/models/m/load", &json!({})).ok();
    assert_eq!(client.post("/v2/models/m.other/infer", &infer(1.0)).status, 404);
    assert_eq!(index(&server), json!([entry("m", "READY", "")]));
}

#[test]
fn a_model_makes_its_first_steps_before_it_is_served() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "first");
    sum::save(folder.path(), "worse", sum::PANICS);
    let server = Running::new(sum::options(folder.path()), sum::families());
    let mut client = server.client();
    let reason =
        |name: &str| format!("{name} failed in a first step, which is made before it is served: the model panicked: asked to panic");
    assert_eq!(index(&server), json!([entry("m", "READY", ""), entry("worse", "UNAVAILABLE", &reason("worse"))]));
    // They are no requests.
    for name in ["nv_inference_count", "nv_inference_exec_count", "candle_queue_seconds_count", "candle_execute_seconds_count"] {
        assert_eq!(client.metric(name, "m"), 0.0, "{name}");
    }
    assert_eq!(client.get("/v2/models/m/stats").ok().json()["model_stats"][0]["execution_count"], json!(0));
    // One that has become worse is not served in place of the one that works.
    client.post("/v2/models/m/infer", &step(1.0, true)).ok();
    sum::save(folder.path(), "m", sum::PANICS);
    let reply = client.post("/v2/repository/models/m/load", &json!({}));
    assert_eq!((reply.status, reply.error()), (400, format!("failed to load 'm': {}", reason("m"))));
    assert_eq!(client.post("/v2/models/m/infer", &step(1.0, false)).ok().json()["outputs"][0]["data"], json!([2.0]));
}

fn step(x: f32, start: bool) -> Value {
    let mut request = infer(x);
    request["parameters"] = json!({"sequence_id": 1, "sequence_start": start});
    request
}

#[test]
fn sequences_outlive_their_engine() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "outlive");
    let server = Running::new(sum::options(folder.path()), sum::families());
    let gate = sum::gate("outlive");
    let mut client = server.client();
    let path = "/v2/models/m/infer";
    client.post(path, &step(1.0, true)).ok();
    // One step runs and one waits while the model is loaded anew: both are made.
    let (mut first, mut second, mut load) = (server.client().patient(), server.client().patient(), server.client().patient());
    first.send("POST", path, &[], step(WAITS, false).to_string().as_bytes());
    gate.reached(1);
    second.send("POST", path, &[], step(4.0, false).to_string().as_bytes());
    client.wait_for("candle_sequence_requests_waiting", "m", 1.0);
    load.send("POST", "/v2/repository/models/m/load", &[], b"");
    // The new engine has made nothing yet: that is how one sees that it is there. It answers while the old one is held back.
    client.wait_for("nv_inference_count", "m", 0.0);
    client.post(path, &infer(1.0)).ok();
    gate.open();
    let sum = |reply: crate::client::Reply| reply.ok().json()["outputs"][0]["data"][0].as_f64().unwrap();
    assert_eq!(sum(first.receive()), f64::from(1.0 + WAITS));
    assert_eq!(sum(second.receive()), f64::from(5.0 + WAITS));
    load.receive().ok();
    assert_eq!(client.get("/v2/models/m/sequences/1").ok().json()["frames"], json!(3));
    assert_eq!(sum(client.post(path, &step(8.0, false))), f64::from(13.0 + WAITS));
    // Taken away, they are over.
    client.post("/v2/repository/models/m/unload", &json!({})).ok();
    client.post("/v2/repository/models/m/load", &json!({})).ok();
    assert_eq!(client.post(path, &step(1.0, false)).status, 400);
}

#[cfg(unix)]
#[test]
fn a_link_leads_nowhere_but_within_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("models"), folder.path().join("outside"));
    fs::create_dir_all(inside.join("..data")).unwrap();
    sum::save(&inside, "..data/real", "links");
    sum::save(folder.path(), "outside", "links");
    // As volumes of Kubernetes have them.
    std::os::unix::fs::symlink("..data/real", inside.join("mounted")).unwrap();
    std::os::unix::fs::symlink(&outside, inside.join("escape")).unwrap();
    let server = Running::new(sum::options(&inside), sum::families());
    let escape = entry("escape", "UNAVAILABLE", "its folder is a link out of the repository");
    assert_eq!(index(&server), json!([escape, entry("mounted", "READY", "")]));
}

#[test]
fn a_single_bundle_is_served_under_the_name_that_it_is_given() {
    let mut own = options(weights().join("policy-mlp"));
    let server = Running::new(own.clone(), sum::families());
    assert_eq!(index(&server), json!([entry("policy-mlp", "READY", "")]));
    own.model_name = Some("agent".to_owned());
    let server = Running::new(own, sum::families());
    assert_eq!(index(&server), json!([entry("agent", "READY", "")]));
    assert_eq!(server.client().get("/v2/models/policy-mlp").status, 404);
}
