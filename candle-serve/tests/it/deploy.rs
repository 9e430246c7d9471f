//! The files in `deploy`, against the program and the server that they are about.

use crate::client::SHIPPED;
use candle_serve::{Arguments, command};
use clap::Parser;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// Every document of every YAML and JSON file, with the file's name.
fn documents() -> Vec<(String, Value)> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut documents = Vec::new();
    for name in names {
        let found: Vec<Value> = match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("yaml" | "yml") => serde_saphyr::from_multiple(&text(&name)).unwrap_or_else(|e| panic!("{name}: {e}")),
            Some("json") => vec![serde_json::from_str(&text(&name)).unwrap_or_else(|e| panic!("{name}: {e}"))],
            _ => continue,
        };
        assert!(!found.is_empty() && found.iter().all(Value::is_object), "{name}");
        documents.extend(found.into_iter().map(|document| (name.clone(), document)));
    }
    documents
}

/// Every object in a document.
fn objects<'a>(value: &'a Value, found: &mut Vec<&'a Map<String, Value>>) {
    match value {
        Value::Object(object) => {
            found.push(object);
            object.values().for_each(|value| objects(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| objects(value, found)),
        _ => {}
    }
}

/// What some objects of some files have, which there have to be: `count` of them at least.
fn all<T>(count: usize, of: impl Fn(&Map<String, Value>) -> Vec<T>) -> Vec<(String, T)> {
    let mut all = Vec::new();
    for (name, document) in documents() {
        let mut found = Vec::new();
        objects(&document, &mut found);
        all.extend(found.into_iter().flat_map(&of).map(|value| (name.clone(), value)));
    }
    assert!(all.len() >= count, "only {} are left", all.len());
    all
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn accepted(name: &str, arguments: Vec<String>) {
    if let Err(error) = Arguments::try_parse_from(std::iter::once("candle-serve".to_owned()).chain(arguments)) {
        panic!("{name}: {error}");
    }
}

#[test]
fn every_command_line_is_one_of_the_program() {
    let containers = all(2, |object| match (object.get("image"), object.get("args")) {
        (Some(image), Some(arguments)) if image == "candle-serve" => vec![texts(arguments)],
        _ => Vec::new(),
    });
    for (name, arguments) in containers {
        accepted(
            &name,
            arguments.into_iter().map(|argument| argument.replace("{{.Name}}", "policy-mamba").replace("$(REDIS_PASSWORD)", "x")).collect(),
        );
    }
    let docker = text("Dockerfile");
    let line = |start: &str| texts(&serde_json::from_str(docker.lines().find_map(|line| line.strip_prefix(start)).unwrap()).unwrap());
    assert_eq!(line("ENTRYPOINT "), ["candle-serve"]);
    accepted("Dockerfile", line("CMD "));
    // Those that are put together at run time, by their names.
    let script = text("ray_serve.py");
    let flags: BTreeSet<&str> = script.split('"').filter_map(|part| part.strip_prefix("--")).collect();
    assert!(flags.len() >= 4, "{flags:?}");
    let command = command();
    for flag in flags {
        assert!(command.get_arguments().any(|argument| argument.get_long() == Some(flag)), "ray_serve.py: --{flag}");
    }
}

#[test]
fn every_page_that_is_asked_for_is_one_of_the_server() {
    let is_page = |name: &str| name == "path" || name == "metrics_path" || name.ends_with("/path");
    let pages = all(9, |object| {
        let pages = object.iter().filter(|(name, _)| is_page(name));
        pages.map(|(_, page)| page.as_str().unwrap().to_owned()).collect()
    });
    for (name, page) in pages {
        let status = SHIPPED.client().get(&page).status;
        assert_eq!(status, 200, "{name}: {page}");
    }
}

/// Names of metrics and their labels, as a server has them that has been asked something.
fn exported() -> (BTreeSet<String>, BTreeSet<String>) {
    let mut client = SHIPPED.client();
    let input = json!({"name": "state", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]});
    client.post("/v2/models/cartpole/infer", &json!({"inputs": [input]})).ok();
    let metrics = String::from_utf8(client.get("/metrics").ok().body).unwrap();
    let mut names = BTreeSet::new();
    for line in metrics.lines() {
        match line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            Some((name, "histogram")) => names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}"))),
            Some((name, _)) => drop(names.insert(name.to_owned())),
            None => {}
        }
    }
    let parts = metrics.lines().filter(|line| !line.starts_with('#')).flat_map(|line| line.split(['{', ',']).skip(1));
    let labels = parts.filter_map(|part| part.split_once('=').map(|(name, _)| name.to_owned()));
    // What Prometheus adds itself.
    (names, labels.chain(["instance", "job"].map(str::to_owned)).collect())
}

/// The labels that an expression chooses and groups by.
fn labels(expression: &str) -> Vec<String> {
    let between = |open: &str, close: char| {
        let parts = expression.split(open).skip(1);
        parts.map(|part| part.split(close).next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let chosen = between("{", '}').into_iter().flat_map(|part| {
        let names = part.split(',').map(|label| label.split(['=', '!']).next().unwrap().trim().to_owned());
        names.collect::<Vec<_>>()
    });
    let grouped = between("by (", ')').into_iter().flat_map(|part| part.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>());
    chosen.chain(grouped).collect()
}

#[test]
fn every_metric_of_a_rule_or_a_chart_is_exported() {
    let (names, known) = exported();
    let expressions = all(20, |object| object.get("expr").map(|text| text.as_str().unwrap().to_owned()).into_iter().collect());
    let mut used = BTreeSet::new();
    for (name, expression) in &expressions {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metrics: Vec<&str> = words.filter(|word| word.starts_with("nv_") || word.starts_with("candle_")).collect();
        assert!(!metrics.is_empty() || expression.starts_with("up{"), "{name}: {expression}");
        for metric in &metrics {
            assert!(names.contains(*metric), "{name}: {metric} is not exported");
        }
        for label in labels(expression) {
            assert!(known.contains(&label), "{name}: no metric has the label {label}: {expression}");
        }
        used.extend(metrics.into_iter().map(str::to_owned));
    }
    // What a chart's list of choices is made of.
    for (name, query) in all(2, |object| object.get("query").and_then(Value::as_str).map(str::to_owned).into_iter().collect()) {
        if let Some((metric, _)) = query.strip_prefix("label_values(").and_then(|query| query.split_once(',')) {
            assert!(names.contains(metric), "{name}: {query}");
        }
    }
    assert!(used.len() >= 15, "{used:?}");
}

#[test]
fn what_kubernetes_is_given_names_itself_and_ports_that_are_there() {
    let mut kinds = BTreeSet::new();
    for (name, document) in documents() {
        if !["gateway.yaml", "istio.yaml", "kserve.yaml", "kubernetes.yaml"].contains(&&*name) {
            continue;
        }
        for field in ["/apiVersion", "/kind", "/metadata/name"] {
            assert!(document.pointer(field).is_some_and(Value::is_string), "{name}: no {field}");
        }
        kinds.insert(document["kind"].as_str().unwrap().to_owned());
        let mut found = Vec::new();
        objects(&document, &mut found);
        let ports: Vec<&Value> = found.iter().flat_map(|object| [object.get("name"), object.get("containerPort")]).flatten().collect();
        for probe in found.iter().filter_map(|object| object.get("httpGet")) {
            assert!(ports.contains(&&probe["port"]), "{name}: no port {}", probe["port"]);
        }
    }
    let expected = ["ClusterServingRuntime", "Deployment", "DestinationRule", "HTTPRoute", "PodDisruptionBudget", "Service"];
    assert!(expected.iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
}

#[test]
fn the_deployment_of_ray_is_python() {
    let python = std::env::var_os("CANDLE_PYTHON").unwrap_or_else(|| "python3".into());
    let script = ["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"];
    match Command::new(&python).args(script).arg(folder().join("ray_serve.py")).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            assert!(std::env::var_os("CANDLE_REQUIRE_TRITONCLIENT").is_none(), "{error}");
            eprintln!("skipped: there is no Python: {error}");
        }
    }
}
