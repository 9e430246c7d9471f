"""PyTorch on the CPU: `pytorch`, eager, and `pytorch-compile`, through torch.compile, which compiles C++ while a case is prepared."""

import numpy
import torch

from common import ADAMW, INPUTS, OUTPUTS, Streaming, Unavailable, read_inputs
from policy import Policy, negative_log_likelihood


def set_threads(case):
    torch.set_num_threads(case["threads"])


def forward_of(policy, case, arguments):
    """What a call runs. A compiled pass is compiled here, by a first call."""
    if case["library"] != "pytorch-compile":
        return policy
    from torch._inductor import config, cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except Exception as error:
        raise Unavailable(f"torch.compile needs a C++ compiler: {error}") from error
    # The number of threads is part of the compiled code, and code for another case must not be taken for this one's.
    torch._dynamo.reset()
    config.cpp.threads = case["threads"]
    compiled = torch.compile(policy, dynamic=False)
    try:
        with torch.inference_mode():
            compiled(*arguments)
    except torch._dynamo.exc.TorchDynamoException as error:
        raise Unavailable(f"torch.compile failed: {error}") from error
    return compiled


class Step(Streaming):
    def __init__(self, case):
        super().__init__(case)
        policy = Policy(case["bundle"], streaming=True)
        self.state = policy.initial_state(case["batch"])
        self.tensors = [[torch.from_numpy(a) for a in frame] for frame in self.frames]
        self.forward = forward_of(policy, case, (*self.tensors[0], *self.state))

    def call(self):
        with torch.inference_mode():
            logits, value, action, *self.state = self.forward(*self.tensors[self.next()], *self.state)
        return logits, value, action


class Window:
    def __init__(self, case):
        self.tensors = [torch.from_numpy(a) for a in read_inputs(case)]
        self.forward = forward_of(Policy(case["bundle"], streaming=False), case, self.tensors)

    def call(self):
        with torch.inference_mode():
            return self.forward(*self.tensors)

    def first_outputs(self):
        return {name: array.numpy() for name, array in zip(OUTPUTS, self.call())}


class Train:
    def __init__(self, case):
        if case["library"] != "pytorch":
            raise Unavailable("torch.compile of a training step is left out: the scan's loop over the frames is unrolled, and compiles for minutes")
        self.policy = Policy(case["bundle"], streaming=False, training=True)
        self.tensors = [torch.from_numpy(a) for a in read_inputs(case)]
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


PASSES = {"step": Step, "window": Window, "train": Train}
