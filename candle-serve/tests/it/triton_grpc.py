"""Every method of tritonclient.grpc that the server has, against a server of the shipped bundles at the address that is given; and the
declarations of that client beside ours, which lie in the file that is given."""

import os
import queue
import sys

import grpc as grpcio
import numpy
import tritonclient.grpc as grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException, shared_memory

client = grpc.InferenceServerClient(url=sys.argv[1])
MODEL = "policy-mamba"


def declared(files):
    """Fields and methods by their full names, of files of declarations."""
    fields, methods = {}, {}

    def message(prefix, declaration):
        name = f"{prefix}.{declaration.name}"
        for field in declaration.field:
            fields[f"{name}.{field.name}"] = (field.number, field.type, field.label, field.type_name)
        for nested in declaration.nested_type:
            message(name, nested)

    for file in files:
        assert file.package == "inference"
        for declaration in file.message_type:
            message("", declaration)
        for enum in file.enum_type:
            fields.update({f"{enum.name}.{value.name}": value.number for value in enum.value})
        for service in file.service:
            for method in service.method:
                types = (method.input_type, method.output_type, method.client_streaming, method.server_streaming)
                methods[f"{service.name}.{method.name}"] = types
    return fields, methods


def description(module):
    """A module's file of declarations."""
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


with open(sys.argv[2], "rb") as file:
    ours, our_methods = declared(FileDescriptorSet.FromString(file.read()).file)
theirs, their_methods = declared([description(service_pb2), description(model_config_pb2)])
assert our_methods == their_methods
wrong = {name: (ours[name], theirs.get(name)) for name in ours if ours[name] != theirs.get(name)}
assert not wrong, wrong
assert len(ours) > 150, len(ours)
# What a model here does not have, configurations and responses in parts, is not declared; everything else is.
service_fields, _ = declared([description(service_pb2)])
missing = {name for name in service_fields if name not in ours}
assert all("InferResponseStatistics" in name or "esponse_stats" in name or "ResponseStats" in name for name in missing), missing


def tensors(frame, rows=1):
    """The inputs of a frame."""
    random = numpy.random.default_rng(frame)
    features = grpc.InferInput("features", [rows, 288], "FP32")
    features.set_data_from_numpy(random.normal(size=(rows, 288)).astype(numpy.float32))
    ids = grpc.InferInput("ids", [rows, 6], "UINT32")
    ids.set_data_from_numpy(numpy.full((rows, 6), 14, numpy.uint32))
    return [features, ids]


def refused(code, message, call, *arguments, **options):
    """The call fails with that code and message."""
    try:
        call(*arguments, **options)
    except InferenceServerException as error:
        assert error.status() == f"StatusCode.{code}" and message in error.message(), error
    else:
        raise AssertionError(f"expected: {message}")


def same(a, b, exact=True):
    """Two answers are equal, to the bit if every row was alone in its batch."""
    names = [output.name for output in a.get_response().outputs]
    assert names and names == [output.name for output in b.get_response().outputs]
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
server = client.get_server_metadata(as_json=True)
assert server["name"] == "candle-serve" and "sequence" in server["extensions"]
metadata = client.get_model_metadata(MODEL, "1", as_json=True)
assert metadata["inputs"][0] == {"name": "features", "datatype": "FP32", "shape": ["-1", "288"]}, metadata
config = client.get_model_config(MODEL, as_json=True)["config"]
assert config["max_batch_size"] == 32 and config["sequence_batching"]["oldest"]["max_candidate_sequences"] == 4096, config
assert config["input"][0]["data_type"] == "TYPE_FP32", config

# Answers: plain, compressed, chosen, without waiting.
plain = client.infer(MODEL, tensors(1), request_id="a request")
assert plain.get_response().id == "a request" and plain.get_response().model_version == "1"
assert [output.name for output in plain.get_response().outputs] == [output["name"] for output in metadata["outputs"]]
for algorithm in ["gzip", "deflate"]:
    same(plain, client.infer(MODEL, tensors(1), compression_algorithm=algorithm))
logits = client.infer(MODEL, tensors(1), outputs=[grpc.InferRequestedOutput("logits")])
numpy.testing.assert_array_equal(logits.as_numpy("logits"), plain.as_numpy("logits"))
assert logits.as_numpy("action") is None
classes = client.infer(MODEL, tensors(1), outputs=[grpc.InferRequestedOutput("logits", class_count=3)])
places = numpy.argsort(-plain.as_numpy("logits").ravel(), kind="stable")[:3]
assert [int(text.split(b":")[1]) for text in classes.as_numpy("logits").ravel()] == places.tolist()
rows = client.infer(MODEL, tensors(1, rows=3))
assert rows.as_numpy("logits").shape[0] == 3
answers = queue.Queue()
for _ in range(8):
    client.async_infer(MODEL, tensors(1, rows=3), callback=lambda result, error: answers.put((result, error)))
for _ in range(8):
    result, error = answers.get(timeout=120)
    assert error is None, error
    same(rows, result, exact=False)


# Inputs and outputs in shared memory.
key = f"/candle-serve-grpc-{os.getpid()}"
memory = shared_memory.create_shared_memory_region("both", key, 65536)
try:
    features = numpy.random.default_rng(1).normal(size=(1, 288)).astype(numpy.float32)
    shared_memory.set_shared_memory_region(memory, [features, numpy.full((1, 6), 14, numpy.uint32)])
    client.register_system_shared_memory("grpc-both", key, 65536)
    [region] = client.get_system_shared_memory_status("grpc-both").regions.values()
    assert (region.name, region.key, region.offset, region.byte_size) == ("grpc-both", key, 0, 65536)
    shared = tensors(1)
    shared[0].set_shared_memory("grpc-both", 1152)
    shared[1].set_shared_memory("grpc-both", 24, offset=1152)
    wanted = grpc.InferRequestedOutput("logits")
    wanted.set_shared_memory("grpc-both", 16384, offset=4096)
    answer = client.infer(MODEL, shared, outputs=[wanted])
    written = shared_memory.get_contents_as_numpy(memory, numpy.float32, answer.get_output("logits").shape, offset=4096)
    numpy.testing.assert_array_equal(written, plain.as_numpy("logits"))
    # One input there, and one in the message.
    mixed = client.infer(MODEL, [shared[0], tensors(1)[1]])
    same(plain, mixed)
    client.unregister_system_shared_memory("grpc-both")
    client.unregister_system_shared_memory()
    assert not client.get_system_shared_memory_status().regions
    refused("INVALID_ARGUMENT", "there is no shared memory region 'grpc-both'", client.infer, MODEL, shared)
finally:
    written = None
    shared_memory.destroy_shared_memory_region(memory)
assert not client.get_cuda_shared_memory_status().regions
refused("UNIMPLEMENTED", "shared memory on a GPU is not supported", client.register_cuda_shared_memory, "gpu", b"", 0, 4)
refused("UNIMPLEMENTED", "shared memory on a GPU is not supported", client.unregister_cuda_shared_memory, "gpu")

# The log.
before = client.get_log_settings(as_json=True)["settings"]
assert before["log_info"] == {"bool_param": True} and before["log_verbose_level"] == {"uint32_param": 0}, before
changed = client.update_log_settings({"log_verbose_level": 2, "log_info": False}, as_json=True)["settings"]
assert changed["log_info"] == {"bool_param": False} and changed["log_verbose_level"] == {"uint32_param": 2}, changed
client.update_log_settings({"log_verbose_level": 0, "log_info": True})
assert client.get_log_settings(as_json=True)["settings"] == before

# Traces: of all models, and of one, until it is as all are.
before = client.get_trace_settings(as_json=True)["settings"]
assert before["trace_level"] == {"value": ["OFF"]} and before["trace_rate"] == {"value": ["1000"]}, before
changed = client.update_trace_settings(MODEL, {"trace_level": ["TENSORS"], "trace_rate": "5"}, as_json=True)["settings"]
assert changed["trace_level"] == {"value": ["TENSORS"]} and changed["trace_rate"] == {"value": ["5"]}, changed
assert client.get_trace_settings(as_json=True)["settings"] == before
assert client.update_trace_settings(MODEL, {"trace_level": None, "trace_rate": None}, as_json=True)["settings"] == before
refused("INVALID_ARGUMENT", "trace_rate: expected a number", client.update_trace_settings, MODEL, {"trace_rate": "often"})


# Sequences: one by one and over a stream, by number and by name.
def marks(name, frame, frames=4):
    """What says which step of which sequence a request is."""
    return {"sequence_id": name, "sequence_start": frame == 0, "sequence_end": frame == frames - 1}


alone = [client.infer(MODEL, tensors(frame), **marks(7001, frame)) for frame in range(4)]
for frame in range(4):
    same(alone[frame], client.infer(MODEL, tensors(frame), **marks("python", frame)))
refused("INVALID_ARGUMENT", "must specify the START flag", client.infer, MODEL, tensors(0), sequence_id=7001)

def streamed(requests, headers=None):
    """The answers to requests over a stream."""
    client.start_stream(callback=lambda result, error: answers.put((result, error)), headers=headers)
    try:
        for model, frame, options in requests:
            client.async_stream_infer(model, tensors(frame), **options)
        return [answers.get(timeout=120) for _ in requests]
    finally:
        client.stop_stream()


names = [7002, "streamed"]
requests = [(MODEL, frame, {"request_id": f"{name} {frame}", **marks(name, frame)}) for frame in range(4) for name in names]
found = streamed([*requests, ("none", 0, {"request_id": "wrong"}), (MODEL, 1, {"request_id": "last"})])
for (_, frame, options), (result, error) in zip(requests, found):
    assert error is None, error
    assert result.get_response().id == options["request_id"]
    assert result.get_response().parameters["triton_final_response"].bool_param
    # They can share batches.
    same(alone[frame], result, exact=False)
result, error = found[8]
assert result is None and "unknown model: 'none' is not found" in error.message(), error
result, error = found[9]
assert error is None and result.get_response().id == "last", error
same(plain, result, exact=False)
[(result, error)] = streamed([("none", 0, {})], headers={"triton_grpc_error": "true"})
assert result is None and error.status() == "StatusCode.NOT_FOUND", error

# Faults.
refused("NOT_FOUND", "unknown model: 'none' is not found", client.infer, "none", tensors(0))
refused("INVALID_ARGUMENT", "tensor ids: expected UINT32 [-1, 6]", client.infer, MODEL, tensors(0)[:1])
late = {"sequence_id": 7003, "sequence_start": True, "timeout": 1}
refused("DEADLINE_EXCEEDED", "the deadline was over", client.infer, MODEL, tensors(0), **late)
same(plain, client.infer(MODEL, tensors(1), client_timeout=120))

# The repository and statistics.
index = client.get_model_repository_index(as_json=True)["models"]
assert {"name": "beam-c3", "version": "1", "state": "READY"} in index, index
client.unload_model("classifier-coherent")
assert not client.is_model_ready("classifier-coherent")
client.load_model("classifier-coherent")
assert client.is_model_ready("classifier-coherent")
refused("UNIMPLEMENTED", "the parameter config of a load is not supported", client.load_model, MODEL, config="{}")
[statistics] = client.get_inference_statistics(MODEL).model_stats
assert statistics.inference_stats.success.count >= 20 and statistics.inference_stats.success.ns > 0
assert statistics.inference_count >= statistics.execution_count > 0
assert len(client.get_inference_statistics().model_stats) == len(index)
client.close()

# A channel of another kind: the health of the server, as a bare call.
with grpcio.insecure_channel(sys.argv[1]) as channel:
    check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
    assert check(b"", timeout=120) == b"\x08\x01"
