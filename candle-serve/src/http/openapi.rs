//! The pages of the server as an OpenAPI document, and as a page for people.

use super::pages::PAGES;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A page as it is described.
pub(super) struct Page {
    /// Its path, with parameters in braces.
    pub path: &'static str,
    /// What each of its methods does.
    pub methods: &'static [Operation],
}

/// What a method of a page does.
pub(super) struct Operation {
    pub method: &'static str,
    pub summary: &'static str,
    pub body: Content,
    pub answer: Content,
}

/// What a body holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    /// JSON of that schema.
    Json(&'static str),
    /// The same, or its JSON with binary tensors behind it.
    Inference(&'static str),
    Text,
    Html,
    Bytes,
}

impl Content {
    fn describe(self) -> Value {
        let json = |name: &str| json!({"schema": reference(name)});
        match self {
            Self::Nothing => json!({}),
            Self::Json(name) => json!({"application/json": json(name)}),
            Self::Inference(name) => json!({"application/json": json(name), "application/octet-stream": {}}),
            Self::Text => json!({"text/plain": {"schema": {"type": "string"}}}),
            Self::Html => json!({"text/html": {"schema": {"type": "string"}}}),
            Self::Bytes => json!({"application/octet-stream": {}}),
        }
    }

    fn schema(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Json(name) | Self::Inference(name) => name,
            Self::Text => "text",
            Self::Html => "HTML",
            Self::Bytes => "bytes",
        }
    }
}

/// Names in braces.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn operation(path: &str, operation: &Operation) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let mut parameters: Vec<Value> = parameters(path).map(parameter).collect();
    if let Content::Inference(_) = operation.body {
        let header = |name: &str, kind: &str, description: &str| json!({"name": name, "in": "header", "schema": {"type": kind}, "description": description});
        let length = "Length of the JSON, where binary tensors follow behind it; 0 is a body that is the one input.";
        parameters.push(header("Inference-Header-Content-Length", "integer", length));
        parameters.push(header("x-sequence-id", "string", "The sequence, in place of the parameter sequence_id."));
    }
    let mut responses = json!({"default": {"$ref": "#/components/responses/Error"}});
    responses["200"] = json!({"description": operation.summary});
    if operation.answer != Content::Nothing {
        responses["200"]["content"] = operation.answer.describe();
    }
    let mut described = json!({"summary": operation.summary, "parameters": parameters, "responses": responses});
    if operation.body != Content::Nothing {
        described["requestBody"] = json!({"content": operation.body.describe()});
    }
    described
}

/// The document.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    for page in &PAGES {
        let operations = page.methods.iter().map(|found| (found.method.to_ascii_lowercase(), operation(page.path, found)));
        paths.insert(page.path.to_owned(), Value::Object(operations.collect()));
    }
    let error = json!({"description": "The request was not answered.", "content": Content::Json("Error").describe()});
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": env!("CARGO_PKG_NAME"),
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The Open Inference Protocol v2 and the extensions that GET /v2 names. Behind a model's name /versions/1 can stand.",
            "license": {"name": env!("CARGO_PKG_LICENSE"), "identifier": env!("CARGO_PKG_LICENSE")},
        },
        "paths": paths,
        "components": {"schemas": schemas(), "responses": {"Error": error}},
    })
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A number from 0.
fn natural() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

/// A sequence's id.
fn id() -> Value {
    json!({"type": ["integer", "string"], "description": "A number from 1, or a text of at most 128 bytes."})
}

/// Parameters of a tensor: where it is, and one or two more.
fn place(more: Value) -> Value {
    let mut all = json!({"shared_memory_region": text(), "shared_memory_byte_size": natural(), "shared_memory_offset": natural()});
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    object(&[], all)
}

/// Of a request for an inference and of its answer.
fn inference() -> [Value; 2] {
    let tensor = json!({
        "name": text(),
        "shape": list(natural()),
        "datatype": reference("Datatype"),
        "parameters": place(json!({"binary_data_size": natural()})),
        "data": {"type": "array", "description": "Flat or nested, in row-major order."},
    });
    let tensors = list(object(&["name", "shape", "datatype"], tensor));
    let output = json!({"name": text(), "parameters": place(json!({"binary_data": flag(), "classification": natural()}))});
    let parameters = json!({
        "sequence_id": id(),
        "sequence_start": flag(),
        "sequence_end": flag(),
        "binary_data_output": flag(),
        "timeout": {"type": "integer", "minimum": 0, "description": "Microseconds in which the step has to begin."},
    });
    let outputs = list(object(&["name"], output));
    let request = json!({"id": text(), "parameters": object(&[], parameters), "inputs": tensors, "outputs": outputs});
    let answer = json!({"model_name": text(), "model_version": text(), "id": text(), "outputs": tensors});
    [object(&["inputs"], request), object(&["model_name", "outputs"], answer)]
}

fn schemas() -> Value {
    let texts = || list(text());
    let tensor = json!({"name": text(), "datatype": reference("Datatype"), "shape": list(json!({"type": "integer"}))});
    let tensors = list(object(&["name", "datatype", "shape"], tensor));
    let metadata = json!({"name": text(), "versions": texts(), "platform": text(), "inputs": tensors, "outputs": tensors});
    let config = json!({"name": text(), "platform": text(), "backend": text(), "max_batch_size": natural(), "input": {"type": "array"},
        "output": {"type": "array"}, "sequence_batching": {"type": "object"}, "parameters": {"type": "object"}});
    let state = json!({"type": "string", "enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]});
    let entry = json!({"name": text(), "version": text(), "state": state, "reason": text()});
    let sequence = json!({"model_name": text(), "sequence_id": text(), "frames": natural(), "waiting": natural(), "idle_ms": natural()});
    let region = json!({"name": text(), "key": text(), "offset": natural(), "byte_size": natural()});
    let registration = json!({"key": text(), "offset": natural(), "byte_size": natural()});
    let datatypes =
        ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"];
    let [request, answer] = inference();
    json!({
        "Document": {"type": "object"},
        "Error": object(&["error"], json!({"error": text()})),
        "Datatype": {"type": "string", "enum": datatypes},
        "ServerMetadata": object(&["name", "version", "extensions"], json!({"name": text(), "version": text(), "extensions": texts()})),
        "ModelMetadata": object(&["name", "versions", "platform", "inputs", "outputs"], metadata),
        "ModelConfig": object(&["name", "max_batch_size"], config),
        "Statistics": object(&["model_stats"], json!({"model_stats": list(json!({"type": "object"}))})),
        "InferRequest": request,
        "InferResponse": answer,
        "IndexRequest": object(&[], json!({"ready": flag()})),
        "Index": list(object(&["name", "version", "state", "reason"], entry)),
        "RepositoryRequest": object(&[], json!({"parameters": {"type": "object"}})),
        "Sequence": object(&["model_name", "sequence_id", "frames", "waiting", "idle_ms"], sequence),
        "Fork": object(&["sequence_id"], json!({"sequence_id": id()})),
        "Regions": list(object(&["name", "key", "offset", "byte_size"], region)),
        "Registration": object(&["key", "byte_size"], registration),
        "LogSettings": log_settings(),
        "TraceSettings": trace_settings(),
    })
}

fn log_settings() -> Value {
    let flag = json!({"type": ["boolean", "null"]});
    let level = json!({"type": ["integer", "null"], "minimum": 0, "maximum": u32::MAX});
    let settings = json!({"log_file": {"enum": ["", null]}, "log_info": flag, "log_warning": flag, "log_error": flag,
        "log_verbose_level": level, "log_format": {"type": ["string", "null"]}});
    closed(settings)
}

/// A setting is a text or a list of one, a number also as such; null is as it was.
fn trace_settings() -> Value {
    let one = |text: Value| json!({"anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": 1}, {"type": "null"}]});
    let number = |least: i64, pattern: &str| {
        let mut setting = one(json!({"type": "string", "pattern": pattern}));
        if let Some(forms) = setting["anyOf"].as_array_mut() {
            forms.push(json!({"type": "integer", "minimum": least, "maximum": i64::MAX}));
        }
        setting
    };
    let levels = json!({"type": "array", "items": {"enum": ["TIMESTAMPS", "TENSORS"]}, "minItems": 1});
    let level = json!({"anyOf": [{"enum": ["OFF", "TIMESTAMPS", "TENSORS", null]}, {"enum": [["OFF"]]}, levels]});
    let natural = || number(0, "^[0-9]{1,19}$");
    closed(json!({"trace_file": one(text()), "trace_level": level, "trace_rate": natural(),
        "trace_count": number(-1, "^(-1|[0-9]{1,19})$"), "log_frequency": natural()}))
}

/// An object that has nothing else.
fn closed(properties: Value) -> Value {
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// The same for people, without a script and without anything of another place.
pub(super) fn page() -> String {
    let mut rows = String::new();
    for page in &PAGES {
        for Operation { method, summary, body, answer } in page.methods {
            let link = |content: &Content| match content {
                Content::Json(name) | Content::Inference(name) => format!("<a href=\"#{name}\">{name}</a>"),
                other => other.schema().to_owned(),
            };
            // A text takes whatever is written to it.
            let _ = writeln!(
                rows,
                "<tr><td>{method}</td><td><code>{}</code></td><td>{summary}</td><td>{}</td><td>{}</td></tr>",
                page.path,
                link(body),
                link(answer)
            );
        }
    }
    let mut parts = String::new();
    for (name, schema) in schemas().as_object().into_iter().flatten() {
        let text = serde_json::to_string_pretty(schema).unwrap_or_default();
        let _ = writeln!(parts, "<h3 id=\"{name}\">{name}</h3>\n<pre>{}</pre>", text.replace('&', "&amp;").replace('<', "&lt;"));
    }
    let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <style>body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color-scheme: light dark }}\n\
         td, th {{ text-align: left; padding: .2em 1em .2em 0; vertical-align: top }} pre {{ overflow: auto }}</style></head>\n\
         <body><h1>{name} {version}</h1>\n<p>The Open Inference Protocol v2; for programs as <a href=\"docs/openapi.json\">OpenAPI 3.1</a>.</p>\n\
         <table><tr><th>method</th><th>path</th><th></th><th>body</th><th>answer</th></tr>\n{rows}</table>\n<h2>Schemas</h2>\n{parts}</body></html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::route::Route;

    #[test]
    fn every_page_is_described_and_every_description_is_of_a_page() {
        let document = document();
        let paths = document["paths"].as_object().expect("paths");
        let example = |path: &String| parameters(path).fold(path.clone(), |path, name| path.replace(&format!("{{{name}}}"), "1"));
        let examples: Vec<String> = paths.keys().map(example).collect();
        let mut found = std::collections::HashSet::new();
        for ((path, operations), example) in paths.iter().zip(&examples) {
            let route = Route::of(example).unwrap_or_else(|fault| panic!("{path}: {fault}"));
            let methods: Vec<String> = route.methods().iter().map(|method| method.as_str().to_ascii_lowercase()).collect();
            let mut described: Vec<&String> = operations.as_object().expect("operations").keys().collect();
            described.sort();
            let mut methods: Vec<&String> = methods.iter().collect();
            methods.sort();
            assert_eq!(described, methods, "{path}");
            found.insert(std::mem::discriminant(&route));
        }
        // As many as the source has: a page that is added has to be described.
        let (_, source) = include_str!("route.rs").split_once("pub(super) enum Route<'a> {").expect("the pages");
        let variants = source.lines().take_while(|line| *line != "}").filter(|line| line.trim_start().starts_with(char::is_uppercase));
        assert_eq!(found.len(), variants.count(), "a page is not described");
    }

    #[test]
    fn every_schema_that_is_spoken_of_is_there_and_none_else() {
        let document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        for name in schemas.keys() {
            assert!(text.contains(&format!("\"#/components/schemas/{name}\"")), "nothing speaks of {name}");
        }
        for reference in text.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().expect("a name");
            assert!(schemas.contains_key(name), "there is no {name}");
        }
    }
}
