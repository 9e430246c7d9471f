"""Every method of tritonclient.http that the server has, against a server of the shipped bundles at the address that is given."""

import json
import os
import sys
import urllib.request

import numpy
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, shared_memory

client = http.InferenceServerClient(url=sys.argv[1], concurrency=4)
MODEL = "policy-mamba"


def tensors(frame, binary=True, rows=1):
    """The inputs of a frame."""
    random = numpy.random.default_rng(frame)
    features = http.InferInput("features", [rows, 288], "FP32")
    features.set_data_from_numpy(random.normal(size=(rows, 288)).astype(numpy.float32), binary_data=binary)
    ids = http.InferInput("ids", [rows, 6], "UINT32")
    ids.set_data_from_numpy(numpy.full((rows, 6), 14, numpy.uint32), binary_data=binary)
    return [features, ids]


def refused(message, call, *arguments, **options):
    """The call fails with that message."""
    try:
        call(*arguments, **options)
    except InferenceServerException as error:
        assert message in error.message(), error
    else:
        raise AssertionError(f"expected: {message}")


def same(a, b, exact=True):
    """Two answers are equal, to the bit if every row was alone in its batch."""
    names = [output["name"] for output in a.get_response()["outputs"]]
    assert names == [output["name"] for output in b.get_response()["outputs"]]
    for name in names:
        assert a.as_numpy(name).dtype == b.as_numpy(name).dtype
        if exact:
            numpy.testing.assert_array_equal(a.as_numpy(name), b.as_numpy(name))
        else:
            numpy.testing.assert_allclose(a.as_numpy(name), b.as_numpy(name), rtol=1e-4, atol=1e-4)


# The server and its models.
assert client.is_server_live() and client.is_server_ready()
assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
assert not client.is_model_ready("none")
server = client.get_server_metadata()
assert server["name"] == "candle-serve" and "binary_tensor_data" in server["extensions"]
metadata = client.get_model_metadata(MODEL, "1")
assert metadata["inputs"][0] == {"name": "features", "datatype": "FP32", "shape": [-1, 288]}, metadata
config = client.get_model_config(MODEL)
assert config["max_batch_size"] == 32 and "sequence_batching" in config

# Answers: binary, JSON, compressed, chosen, without waiting.
binary = client.infer(MODEL, tensors(1), request_id="a request")
assert binary.get_response()["id"] == "a request"
outputs = [output["name"] for output in metadata["outputs"]]
as_json = [http.InferRequestedOutput(name, binary_data=False) for name in outputs]
same(binary, client.infer(MODEL, tensors(1, binary=False), outputs=as_json))
for algorithm in ["gzip", "deflate"]:
    options = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    same(binary, client.infer(MODEL, tensors(1), **options))
logits = client.infer(MODEL, tensors(1), outputs=[http.InferRequestedOutput("logits")])
numpy.testing.assert_array_equal(logits.as_numpy("logits"), binary.as_numpy("logits"))
assert logits.as_numpy("action") is None
for binary_data in [True, False]:
    classes = client.infer(MODEL, tensors(1), outputs=[http.InferRequestedOutput("logits", binary_data, class_count=3)])
    texts = [text.decode() if isinstance(text, bytes) else text for text in classes.as_numpy("logits").ravel()]
    places = numpy.argsort(-binary.as_numpy("logits").ravel(), kind="stable")[:3]
    assert [int(text.split(":")[1]) for text in texts] == places.tolist(), texts
    assert [numpy.float32(text.split(":")[0]) for text in texts] == binary.as_numpy("logits").ravel()[places].tolist(), texts

# A body that another client sends.
body, length = http.InferenceServerClient.generate_request_body(tensors(1))
headers = {"Inference-Header-Content-Length": str(length)} if length else {}
request = urllib.request.Request(f"http://{sys.argv[1]}/v2/models/{MODEL}/infer", data=bytes(body), headers=headers)
with urllib.request.urlopen(request, timeout=120) as response:
    length = int(response.headers["Inference-Header-Content-Length"])
    same(binary, http.InferenceServerClient.parse_response_body(response.read(), header_length=length))

rows = client.infer(MODEL, tensors(1, rows=3))
assert rows.as_numpy("logits").shape[0] == 3
for pending in [client.async_infer(MODEL, tensors(1, rows=3)) for _ in range(8)]:
    same(rows, pending.get_result(), exact=False)

# Inputs and outputs in shared memory.
key = f"candle-serve-python-{os.getpid()}"
written = None
memory = shared_memory.create_shared_memory_region("both", f"/{key}", 65536)
try:
    random = numpy.random.default_rng(1)
    features = random.normal(size=(1, 288)).astype(numpy.float32)
    shared_memory.set_shared_memory_region(memory, [features, numpy.full((1, 6), 14, numpy.uint32)])
    client.register_system_shared_memory("both", f"/{key}", 65536)
    assert client.get_system_shared_memory_status() == [{"name": "both", "key": f"/{key}", "offset": 0, "byte_size": 65536}]
    shared = tensors(1)
    shared[0].set_shared_memory("both", 1152)
    shared[1].set_shared_memory("both", 24, offset=1152)
    wanted = http.InferRequestedOutput("logits")
    wanted.set_shared_memory("both", 16384, offset=4096)
    answer = client.infer(MODEL, shared, outputs=[wanted])
    shape = answer.get_output("logits")["shape"]
    written = shared_memory.get_contents_as_numpy(memory, numpy.float32, shape, offset=4096)
    numpy.testing.assert_array_equal(written, binary.as_numpy("logits"))
    client.unregister_system_shared_memory("both")
    client.unregister_system_shared_memory()
    assert client.get_system_shared_memory_status() == []
    refused("there is no shared memory region 'both'", client.infer, MODEL, shared)
finally:
    # A view of the memory keeps it open.
    del written
    shared_memory.destroy_shared_memory_region(memory)
assert client.get_cuda_shared_memory_status() == []
refused("shared memory on a GPU is not supported", client.register_cuda_shared_memory, "gpu", b"", 0, 4)
refused("shared memory on a GPU is not supported", client.unregister_cuda_shared_memory, "gpu")

# Sequences: two side by side, by number and by name, are the same as each alone.
def run(name, frames=4):
    """The answers to the frames of a sequence."""
    answers = []
    for frame in range(frames):
        marks = {"sequence_id": name, "sequence_start": frame == 0, "sequence_end": frame == frames - 1}
        answers.append(client.infer(MODEL, tensors(frame), **marks))
    return answers


first = run(7001)
for a, b in zip(first, run("python")):
    same(a, b)
fresh = client.infer(MODEL, tensors(3))
assert not numpy.array_equal(first[3].as_numpy("logits"), fresh.as_numpy("logits")), "it does not remember"
refused("must specify the START flag", client.infer, MODEL, tensors(0), sequence_id=7001)

# Faults.
refused("unknown model: 'none' is not found", client.infer, "none", tensors(0))
refused("tensor ids: expected UINT32 [-1, 6]", client.infer, MODEL, tensors(0)[:1])
refused("the deadline was over", client.infer, MODEL, tensors(0), sequence_id=7002, sequence_start=True, timeout=1)

# The repository and statistics.
index = client.get_model_repository_index()
assert {"name": "beam-c3", "version": "1", "state": "READY", "reason": ""} in index
client.unload_model("classifier-coherent")
assert not client.is_model_ready("classifier-coherent")
client.load_model("classifier-coherent")
assert client.is_model_ready("classifier-coherent")
refused("the parameter config of a load is not supported", client.load_model, MODEL, config="{}")
[statistics] = client.get_inference_statistics(MODEL)["model_stats"]
assert statistics["inference_stats"]["success"]["count"] >= 20 and statistics["inference_stats"]["success"]["ns"] > 0
assert statistics["inference_count"] >= statistics["execution_count"] > 0
assert len(client.get_inference_statistics()["model_stats"]) == len(index)

# The log.
before = client.get_log_settings()
assert before["log_info"] is True and before["log_verbose_level"] == 0, before
assert client.update_log_settings({"log_verbose_level": 2, "log_info": False})["log_info"] is False
assert client.update_log_settings(before) == before == client.get_log_settings()
refused("which is set where the server is started", client.update_log_settings, {"log_file": "/tmp/log"})

# Traces.
assert client.get_trace_settings()["trace_level"] == ["OFF"]
changed = client.update_trace_settings(MODEL, {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1", "trace_count": "2"})
assert changed["trace_level"] == ["TIMESTAMPS", "TENSORS"] and changed == client.get_trace_settings(MODEL)
assert client.get_trace_settings()["trace_level"] == ["OFF"]
for count in [1, 0, 0]:
    client.infer(MODEL, tensors(0), request_id="traced")
    assert client.get_trace_settings(MODEL)["trace_count"] == str(count)
with open(changed["trace_file"], encoding="utf-8") as file:
    lines = [json.loads(line) for line in file]
assert [line["request_id"] for line in lines if "request_id" in line] == ["traced"] * 2
assert {line["activity"] for line in lines if "activity" in line} == {"TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"}
cleared = dict.fromkeys(["trace_level", "trace_rate", "trace_count"])
assert client.update_trace_settings(MODEL, cleared) == client.get_trace_settings()
client.close()
