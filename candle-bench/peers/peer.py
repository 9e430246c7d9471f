#!/usr/bin/env python3
"""The Python side of `candle-bench peers`: one JSON request per line on stdin, one JSON answer per line on stdout.

    {"op": "hello"}                                    -> {"ok": {"pytorch": "...", "onnxruntime": "..."}}
    {"op": "prepare", "library": "pytorch" | "pytorch-compile" | "pytorch-graphs" | "onnxruntime", "device": "cpu" | "cuda:0",
     "dtype": "f32" | "bf16", "bundle": DIR, "pass": "step" | "window" | "train" | "product", "batch": B, "frames": T,
     "threads": N, "inputs": FILE, "outputs": FILE}
                                                       -> {"ok": {}}
    {"op": "round", "calls": N}                        -> {"ok": {"latencies_us": [...], "seconds": S}}
    {"op": "peak"}                                     -> {"ok": peak of this process's resident set in KiB}

and {"error": "one line"} when a request fails. `inputs` are safetensors `[B, frames, ...]` by name. A step takes them frame
by frame, round and round, with the state carried on; its outputs are those of the first round from the initial state.
A window or a training step takes them whole. A training step's output is `loss` [2], before and after the first update.
On the CPU there are eager PyTorch and ONNX Runtime, in f32; on a GPU PyTorch in its three forms. A product has no inputs and outputs: it multiplies two B x B
matrices T times a call. ONNX Runtime may be missing where nothing is asked of it.
"""

import gc
import importlib.metadata
import io
import json
import os
import pathlib
import sys
import time
import warnings

import numpy
import safetensors.numpy
import torch

from beam import BeamTrain
from cuda import CudaPass, CudaProduct
from policy import OUTPUTS, Policy, negative_log_likelihood

INPUTS = ("features", "ids", "previous_action", "action", "uniform")
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
WARM_UP_CALLS = 3  # of a round, not counted: the other side had the caches


def onnxruntime_version():
    """None where it is missing. It is imported where it computes: a process of PyTorch's must not carry it in its memory."""
    distributions = importlib.metadata.packages_distributions().get("onnxruntime")
    return importlib.metadata.version(distributions[0]) if distributions else None


def read_inputs(path):
    """Indices become i64, in which the u32 that means "choose" is -1."""
    tensors = safetensors.numpy.load_file(path)
    arrays = [tensors[name] for name in INPUTS]
    return [a.astype(numpy.int32).astype(numpy.int64) if a.dtype == numpy.uint32 else a.astype(numpy.float32) for a in arrays]


class Streaming:
    """Calls that walk through the frames of the inputs and carry the state on."""

    def __init__(self, inputs):
        self.count, self.frame = inputs[0].shape[1], 0
        self.frames = [[numpy.ascontiguousarray(a[:, t]) for a in inputs] for t in range(self.count)]

    def next(self):
        t, self.frame = self.frame, (self.frame + 1) % self.count
        return t

    def first_outputs(self):
        outputs = [[o.numpy().copy() for o in self.call()] for _ in range(self.count)]
        return {name: numpy.stack([o[i] for o in outputs], 1) for i, name in enumerate(OUTPUTS)}


class PytorchStep(Streaming):
    def __init__(self, case, inputs):
        super().__init__(inputs)
        self.policy = Policy(case["bundle"], streaming=True)
        self.state = self.policy.initial_state(case["batch"])
        self.tensors = [[torch.from_numpy(a) for a in frame] for frame in self.frames]

    def call(self):
        with torch.inference_mode():
            logits, value, action, *self.state = self.policy(*self.tensors[self.next()], *self.state)
        return logits, value, action


class PytorchWindow:
    def __init__(self, case, inputs):
        self.policy = Policy(case["bundle"], streaming=False)
        self.tensors = [torch.from_numpy(a) for a in inputs]

    def call(self):
        with torch.inference_mode():
            return self.policy(*self.tensors)

    def first_outputs(self):
        return {name: array.numpy() for name, array in zip(OUTPUTS, self.call())}


class PytorchTrain:
    def __init__(self, case, inputs):
        self.policy = Policy(case["bundle"], streaming=False, training=True)
        self.tensors = [torch.from_numpy(a) for a in inputs]
        parameters = list(self.policy.p.values())
        for p in parameters:
            p.requires_grad_()
        self.optimizer = torch.optim.AdamW(parameters, **ADAMW)

    def call(self):
        self.optimizer.zero_grad()
        logits, *_ = self.policy(*self.tensors)
        loss = negative_log_likelihood(logits, self.tensors[INPUTS.index("action")]).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def first_outputs(self):
        return {"loss": numpy.array([self.call(), self.call()], dtype=numpy.float32)}


def export(policy, inputs, state):
    """The network as ONNX bytes with fixed shapes. A step's state tensors become further inputs and outputs."""
    states = [f"state.{i}" for i in range(len(state))]
    names = [*(f"out.{name}" for name in OUTPUTS), *(f"after.{i}" for i in range(len(state)))]
    model = io.BytesIO()
    arguments = (*(torch.from_numpy(a) for a in inputs), *state)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing takes the fixed shapes for constants, which they are
        torch.onnx.export(
            policy.eval(), arguments, model, input_names=[*INPUTS, *states], output_names=names, opset_version=17, dynamo=False
        )
    return model.getvalue()


def session(model, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Bound:
    """Inputs and outputs bound once to fixed memory: a call copies nothing. Inputs that the graph does not use are gone from it."""

    def __init__(self, session, inputs, outputs):
        self.session, self.binding, self.outputs = session, session.io_binding(), outputs
        used = {i.name for i in session.get_inputs()}
        for name, value in inputs.items():
            if name in used:
                self.binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            self.binding.bind_ortvalue_output(name, value)

    def run(self):
        self.session.run_with_iobinding(self.binding)
        return [self.outputs[f"out.{name}"] for name in OUTPUTS]


def ort_value(array):
    """A copy in memory of its own: `ortvalue_from_numpy` borrows the array's without keeping it alive."""
    import onnxruntime

    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "cpu")
    value.update_inplace(numpy.ascontiguousarray(array))
    return value


def output_values(batch, leading):
    shapes = {"logits": (81, numpy.float32), "value": (1, numpy.float32), "action": (13, numpy.int64)}
    arrays = {f"out.{name}": numpy.zeros((batch, *leading, width), dtype) for name, (width, dtype) in shapes.items()}
    return {name: ort_value(array) for name, array in arrays.items()}


class OnnxStep(Streaming):
    def __init__(self, case, inputs):
        super().__init__(inputs)
        policy, batch = Policy(case["bundle"], streaming=True), case["batch"]
        state = policy.initial_state(batch)
        running = session(export(policy, self.frames[0], state), case["threads"])
        # The state goes back and forth between two sets of buffers.
        sets = [[ort_value(s.numpy()) for s in state] for _ in range(2)]
        outputs = output_values(batch, ())
        self.turn, self.bound = 0, []
        for frame in self.frames:
            inputs = {name: ort_value(a) for name, a in zip(INPUTS, frame)}
            for a, b in (sets, sets[::-1]):
                before = {f"state.{i}": v for i, v in enumerate(a)}
                after = {f"after.{i}": v for i, v in enumerate(b)}
                self.bound.append(Bound(running, inputs | before, outputs | after))

    def call(self):
        self.turn = 1 - self.turn
        return self.bound[2 * self.next() + 1 - self.turn].run()


class OnnxWindow:
    def __init__(self, case, inputs):
        running = session(export(Policy(case["bundle"], streaming=False), inputs, ()), case["threads"])
        self.bound = Bound(running, {n: ort_value(a) for n, a in zip(INPUTS, inputs)}, output_values(case["batch"], (case["frames"],)))

    def call(self):
        return self.bound.run()

    def first_outputs(self):
        return {name: value.numpy() for name, value in zip(OUTPUTS, self.call())}


SUBJECTS = {
    ("pytorch", "step"): PytorchStep,
    ("pytorch", "window"): PytorchWindow,
    ("pytorch", "train"): PytorchTrain,
    ("onnxruntime", "step"): OnnxStep,
    ("onnxruntime", "window"): OnnxWindow,
}


ON_CUDA = {"step": CudaPass, "window": CudaPass, "product": CudaProduct}


def subject_of(case):
    library, device = case["library"], case["device"]
    if library == "onnxruntime" and onnxruntime_version() is None:
        raise ValueError("onnxruntime is not installed")
    on_gpu = device != "cpu" and library.startswith("pytorch")
    kind = ON_CUDA.get(case["pass"]) if on_gpu else SUBJECTS.get((library, case["pass"]))
    if kind is None or (device != "cpu" and not on_gpu):
        raise ValueError(f"{library} has no {case['pass']} pass on {device} here")
    return kind


def is_beam(case):
    path = pathlib.Path(case["bundle"]) / "config.json"
    return path.exists() and json.loads(path.read_text()).get("family") == "beam"


def prepare(case):
    if is_beam(case):
        if (case["library"], case["pass"], case["device"]) != ("pytorch", "train", "cpu"):
            raise ValueError(f"{case['library']} has no {case['pass']} pass of a beam controller on {case['device']} here")
        torch.set_num_threads(case["threads"])
        subject = BeamTrain(case)
        safetensors.numpy.save_file(subject.first_outputs(), case["outputs"])
        return subject
    kind = subject_of(case)
    torch.set_num_threads(case["threads"])
    inputs = read_inputs(case["inputs"]) if case["pass"] != "product" else None
    if inputs is not None and inputs[0].shape[0] != case["batch"]:
        raise ValueError(f"inputs have {inputs[0].shape[0]} rows, the case says {case['batch']}")
    subject = kind(case, inputs)
    outputs = {name: numpy.ascontiguousarray(a).astype(numpy.uint32 if a.dtype == numpy.int64 else a.dtype) for name, a in subject.first_outputs().items()}
    safetensors.numpy.save_file(outputs, case["outputs"])
    return subject


def time_round(subject, calls):
    # A call of seconds needs no warm-up of its own, and would pay for it.
    for _ in range(min(WARM_UP_CALLS, calls - 1)):
        subject.call()
    clock, latencies = time.perf_counter_ns, []
    gc.collect()
    gc.disable()
    start = last = clock()
    for _ in range(calls):
        subject.call()
        now = clock()
        latencies.append((now - last) / 1e3)
        last = now
    gc.enable()
    return {"latencies_us": latencies, "seconds": (last - start) / 1e9}


def main():
    # A library that prints must not speak into the protocol, C++ code neither: descriptor 1 becomes the error stream.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_interop_threads(1)
    subject = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            match request["op"]:
                case "hello":
                    ok = {"pytorch": torch.__version__.split("+")[0], "onnxruntime": onnxruntime_version() or "missing"}
                case "prepare":
                    subject = None  # the old one's memory goes first
                    subject, ok = prepare(request), {}
                case "round":
                    if subject is None:
                        raise ValueError("a round needs a prepared subject")
                    ok = time_round(subject, request["calls"])
                case "peak":
                    status = pathlib.Path("/proc/self/status").read_text()
                    ok = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))
                case op:
                    raise ValueError(f"no such request: {op}")
            answer = {"ok": ok}
        except Exception as error:  # whatever it is, the other side reports it and decides
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
