"""The game policy of candle-models in PyTorch, read from a bundle (config.json, model.safetensors).

Backbones `mlp` and `mamba`, both kinds of heads. Written for speed in eager mode: plain functions on tensors, linear
weights turned to PyTorch's [out, in], and for inference the embedding tables multiplied into the first layer, as
candle-models does, so that a comparison measures the runtimes and not the algebra. Actions are drawn by inverting the
cumulative distribution at `uniform`; the greedy choice (negative `uniform`) is left out.

Shapes: B rows, T frames (inputs are [B, T, ...] for a window and [B, ...] for a step), E inner width, N states, K taps.
"""

import pathlib

import safetensors.torch
import torch
import torch.nn.functional as F

from common import ACTION_STATE_IDS, CHARACTER_IDS, COMPONENTS, EPS, FEATURES, INDEPENDENT_WIDTHS, backbone_of

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Parameters of two axes that are not the weight of a linear layer.
TABLES = ("action_states", "characters", "previous", "chosen", "a_log", "conv.weight")


class Policy(torch.nn.Module):
    """`streaming`: a call is one frame and takes and gives the state; otherwise a window from the initial state.
    `training`: tables stay parameters and every action is given."""

    def __init__(self, bundle, streaming, training=False):
        super().__init__()
        self.config, self.kind = backbone_of(bundle)
        tensors = safetensors.torch.load_file(pathlib.Path(bundle) / "model.safetensors")
        self.p = {name: self.stored(name, value.float()) for name, value in tensors.items()}
        self.streaming, self.teacher_forced = streaming, training
        # First table row of each of a component's columns.
        self.first_rows = [torch.arange(columns) * classes for _, _, columns, classes in COMPONENTS]
        if not training:
            self.fold_tables()

    def place(self, device, dtype):
        """Moves everything to a device; 16 bits for all but the decay of the scan's state, which would not move any more."""
        move = lambda tensor: tensor.to(device, DTYPES[dtype] if tensor.is_floating_point() else None)
        self.p = {name: value.to(device) if name.endswith("a_log") else move(value) for name, value in self.p.items()}
        self.first_rows = [rows.to(device) for rows in self.first_rows]
        self.folded, self.folded_offsets, self.feature_weight = map(move, (self.folded, self.folded_offsets, self.feature_weight))
        return self

    @staticmethod
    def stored(name, value):
        linear = value.dim() == 2 and not name.endswith(TABLES)
        return (value.T if linear else value).contiguous()

    def fold_tables(self):
        """One table per id column, already multiplied by its share of the first layer."""
        weight, width = self.p["input.weight"], self.config["embedding"]
        tables = [self.p["action_states"]] * ACTION_STATE_IDS + [self.p["characters"]] * CHARACTER_IDS
        shares = weight[:, FEATURES:].split(width, 1)
        self.folded = torch.cat([table @ share.T for table, share in zip(tables, shares)])
        rows = torch.tensor([0] + [len(table) for table in tables[:-1]])
        self.folded_offsets = rows.cumsum(0)
        self.feature_weight = weight[:, :FEATURES].contiguous()

    def linear(self, x, name):
        return F.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def observation(self, features, ids):
        if self.teacher_forced:
            states = F.embedding(ids[..., :ACTION_STATE_IDS], self.p["action_states"]).flatten(-2)
            characters = F.embedding(ids[..., ACTION_STATE_IDS:], self.p["characters"]).flatten(-2)
            x = self.linear(torch.cat([features, states, characters], -1), "input")
        else:
            features = features.to(self.feature_weight.dtype)
            x = F.linear(features, self.feature_weight, self.p["input.bias"]) + F.embedding(ids + self.folded_offsets, self.folded).sum(-2)
        return self.layer_norm_gelu(x, "input_norm")

    def layer_norm_gelu(self, x, name):
        return F.gelu(F.layer_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.p[f"{name}.bias"], EPS))

    def rms_norm(self, x, name):
        if torch.onnx.is_in_onnx_export():  # the exporter does not know the operator
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.p[f"{name}.weight"]
        return F.rms_norm(x, x.shape[-1:], self.p[f"{name}.weight"], EPS)

    def backbone(self, x, state):
        layers = self.config["backbone"]["layers"]
        if self.kind == "mlp":
            for i in range(len(layers) - 1):
                x = self.layer_norm_gelu(self.linear(x, f"blocks.{i}.linear"), f"blocks.{i}.norm")
            return x, ()
        after = []
        for i in range(layers):
            if self.streaming:
                y, *own = self.mamba_step(x, *state[2 * i : 2 * i + 2], f"blocks.{i}")
                after += own
            else:
                y = self.mamba_window(x, f"blocks.{i}")
            x = x + y
        return self.rms_norm(x, "norm"), tuple(after)

    def selection(self, u, name):
        rank = self.p[f"{name}.dt_proj.weight"].shape[1]
        states = self.p[f"{name}.a_log"].shape[1]
        low, b, c = self.linear(u, f"{name}.x_proj").split([rank, states, states], -1)
        dt = F.softplus(self.linear(low, f"{name}.dt_proj"))
        decay = torch.exp(dt[..., None] * -torch.exp(self.p[f"{name}.a_log"]))
        return decay, (dt * u)[..., None] * b[..., None, :], c

    def mamba_step(self, x, conv, h, name):
        """x [B, D], the last K - 1 frames before the convolution [B, K - 1, E], h [B, E, N]."""
        u, z = self.linear(self.rms_norm(x, f"{name}.norm"), f"{name}.in_proj").chunk(2, -1)
        window = torch.cat([conv, u[:, None]], 1)
        u = F.silu((window * self.p[f"{name}.conv.weight"]).sum(1) + self.p[f"{name}.conv.bias"])
        decay, drive, c = self.selection(u, name)
        h = decay * h + drive
        y = (h @ c[..., None].to(h.dtype))[..., 0].to(u.dtype) + self.p[f"{name}.d"] * u
        return self.linear(y * F.silu(z), f"{name}.out_proj"), window[:, 1:], h

    def mamba_window(self, x, name):
        """x [B, T, D], from zero state; the scan is a loop over frames."""
        u, z = self.linear(self.rms_norm(x, f"{name}.norm"), f"{name}.in_proj").chunk(2, -1)
        taps = self.p[f"{name}.conv.weight"]
        u = F.conv1d(F.pad(u.transpose(1, 2), (len(taps) - 1, 0)), taps.t()[:, None], self.p[f"{name}.conv.bias"], groups=u.shape[-1]).transpose(1, 2)
        u = F.silu(u)
        decay, drive, c = self.selection(u, name)
        h, states = torch.zeros_like(drive[:, 0]), []
        for t in range(u.shape[1]):
            h = decay[:, t] * h + drive[:, t]
            states.append(h)
        y = (torch.stack(states, 1) @ c[..., None].to(h.dtype))[..., 0].to(u.dtype) + self.p[f"{name}.d"] * u
        return self.linear(y * F.silu(z), f"{name}.out_proj")

    def rows(self, table, chosen, first_rows):
        """The sum of the table rows that the classes of a component's columns name."""
        if len(first_rows) == 1:
            return F.embedding(chosen[..., 0], table)
        return F.embedding(chosen + first_rows, table).sum(-2)

    def choose(self, logits, wanted, uniform, classes):
        if self.teacher_forced:
            return wanted
        logits = logits.float()
        if classes == 2:
            picked = (uniform >= 1 - torch.sigmoid(logits)).long()
        else:
            below = torch.softmax(logits, -1).cumsum(-1) <= uniform
            picked = below.long().sum(-1, keepdim=True).clamp(max=classes - 1)
        return torch.where(wanted < 0, picked, wanted)

    def heads(self, trunk, previous, wanted, uniform):
        autoregressive = self.config["heads"] == "autoregressive"
        all_logits, chosen = [], []
        if autoregressive:
            stream = self.linear(trunk, "heads.stream")
        else:
            hidden = F.relu(self.linear(trunk, "heads.hidden")).split(INDEPENDENT_WIDTHS, -1)
        for i, (key, start, columns, classes) in enumerate(COMPONENTS):
            own = slice(start, start + columns)
            if autoregressive:
                h = self.linear(stream, f"heads.{key}.hidden")
                h = F.relu(h + self.rows(self.p[f"heads.{key}.previous"], previous[..., own], self.first_rows[i]))
                logits = self.linear(h, f"heads.{key}.out")
            else:
                logits = self.linear(hidden[i], f"heads.{key}")
            picked = self.choose(logits, wanted[..., own], uniform[..., own], classes)
            if autoregressive and i + 1 < len(COMPONENTS):
                stream = stream + self.rows(self.p[f"heads.{key}.chosen"], picked, self.first_rows[i])
            all_logits.append(logits)
            chosen.append(picked)
        return torch.cat(all_logits, -1), torch.cat(chosen, -1)

    def forward(self, features, ids, previous_action, action, uniform, *state):
        """`action` below zero: choose that component. Gives logits, value, action and the state behind the frame."""
        trunk, state = self.backbone(self.observation(features, ids), state)
        value = self.linear(F.relu(self.linear(trunk.detach(), "value.0")), "value.1")
        logits, action = self.heads(trunk, previous_action, action, uniform)
        return (logits, value, action, *state)

    def initial_state(self, batch):
        if self.kind == "mlp" or not self.streaming:
            return ()
        state = []
        for i in range(self.config["backbone"]["layers"]):
            taps, inner = self.p[f"blocks.{i}.conv.weight"].shape
            states = self.p[f"blocks.{i}.a_log"].shape[1]
            conv, a_log = self.p[f"blocks.{i}.conv.weight"], self.p[f"blocks.{i}.a_log"]
            state += [conv.new_zeros(batch, taps - 1, inner), a_log.new_zeros(batch, inner, states)]
        return tuple(state)


def negative_log_likelihood(logits, action):
    """Of actions [..., 13] by logits [..., 81], in nats a frame [...]."""
    total, start = 0.0, 0
    for _, column, columns, classes in COMPONENTS:
        width = columns if classes == 2 else classes
        own, start = logits[..., start : start + width], start + width
        if classes == 2:
            target = action[..., column : column + columns].to(own.dtype)
            total = total + F.binary_cross_entropy_with_logits(own, target, reduction="none").sum(-1)
        else:
            target = action[..., column]
            total = total + F.cross_entropy(own.flatten(0, -2), target.flatten().long(), reduction="none").reshape(target.shape)
    return total
