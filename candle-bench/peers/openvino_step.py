"""OpenVINO on the CPU, on the step that candle-models exports."""

from common import allow_cpus, require
from exported import Exported

openvino = require("openvino")
import openvino.properties as properties
import openvino.properties.hint as hint

CORE = openvino.Core()


def set_threads(case):
    """A compiled network is made with its number; the calling thread, which hands it the work and waits, may have no other CPU beside them."""
    allow_cpus(case["threads"])


def named(port, prefix):
    """The rest of the port's name: it has the names of every value that is the same."""
    return next((name.removeprefix(prefix) for name in sorted(port.names) if name.startswith(prefix)), None)


class Step(Exported):
    def __init__(self, case):
        model = CORE.read_model(case["onnx"])
        model.reshape({port: [case["batch"], *(axis.get_length() for axis in list(port.partial_shape)[1:])] for port in model.inputs})
        settings = {
            hint.performance_mode: hint.PerformanceMode.LATENCY,
            hint.inference_precision: openvino.Type.f32,
            # A thread that is bound to one CPU waits for whoever else is there.
            hint.enable_cpu_pinning: False,
            properties.num_streams: 1,
            properties.inference_num_threads: case["threads"],
        }
        self.compiled = CORE.compile_model(model, "CPU", settings)
        super().__init__(case)

    def ports(self, prefix, ports):
        found = {named(port, prefix): port for port in ports}
        return {name: (tuple(port.shape), port.get_element_type().to_dtype()) for name, port in found.items() if name is not None}

    def states(self):
        return self.ports("state.", self.compiled.inputs)

    def results(self):
        return self.ports("output.", self.compiled.outputs)

    def bind(self, given, found):
        """A request of its own, whose tensors are the arrays. Started and waited for, it costs Python less than `infer`, which builds a
        dictionary of results."""
        request = self.compiled.create_infer_request()
        tensors = [(port, given) for port in self.compiled.inputs] + [(port, found) for port in self.compiled.outputs]
        kept = []
        for port, arrays in tensors:
            array = next(arrays[name] for name in sorted(port.names) if name in arrays)
            # The request does not keep the array's memory alive.
            kept.append(openvino.Tensor(array, shared_memory=True))
            request.set_tensor(port, kept[-1])

        def call(_kept=kept):
            request.start_async()
            request.wait()

        return call


PASSES = {"step": Step}
