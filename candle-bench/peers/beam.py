"""Scheme C3 of the beam controller as it was published (arXiv 2401.13587), in eager PyTorch: a training step on one batch of channels.

Two GRU cells that read (Re y, Im y, number of the beam), heads on the last state, a base station of two layers, a learned codebook, the
mean share of the channel's power as the loss, Adam. Complex numbers are PyTorch's own. Shapes: B episodes, L paths, T measurements, C
beams, R and X receive and transmit antennas.
"""

import json
import pathlib

import numpy
import safetensors.numpy
import safetensors.torch
import torch
import torch.nn.functional as F

ADAM = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8)


def complexes(array):
    """Pairs [..., 2 N] or [..., N, 2] as complex numbers."""
    pairs = array if array.shape[-1] == 2 and array.dim() > 2 else array.unflatten(-1, (-1, 2))
    return torch.view_as_complex(pairs.contiguous())


def unit(x):
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


class BeamTrain:
    def __init__(self, case):
        directory = pathlib.Path(case["bundle"])
        config = json.loads((directory / "config.json").read_text())["model"]
        published = (config["scheme"], config["view"], config["sweep"], config["decision"]["kind"], config["memory"]["kind"])
        if published != ("c3", "scalars", "free", "state", "gru"):
            raise ValueError(f"this peer has scheme c3 as published, found {published}")
        tensors = safetensors.torch.load_file(directory / "model.safetensors")
        turned = lambda name, value: value.T if name.endswith("weight") and value.dim() == 2 else value
        self.p = {name: turned(name, value.float()).contiguous().requires_grad_() for name, value in tensors.items()}
        self.hidden, self.layers, self.steps = config["hidden"], config["memory"]["layers"], case["frames"]
        batch = {name: torch.from_numpy(value) for name, value in safetensors.numpy.load_file(case["inputs"]).items()}
        self.gains, self.receive, self.transmit = (complexes(batch[name]) for name in ("gains", "receive", "transmit"))
        self.gains = self.gains.squeeze(-1) if self.gains.dim() == 3 else self.gains
        self.noise, self.power, self.start = complexes(batch["noise"]), batch["power"], batch["start"].long()
        self.optimiser = torch.optim.Adam(self.p.values(), **ADAM)

    def linear(self, x, name):
        return F.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def gru(self, x, h, name):
        p = lambda part: self.p[f"{name}.{part}"]
        return torch._VF.gru_cell(x, h, p("input.weight"), p("hidden.weight"), p("input.bias"), p("hidden.bias"))

    def loss(self):
        rows = len(self.start)
        codebook, beam = unit(complexes(self.p["codebook"])), unit(complexes(self.p["first"])).expand(rows, -1)
        # H f of every beam: the paths' gains by a_tx^H f, over the receive side's steering vectors.
        seen = self.gains.unsqueeze(-1) * (self.transmit.conj() @ codebook.T)
        responses = seen.transpose(1, 2) @ self.receive
        states = [torch.zeros(rows, self.hidden) for _ in range(self.layers)]
        for t in range(self.steps):
            index = (self.start + t) % len(codebook)
            y = (beam.conj() * responses[torch.arange(rows), index]).sum(-1) + self.noise[:, t]
            x = torch.stack([y.real, y.imag, index.float()], -1)
            for layer in range(self.layers):
                x = states[layer] = self.gru(x, states[layer], f"user.memory.{layer}")
            beam = unit(complexes(self.linear(x, "user.beam")))
        beam = unit(complexes(self.linear(x, "decision.beam")))
        x = self.linear(x, "decision.feedback")
        for layer in range(2):
            x = self.linear(x, f"base.layers.{layer}.linear")
            norm = f"base.layers.{layer}.norm"
            x = F.gelu(F.layer_norm(x, x.shape[-1:], self.p[f"{norm}.weight"], self.p[f"{norm}.bias"], 1e-5))
        f = unit(complexes(self.linear(x, "base.beam")))
        arriving = (self.gains * (self.transmit.conj() @ f.unsqueeze(-1)).squeeze(-1)).unsqueeze(1) @ self.receive
        gain = (beam.conj() * arriving.squeeze(1)).sum(-1).abs().square()
        return -(gain / self.power).mean()

    def call(self):
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.optimiser.step()
        return loss

    def first_outputs(self):
        return {"loss": numpy.array([self.call().item(), self.call().item()], dtype=numpy.float32)}


PASSES = {"train": BeamTrain}
