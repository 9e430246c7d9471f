#!/usr/bin/env python3
"""A model behind a web framework as people write it: ONNX Runtime in a FastAPI app on uvicorn, JSON in and out.

    fastapi_app.py STEP.onnx THREADS      serves POST /infer on a free port of this machine, and prints the port

A request is {"inputs": {"NAME": [[...]], ...}} with the batch first, the answer {"outputs": {"NAME": [[...]], ...}}. A state that is not given is
zero, which is what candle-models begins with.
"""

import socket
import sys

import numpy
import onnxruntime
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

KINDS = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64}


class InferRequest(BaseModel):
    inputs: dict[str, list]


def app(session):
    app = FastAPI()
    ends = session.get_inputs()
    names = [end.name for end in session.get_outputs()]

    @app.post("/infer")
    def infer(request: InferRequest):
        rows = len(next(iter(request.inputs.values())))
        values = {
            end.name: numpy.asarray(request.inputs[end.name], KINDS[end.type])
            if end.name in request.inputs
            else numpy.zeros((rows, *end.shape[1:]), KINDS[end.type])
            for end in ends
        }
        return {"outputs": {name: values.tolist() for name, values in zip(names, session.run(names, values))}}

    return app


def main():
    _, model, threads = sys.argv
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    # asyncio sends small answers at once only over sockets that say their protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app(session), log_level="warning")).run([listener])


if __name__ == "__main__":
    main()
