"""The policy of a bundle in PyTorch on a GPU, from inputs in host memory to outputs in host memory.

Three ways to run it: `pytorch`, eager; `pytorch-compile`, through torch.compile; and `pytorch-graphs`, the eager pass with its
copies captured as one CUDA graph. In all of them the inputs of a call go into one pinned buffer, over in one copy, and the outputs come back in
one; state stays on the device and is updated in place. A call ends when its outputs are in host memory.
"""

import numpy
import torch

from common import OUTPUTS, read_inputs
from policy import Policy

INPUT_DTYPES = (torch.float32, torch.int32, torch.int32, torch.int32, torch.float32)
OUTPUT_DTYPES = (torch.float32, torch.float32, torch.int32)
WARM_UP = 3  # passes before a capture: libraries allocate and choose their kernels in them


class Packed:
    """Tensors side by side in one buffer on the host and one on the device."""

    def __init__(self, shapes, dtypes, device):
        sizes = [4 * int(numpy.prod(shape)) for shape in shapes]
        self.host = torch.zeros(sum(sizes), dtype=torch.uint8)
        if device.type == "cuda":
            self.host = self.host.pin_memory()
        self.device = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        view = lambda buffer: [buffer[a : a + n].view(t).view(s) for a, n, t, s in zip(starts, sizes, dtypes, shapes)]
        self.host_tensors, self.device_tensors = view(self.host), view(self.device)

    def upload(self):
        self.device.copy_(self.host, non_blocking=True)

    def download(self):
        self.host.copy_(self.device, non_blocking=True)


class CudaPass:
    """A step walks through the frames of the inputs, round and round, and carries the state on; a window takes them whole."""

    def __init__(self, case):
        self.device, inputs = torch.device(case["device"]), read_inputs(case)
        streaming = case["pass"] == "step"
        self.frames = [[a[:, t] for a in inputs] for t in range(inputs[0].shape[1])] if streaming else [inputs]
        self.frames = [[torch.from_numpy(numpy.ascontiguousarray(a)).to(t) for a, t in zip(f, INPUT_DTYPES)] for f in self.frames]
        self.streaming, self.frame = streaming, 0
        with torch.inference_mode():
            self.policy = Policy(case["bundle"], streaming=streaming).place(self.device, case["dtype"])
            self.state = self.policy.initial_state(case["batch"])
            self.inputs = Packed([a.shape for a in self.frames[0]], INPUT_DTYPES, self.device)
            shapes = [o.shape for o in self.policy(*self.inputs.device_tensors, *self.state)[:3]]
            self.outputs = Packed(shapes, OUTPUT_DTYPES, self.device)
            self.forward = torch.compile(self.policy, dynamic=False) if case["library"] == "pytorch-compile" else self.policy
            self.replay = self.capture() if case["library"] == "pytorch-graphs" else self.run

    def run(self):
        self.inputs.upload()
        *outputs, = self.forward(*self.inputs.device_tensors, *self.state)
        for kept, found in zip(self.outputs.device_tensors, outputs):
            kept.copy_(found)
        for kept, found in zip(self.state, outputs[3:]):
            kept.copy_(found)
        self.outputs.download()

    def capture(self):
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self.run()
        for tensor in self.state:
            tensor.zero_()
        return graph.replay

    def call(self):
        with torch.inference_mode():
            for kept, given in zip(self.inputs.host_tensors, self.frames[self.frame]):
                kept.copy_(given)
            self.frame = (self.frame + 1) % len(self.frames)
            self.replay()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        return self.outputs.host_tensors

    def first_outputs(self):
        calls = [[o.numpy().copy() for o in self.call()] for _ in self.frames]
        join = numpy.stack if self.streaming else numpy.concatenate
        found = {name: join([c[i] for c in calls], 1 if self.streaming else 0) for i, name in enumerate(OUTPUTS)}
        return found | {"action": found["action"].astype(numpy.int64)}


class CudaProduct:
    """Square products, several a call: a call of one would measure the wait for its end."""

    def __init__(self, case):
        device, n = torch.device(case["device"]), case["batch"]
        dtype = getattr(torch, {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[case["dtype"]])
        self.calls, self.device = case["frames"], device
        generator = torch.Generator(device).manual_seed(0)
        self.a, self.b = (torch.randn(n, n, generator=generator, device=device).to(dtype) for _ in range(2))
        self.out = torch.empty_like(self.a)

    def call(self):
        with torch.inference_mode():
            for _ in range(self.calls):
                torch.mm(self.a, self.b, out=self.out)
            if self.device.type == "cuda":
                torch.cuda.synchronize()

    def first_outputs(self):
        self.call()
        return {}


def set_threads(case):
    """Of the host, which launches."""
    torch.set_num_threads(case["threads"])


PASSES = {"step": CudaPass, "window": CudaPass, "product": CudaProduct}
