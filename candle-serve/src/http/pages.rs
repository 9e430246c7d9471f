//! Every page of the server with what it takes and answers, for its description.

use super::openapi::Content::{self, Bytes, Html, Inference, Json, Nothing, Text};
use super::openapi::{Operation, Page};

const fn get(summary: &'static str, answer: Content) -> Operation {
    Operation { method: "GET", summary, body: Nothing, answer }
}

const fn post(summary: &'static str, body: Content, answer: Content) -> Operation {
    Operation { method: "POST", summary, body, answer }
}

const fn page(path: &'static str, methods: &'static [Operation]) -> Page {
    Page { path, methods }
}

/// Every page. Behind a model's name `/versions/1` can stand.
pub(super) const PAGES: [Page; 27] = [
    page("/v2", &[get("The server and the extensions of the protocol that it has", Json("ServerMetadata"))]),
    page("/v2/health/live", &[get("Whether the server is alive", Nothing)]),
    page("/v2/health/ready", &[get("Whether it takes requests: 503 before its models are loaded and when it is about to end", Nothing)]),
    page("/metrics", &[get("Counters in Prometheus' text format", Text)]),
    page("/v2/docs", &[get("This description, for people", Html)]),
    page("/v2/docs/openapi.json", &[get("This description", Json("Document"))]),
    page("/v2/models/{model}", &[get("Inputs and outputs of a model", Json("ModelMetadata"))]),
    page("/v2/models/{model}/ready", &[get("Whether a model is served", Nothing)]),
    page("/v2/models/{model}/config", &[get("What a model's inputs mean, and how it is served", Json("ModelConfig"))]),
    page("/v2/models/{model}/stats", &[get("What a model has been asked, and where the time went", Json("Statistics"))]),
    page("/v2/models/stats", &[get("The same of all models", Json("Statistics"))]),
    page("/v2/models/{model}/infer", &[post("Steps a model", Inference("InferRequest"), Inference("InferResponse"))]),
    page(
        "/v2/models/{model}/sequences/{sequence}",
        &[
            get("What a sequence is at", Json("Sequence")),
            Operation { method: "DELETE", summary: "Ends a sequence", body: Nothing, answer: Nothing },
        ],
    ),
    page(
        "/v2/models/{model}/sequences/{sequence}/state",
        &[
            get("The state of a sequence, as a safetensors file", Bytes),
            Operation {
                method: "PUT",
                summary: "Goes on from a state, in a sequence that is there or a new one",
                body: Bytes,
                answer: Nothing,
            },
        ],
    ),
    page("/v2/models/{model}/sequences/{sequence}/fork", &[post("Makes a second sequence with the same state", Json("Fork"), Nothing)]),
    page(
        "/v2/models/{model}/trace/setting",
        &[
            get("Which requests to a model are traced", Json("TraceSettings")),
            post("Changes that: null is as for all models", Json("TraceSettings"), Json("TraceSettings")),
        ],
    ),
    page(
        "/v2/trace/setting",
        &[
            get("Which requests are traced", Json("TraceSettings")),
            post("Changes that: null is as at the start", Json("TraceSettings"), Json("TraceSettings")),
        ],
    ),
    page("/v2/logging", &[get("What is logged", Json("LogSettings")), post("Changes that", Json("LogSettings"), Json("LogSettings"))]),
    page("/v2/repository/index", &[post("Every model with its state", Json("IndexRequest"), Json("Index"))]),
    page("/v2/repository/models/{model}/load", &[post("Loads a model, or loads it anew", Json("RepositoryRequest"), Nothing)]),
    page("/v2/repository/models/{model}/unload", &[post("Takes a model away", Json("RepositoryRequest"), Nothing)]),
    page("/v2/systemsharedmemory/status", &[get("The regions of shared memory", Json("Regions"))]),
    page("/v2/systemsharedmemory/region/{region}/status", &[get("A region of shared memory", Json("Regions"))]),
    page(
        "/v2/systemsharedmemory/region/{region}/register",
        &[post("Gives a part of a shared memory object a name", Json("Registration"), Nothing)],
    ),
    page("/v2/systemsharedmemory/region/{region}/unregister", &[post("Forgets a region", Nothing, Nothing)]),
    page("/v2/systemsharedmemory/unregister", &[post("Forgets all regions", Nothing, Nothing)]),
    page("/v2/cudasharedmemory/status", &[get("Regions of memory on a GPU: none", Json("Regions"))]),
];
