"""ONNX Runtime on the CPU: a step on the file that candle-models exports, a window on the one that PyTorch exports."""

import io
import warnings

import numpy

from common import INPUTS, OUTPUTS, read_inputs, require
from exported import Exported

onnxruntime = require("onnxruntime")


def set_threads(case):
    """A session is made with its number; PyTorch only exports."""


def export(policy, inputs):
    """A window as ONNX bytes with fixed shapes."""
    torch = require("torch")
    require("onnx")
    model = io.BytesIO()
    names = [f"output.{name}" for name in OUTPUTS]
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing takes the fixed shapes for constants, which they are
        arguments = tuple(torch.from_numpy(a) for a in inputs)
        torch.onnx.export(policy.eval(), arguments, model, input_names=[*INPUTS], output_names=names, opset_version=17, dynamo=False)
    return model.getvalue()


def session(model, case):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = case["threads"], 1
    # What is known of every shape is folded: the axis that candle-models leaves open has one length here.
    options.add_free_dimension_override_by_name("batch", case["batch"])
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def bound(session, inputs, outputs):
    """A call with inputs and outputs bound to these arrays: it copies nothing. Inputs that the graph does not use are gone from it."""
    binding, used = session.io_binding(), {i.name for i in session.get_inputs()}
    buffer = lambda array: ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for name in used & inputs.keys():
        binding.bind_input(name, *buffer(inputs[name]))
    for name, array in outputs.items():
        binding.bind_output(name, *buffer(array))
    # The binding borrows the memory.
    return lambda _kept=(inputs, outputs): session.run_with_iobinding(binding)


KINDS = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64}


class Step(Exported):
    def __init__(self, case):
        self.session = session(case["onnx"], case)
        super().__init__(case)

    def arrays(self, prefix, ends):
        """Shapes and types by name; the batch is the axis that the file leaves open."""
        found = {end.name.removeprefix(prefix): end for end in ends if end.name.startswith(prefix)}
        return {name: ((self.batch, *end.shape[1:]), KINDS[end.type]) for name, end in found.items()}

    def states(self):
        return self.arrays("state.", self.session.get_inputs())

    def results(self):
        return self.arrays("output.", self.session.get_outputs())

    def bind(self, given, found):
        return bound(self.session, given, found)


class Window:
    def __init__(self, case):
        require("torch")
        from policy import Policy

        inputs = read_inputs(case)
        running = session(export(Policy(case["bundle"], streaming=False), inputs), case)
        shapes = {"logits": (81, numpy.float32), "value": (1, numpy.float32), "action": (13, numpy.int64)}
        self.outputs = {name: numpy.zeros((case["batch"], case["frames"], width), kind) for name, (width, kind) in shapes.items()}
        self.call = bound(running, dict(zip(INPUTS, inputs)), {f"output.{name}": array for name, array in self.outputs.items()})

    def first_outputs(self):
        self.call()
        return self.outputs


PASSES = {"step": Step, "window": Window}
