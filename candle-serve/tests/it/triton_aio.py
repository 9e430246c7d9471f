"""Every method of tritonclient.http.aio and tritonclient.grpc.aio that the server has, against a server of the shipped bundles at the
addresses that are given."""

import asyncio
import sys

import numpy
import tritonclient.grpc.aio as grpc
import tritonclient.http.aio as http
from tritonclient.utils import InferenceServerException

MODEL = "policy-mamba"


def tensors(module, frame, rows=1):
    """The inputs of a frame."""
    random = numpy.random.default_rng(frame)
    features = module.InferInput("features", [rows, 288], "FP32")
    features.set_data_from_numpy(random.normal(size=(rows, 288)).astype(numpy.float32))
    ids = module.InferInput("ids", [rows, 6], "UINT32")
    ids.set_data_from_numpy(numpy.full((rows, 6), 14, numpy.uint32))
    return [features, ids]


async def refused(message, call):
    """The call fails with that message."""
    try:
        await call
    except InferenceServerException as error:
        assert message in error.message(), error
    else:
        raise AssertionError(f"expected: {message}")


def marks(name, frame, frames=4):
    """What says which step of which sequence a request is."""
    return {"sequence_id": name, "sequence_start": frame == 0, "sequence_end": frame == frames - 1}


async def both(module, client, name):
    """What both clients have: the logits of a sequence's steps."""
    assert await client.is_server_live() and await client.is_server_ready()
    assert await client.is_model_ready(MODEL) and not await client.is_model_ready("none")
    rows = await client.infer(MODEL, tensors(module, 1, rows=3))
    assert rows.as_numpy("logits").shape[0] == 3
    chosen = await client.infer(MODEL, tensors(module, 1), outputs=[module.InferRequestedOutput("logits")])
    assert chosen.as_numpy("action") is None
    many = await asyncio.gather(*[client.infer(MODEL, tensors(module, 1, rows=3)) for _ in range(8)])
    for answer in many:
        numpy.testing.assert_allclose(answer.as_numpy("logits"), rows.as_numpy("logits"), rtol=1e-4, atol=1e-4)
    await refused("unknown model: 'none' is not found", client.infer("none", tensors(module, 0)))
    await refused("must specify the START flag", client.infer(MODEL, tensors(module, 0), sequence_id=name))
    await client.unload_model("classifier-coherent")
    assert not await client.is_model_ready("classifier-coherent")
    await client.load_model("classifier-coherent")
    assert await client.is_model_ready("classifier-coherent")
    answers = [await client.infer(MODEL, tensors(module, frame), **marks(name, frame)) for frame in range(4)]
    return [answer.as_numpy("logits") for answer in answers]


async def over_http():
    """Over HTTP."""
    async with http.InferenceServerClient(url=sys.argv[1]) as client:
        assert (await client.get_server_metadata())["name"] == "candle-serve"
        assert (await client.get_model_metadata(MODEL))["inputs"][0]["shape"] == [-1, 288]
        assert (await client.get_model_config(MODEL))["max_batch_size"] == 32
        assert len(await client.get_model_repository_index()) == 5
        statistics = await client.get_inference_statistics(MODEL)
        assert statistics["model_stats"][0]["name"] == MODEL
        return await both(http, client, 8001)


async def over_grpc():
    """Over gRPC."""
    async with grpc.InferenceServerClient(url=sys.argv[2]) as client:
        assert (await client.get_server_metadata()).name == "candle-serve"
        assert list((await client.get_model_metadata(MODEL)).inputs[0].shape) == [-1, 288]
        assert (await client.get_model_config(MODEL)).config.max_batch_size == 32
        assert len((await client.get_model_repository_index()).models) == 5
        assert (await client.get_inference_statistics(MODEL)).model_stats[0].name == MODEL
        answers = await both(grpc, client, 8002)

        async def requests():
            for frame in range(4):
                yield {"model_name": MODEL, "inputs": tensors(grpc, frame), "request_id": str(frame), **marks("aio", frame)}
            yield {"model_name": "none", "inputs": tensors(grpc, 0)}

        streamed = [(result, error) async for result, error in client.stream_infer(requests())]
        assert len(streamed) == 5
        for frame, (result, error) in enumerate(streamed[:4]):
            assert error is None and result.get_response().id == str(frame), error
            numpy.testing.assert_array_equal(result.as_numpy("logits"), answers[frame])
        result, error = streamed[4]
        assert result is None and "unknown model: 'none' is not found" in error.message(), error
        return answers


for a, b in zip(asyncio.run(over_http()), asyncio.run(over_grpc()), strict=True):
    numpy.testing.assert_array_equal(a, b)
