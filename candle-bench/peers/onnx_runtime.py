"""ONNX Runtime on the CPU, on the network that PyTorch exports."""

import io
import warnings

import numpy
import torch

from common import INPUTS, OUTPUTS, Streaming, read_inputs, require
from policy import Policy

onnxruntime = require("onnxruntime")


def set_threads(case):
    """A session is made with its number; PyTorch only exports."""


def export(policy, inputs, state):
    """The network as ONNX bytes with fixed shapes. A step's state tensors become further inputs and outputs."""
    require("onnx")
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
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "cpu")
    value.update_inplace(numpy.ascontiguousarray(array))
    return value


def output_values(batch, leading):
    shapes = {"logits": (81, numpy.float32), "value": (1, numpy.float32), "action": (13, numpy.int64)}
    arrays = {f"out.{name}": numpy.zeros((batch, *leading, width), dtype) for name, (width, dtype) in shapes.items()}
    return {name: ort_value(array) for name, array in arrays.items()}


class Step(Streaming):
    def __init__(self, case):
        super().__init__(case)
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


class Window:
    def __init__(self, case):
        inputs = read_inputs(case)
        running = session(export(Policy(case["bundle"], streaming=False), inputs, ()), case["threads"])
        self.bound = Bound(running, {n: ort_value(a) for n, a in zip(INPUTS, inputs)}, output_values(case["batch"], (case["frames"],)))

    def call(self):
        return self.bound.run()

    def first_outputs(self):
        return {name: value.numpy() for name, value in zip(OUTPUTS, self.call())}


PASSES = {"step": Step, "window": Window}
