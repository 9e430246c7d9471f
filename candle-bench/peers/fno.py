"""Fourier operators of PyPI's neuraloperator 2.0.0 (neuralop.models.FNO) on PyTorch, with the parameters of a bundle.

Names of parameters are neuraloperator's, layouts are not. `to_theirs` makes its state dict of a bundle's tensors, `to_ours` turns one back, so
that checkpoints of neuraloperator become bundles. C channels in, O out, H hidden, K waves down, L across, r ranks:

    in the bundle                                                 in neuraloperator
    NAME.weight of a layer at every place [C, O]                  NAME.weight [O, C, 1]: a convolution of width 1
    NAME.bias of such a layer [O]                                 the same
    fno_blocks.convs.I.weight [K, L, C, 2 O]                      fno_blocks.convs.I.weight.tensor, complex [C, O, K, L]
        real parts of all outputs before the imaginary ones
    fno_blocks.convs.I.weight.core [r, r, r, r, 2]                the same name, complex [r, r, r, r]
    fno_blocks.convs.I.weight.factors.factor_J [size, r, 2]       the same name, complex [size, r]
        real and imaginary parts side by side
    fno_blocks.convs.I.bias [O]                                   the same name [O, 1, 1]
    fno_blocks.channel_mlp_skips.I.weight [H]                     the same name [1, H, 1, 1]

Waves down lie in the same order in both, from -K / 2 up. Fields [n, m, C] are [C, n, m] there. neuraloperator answers with normalised values; what
answers were normalised by is in the bundle's config.json (`output`), and the bundle answers with physical ones.
"""

import importlib
import pathlib

import numpy
import safetensors.numpy
import safetensors.torch
import torch

from common import ADAMW, Unavailable, config_of, require

UPDATES = 10  # after which parameters are compared


def layout_of(name):
    """How a parameter lies: `waves`, `pairs`, `bias`, `gain`, `matrix` or `vector`."""
    if name.startswith("fno_blocks.convs."):
        return {"weight": "waves", "bias": "bias"}.get(name.split(".", 3)[3], "pairs")
    if name.startswith("fno_blocks.channel_mlp_skips."):
        return "gain"
    return "matrix" if name.endswith(".weight") else "vector"


def their_name(name):
    return f"{name}.tensor" if layout_of(name) == "waves" else name


def to_theirs(name, tensor):
    """A tensor of a bundle as neuraloperator has it."""
    match layout_of(name):
        case "waves":
            return torch.complex(*(part.contiguous() for part in tensor.chunk(2, -1))).permute(2, 3, 0, 1).contiguous()
        case "pairs":
            return torch.view_as_complex(tensor.contiguous())
        case "bias":
            return tensor[:, None, None]
        case "gain":
            return tensor[None, :, None, None]
        case "matrix":
            return tensor.T[..., None].contiguous()
    return tensor


def to_ours(name, tensor):
    """A tensor of neuraloperator, or its gradient, as the bundle has the parameter `name`."""
    match layout_of(name):
        case "waves":
            tensor = tensor.permute(2, 3, 0, 1)
            return torch.cat([tensor.real, tensor.imag], -1)
        case "pairs":
            return torch.view_as_real(tensor)
        case "bias" | "gain":
            return tensor.flatten()
        case "matrix":
            return tensor[..., 0].T
    return tensor


def operator_of(bundle):
    """neuraloperator's model with the parameters of a bundle; their names in the bundle; the mean and deviation of answers."""
    require("neuralop")
    config = config_of(bundle)["model"]
    if config["grid"][0] == 1:
        raise Unavailable("this peer has operators over planes, not over lines")
    tensors = {name: value.float() for name, value in safetensors.torch.load_file(pathlib.Path(bundle) / "model.safetensors").items()}
    inputs, outputs = config["channels"]
    sizes = dict(n_modes=tuple(config["modes"]), in_channels=inputs, out_channels=outputs, hidden_channels=config["hidden"], n_layers=config["layers"])
    if config["padding"] > 0:
        sizes["domain_padding"] = config["padding"]
    if config["rank"] is not None:
        # Ranks themselves: the two libraries round those of a share differently.
        sizes.update(factorization="Tucker", rank=tuple(tensors["fno_blocks.convs.0.weight.core"].shape[:-1]))
    model = importlib.import_module("neuralop.models").FNO(**sizes)
    # Strict: a name or a shape that one side alone has is an error.
    model.load_state_dict({their_name(name): to_theirs(name, tensor) for name, tensor in tensors.items()})
    return model, list(tensors), (config["output"]["mean"], config["output"]["deviation"])


def fields_of(case, name):
    """Fields [B, F, n, m, C] as [B, F, C, n, m]."""
    return torch.from_numpy(safetensors.numpy.load_file(case["inputs"])[name]).permute(0, 1, 4, 2, 3).contiguous()


class Operator:
    def __init__(self, case):
        self.model, self.names, (self.mean, self.deviation) = operator_of(case["bundle"])
        self.x = fields_of(case, "x")

    def answer(self, x):
        return self.model(x) * self.deviation + self.mean


class Window(Operator):
    """All fields at once."""

    def call(self):
        with torch.inference_mode():
            return self.answer(self.x.flatten(0, 1))

    def first_outputs(self):
        answers = self.call().unflatten(0, self.x.shape[:2])
        return {"y": answers.permute(0, 1, 3, 4, 2).numpy()}


class Step(Operator):
    """One field of every row after the other, round and round."""

    def __init__(self, case):
        super().__init__(case)
        self.frames, self.frame = [x.contiguous() for x in self.x.unbind(1)], 0

    def call(self):
        x, self.frame = self.frames[self.frame], (self.frame + 1) % len(self.frames)
        with torch.inference_mode():
            return self.answer(x)

    def first_outputs(self):
        answers = torch.stack([self.call() for _ in self.frames], 1)
        return {"y": answers.permute(0, 1, 3, 4, 2).numpy()}


class Train(Operator):
    """A call is one pass over all pairs in an order drawn anew, a step for every batch."""

    def __init__(self, case):
        super().__init__(case)
        if self.model.out_channels != 1:
            raise Unavailable("neuraloperator's loss takes the error of each channel by itself, ours that of all together")
        self.x, self.y, self.batch = self.x.flatten(0, 1), fields_of(case, "y").flatten(0, 1), case["batch"]
        self.loss = importlib.import_module("neuralop.losses").H1Loss(d=2, reduction="mean")
        # neuraloperator's own AdamW has one second moment for both parts of a complex number.
        self.optimiser = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def step(self, x, y):
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss(self.answer(x), y)
        loss.backward()
        self.optimiser.step()
        return loss

    def call(self):
        for rows in torch.randperm(len(self.x)).split(self.batch):
            self.step(self.x[rows], self.y[rows])

    def first_outputs(self):
        """Of updates on the first batch: losses before and after the first, its gradients, and the parameters after the last."""
        x, y, theirs = self.x[: self.batch], self.y[: self.batch], dict(self.model.named_parameters())
        losses = [self.step(x, y).item()]
        found = {f"gradient.{name}": to_ours(name, theirs[their_name(name)].grad).contiguous().numpy().copy() for name in self.names}
        losses += [self.step(x, y).item() for _ in range(UPDATES - 1)]
        found |= {f"parameter.{name}": to_ours(name, theirs[their_name(name)].detach()).contiguous().numpy().copy() for name in self.names}
        return found | {"loss": numpy.array(losses[:2], dtype=numpy.float32)}


PASSES = {"step": Step, "window": Window, "train": Train}
