"""JAX on the CPU: the game policy of a bundle as jitted functions of its parameters, the scan of a Mamba block by `lax.scan`.

The same algebra as policy.py: tables multiplied into the first layer for inference, parameters as they are for training. Dispatch is
synchronous, so that the calling thread computes instead of waiting for another, and a call ends when its outputs are NumPy arrays.

Shapes: B rows, T frames (inputs are [B, T, ...] for a window and [B, ...] for a step), E inner width, N states, K taps.
"""

import functools
import os
import pathlib

import numpy
import safetensors.numpy

from common import ACTION_STATE_IDS, ADAMW, CHARACTER_IDS, COMPONENTS, EPS, FEATURES, INDEPENDENT_WIDTHS, OUTPUTS, Streaming, allow_cpus, backbone_of, read_inputs, require

jax = require("jax")
import jax.numpy as jnp
from jax.extend import backend


def set_threads(case):
    """XLA's pool has as many threads as NPROC says when a client is made, and the calling thread computes beside it: a training step takes 1.8
    threads where NPROC is 1. So the process gets that many CPUs, too. The flag --xla_cpu_multi_thread_eigen=false, often named for this,
    leaves all threads computing."""
    allow_cpus(case["threads"])
    if os.environ.get("NPROC") != str(case["threads"]):
        os.environ["NPROC"] = str(case["threads"])
        backend.clear_backends()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)


class Policy:
    """`training`: tables stay parameters and every action is given. The methods are pure functions of `p`, the parameters by name."""

    def __init__(self, bundle, training=False):
        self.config, self.kind = backbone_of(bundle)
        tensors = safetensors.numpy.load_file(pathlib.Path(bundle) / "model.safetensors")
        self.teacher_forced = training
        self.parameters = tensors if training else fold_tables(tensors, self.config["embedding"])

    def observation(self, p, features, ids):
        if self.teacher_forced:
            states = p["action_states"][ids[..., :ACTION_STATE_IDS]].reshape(*ids.shape[:-1], -1)
            characters = p["characters"][ids[..., ACTION_STATE_IDS:]].reshape(*ids.shape[:-1], -1)
            x = linear(p, jnp.concatenate([features, states, characters], -1), "input")
        else:
            x = features @ p["features.weight"] + p["input.bias"] + p["folded"][ids + p["folded.offsets"]].sum(-2)
        return layer_norm_gelu(p, x, "input_norm")

    def step(self, p, state, features, ids, previous, action, uniform):
        x = self.observation(p, features, ids)
        if self.kind == "mlp":
            return self.outputs(p, self.mlp(p, x), previous, action, uniform), state
        after = []
        for i, (conv, h) in enumerate(state):
            y, own = mamba_step(p, x, conv, h, f"blocks.{i}")
            x, after = x + y, [*after, own]
        return self.outputs(p, rms_norm(p, x, "norm"), previous, action, uniform), after

    def window(self, p, features, ids, previous, action, uniform):
        x = self.observation(p, features, ids)
        if self.kind == "mlp":
            x = self.mlp(p, x)
        else:
            for i in range(self.config["backbone"]["layers"]):
                x = x + mamba_window(p, x, f"blocks.{i}")
            x = rms_norm(p, x, "norm")
        return self.outputs(p, x, previous, action, uniform)

    def mlp(self, p, x):
        for i in range(len(self.config["backbone"]["layers"]) - 1):
            x = layer_norm_gelu(p, linear(p, x, f"blocks.{i}.linear"), f"blocks.{i}.norm")
        return x

    def outputs(self, p, trunk, previous, action, uniform):
        value = linear(p, jax.nn.relu(linear(p, jax.lax.stop_gradient(trunk), "value.0")), "value.1")
        logits, action = self.heads(p, trunk, previous, action, uniform)
        return logits, value, action

    def choose(self, logits, wanted, uniform, classes):
        if self.teacher_forced:
            return wanted
        if classes == 2:
            picked = (uniform >= 1 - jax.nn.sigmoid(logits)).astype(wanted.dtype)
        else:
            below = jnp.cumsum(jax.nn.softmax(logits, -1), -1) <= uniform
            picked = jnp.minimum(below.sum(-1, keepdims=True), classes - 1).astype(wanted.dtype)
        return jnp.where(wanted < 0, picked, wanted)

    def heads(self, p, trunk, previous, wanted, uniform):
        autoregressive = self.config["heads"] == "autoregressive"
        all_logits, chosen = [], []
        if autoregressive:
            stream = linear(p, trunk, "heads.stream")
        else:
            hidden = jnp.split(jax.nn.relu(linear(p, trunk, "heads.hidden")), numpy.cumsum(INDEPENDENT_WIDTHS)[:-1], -1)
        for i, (key, start, columns, classes) in enumerate(COMPONENTS):
            own = slice(start, start + columns)
            first_rows = numpy.arange(columns) * classes
            if autoregressive:
                h = linear(p, stream, f"heads.{key}.hidden") + p[f"heads.{key}.previous"][previous[..., own] + first_rows].sum(-2)
                logits = linear(p, jax.nn.relu(h), f"heads.{key}.out")
            else:
                logits = linear(p, hidden[i], f"heads.{key}")
            picked = self.choose(logits, wanted[..., own], uniform[..., own], classes)
            if autoregressive and i + 1 < len(COMPONENTS):
                stream = stream + p[f"heads.{key}.chosen"][picked + first_rows].sum(-2)
            all_logits.append(logits)
            chosen.append(picked)
        return jnp.concatenate(all_logits, -1), jnp.concatenate(chosen, -1)

    def initial_state(self, batch):
        if self.kind == "mlp":
            return []
        state = []
        for i in range(self.config["backbone"]["layers"]):
            (taps, inner), states = self.parameters[f"blocks.{i}.conv.weight"].shape, self.parameters[f"blocks.{i}.a_log"].shape[1]
            state.append((jnp.zeros((batch, taps - 1, inner)), jnp.zeros((batch, inner, states))))
        return state

    def loss(self, p, features, ids, previous, action, uniform):
        """Of the given actions, in nats a frame."""
        logits, _, _ = self.window(p, features, ids, previous, action, uniform)
        return negative_log_likelihood(logits, action).mean()


def fold_tables(tensors, width):
    """One table per id column, already multiplied by its share of the first layer. Linear weights are [in, out]."""
    tensors = dict(tensors)
    weight, tables = tensors.pop("input.weight"), [tensors["action_states"]] * ACTION_STATE_IDS + [tensors["characters"]] * CHARACTER_IDS
    shares = [weight[FEATURES + i * width :][:width] for i in range(len(tables))]
    tensors["folded"] = numpy.concatenate([table @ share for table, share in zip(tables, shares)])
    tensors["folded.offsets"] = numpy.cumsum([0] + [len(table) for table in tables[:-1]]).astype(numpy.int32)
    tensors["features.weight"] = weight[:FEATURES]
    return tensors


def linear(p, x, name):
    y, bias = x @ p[f"{name}.weight"], p.get(f"{name}.bias")
    return y if bias is None else y + bias


def layer_norm_gelu(p, x, name):
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPS)
    return jax.nn.gelu(x * p[f"{name}.weight"] + p[f"{name}.bias"], approximate=False)


def rms_norm(p, x, name):
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPS) * p[f"{name}.weight"]


def selection(p, u, name):
    """Step sizes [..., E], input and output projections [..., N]."""
    rank, states = p[f"{name}.dt_proj.weight"].shape[0], p[f"{name}.a_log"].shape[1]
    low, b, c = jnp.split(linear(p, u, f"{name}.x_proj"), [rank, rank + states], -1)
    return jax.nn.softplus(linear(p, low, f"{name}.dt_proj")), b, c


def transition(p, dt, u, b, name):
    """What the state [..., E, N] is multiplied by from one frame to the next, and what is added to it."""
    return jnp.exp(dt[..., None] * -jnp.exp(p[f"{name}.a_log"])), (dt * u)[..., None] * b[..., None, :]


def mamba_step(p, x, conv, h, name):
    """x [B, D], the last K - 1 frames before the convolution [B, K - 1, E], h [B, E, N]."""
    u, z = jnp.split(linear(p, rms_norm(p, x, f"{name}.norm"), f"{name}.in_proj"), 2, -1)
    window = jnp.concatenate([conv, u[:, None]], 1)
    u = jax.nn.silu((window * p[f"{name}.conv.weight"]).sum(1) + p[f"{name}.conv.bias"])
    dt, b, c = selection(p, u, name)
    decay, drive = transition(p, dt, u, b, name)
    h = decay * h + drive
    y = (h @ c[..., None])[..., 0]
    return linear(p, (y + p[f"{name}.d"] * u) * jax.nn.silu(z), f"{name}.out_proj"), (window[:, 1:], h)


def mamba_window(p, x, name):
    """x [B, T, D], from zero state. The loop over frames has nothing in it but the recurrence, and is not unrolled: exponentials and sums over
    the states in it take twice the time."""
    u, z = jnp.split(linear(p, rms_norm(p, x, f"{name}.norm"), f"{name}.in_proj"), 2, -1)
    taps, frames = p[f"{name}.conv.weight"], u.shape[1]
    padded = jnp.pad(u, ((0, 0), (len(taps) - 1, 0), (0, 0)))
    u = jax.nn.silu(sum(padded[:, k : k + frames] * taps[k] for k in range(len(taps))) + p[f"{name}.conv.bias"])
    dt, b, c = selection(p, u, name)
    decay, drive = transition(p, dt, u, b, name)
    frames_first = [jnp.moveaxis(values, 1, 0) for values in (decay, drive)]

    def frame(h, transition):
        h = transition[0] * h + transition[1]
        return h, h

    _, states = jax.lax.scan(frame, jnp.zeros_like(drive[:, 0]), frames_first)
    y = (jnp.moveaxis(states, 0, 1) @ c[..., None])[..., 0]
    return linear(p, (y + p[f"{name}.d"] * u) * jax.nn.silu(z), f"{name}.out_proj")


def negative_log_likelihood(logits, action):
    """Of actions [..., 13] by logits [..., 81], in nats a frame [...]."""
    total, start = 0.0, 0
    for _, column, columns, classes in COMPONENTS:
        width = columns if classes == 2 else classes
        own, start = logits[..., start : start + width], start + width
        target = action[..., column : column + columns]
        if classes == 2:
            total = total + (jax.nn.softplus(own) - own * target).sum(-1)
        else:
            total = total - jnp.take_along_axis(jax.nn.log_softmax(own, -1), target, -1)[..., 0]
    return total


def adamw(moments, parameters, gradients):
    """One update as PyTorch's AdamW makes it, without decay. `moments` are the count, the first and the second."""
    count, first, second = moments
    (beta1, beta2), count = ADAMW["betas"], count + 1
    first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, first, gradients)
    second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, second, gradients)
    scale1, scale2 = 1 - beta1**count, 1 - beta2**count
    update = lambda p, m, v: p - ADAMW["lr"] * (m / scale1) / (jnp.sqrt(v / scale2) + ADAMW["eps"])
    return (count, first, second), jax.tree.map(update, parameters, first, second)


def on_host(outputs):
    """Where the call ends: a NumPy array of an output waits for it."""
    return [numpy.asarray(output) for output in outputs]


class Step(Streaming):
    def __init__(self, case):
        super().__init__(case)
        policy = Policy(case["bundle"])
        self.parameters, self.state = jax.device_put(policy.parameters), policy.initial_state(case["batch"])
        self.arrays = [jax.device_put(frame) for frame in self.frames]
        # The state before a step is not read again: its memory takes the state behind it.
        self.forward = jax.jit(policy.step, donate_argnums=1)

    def call(self):
        outputs, self.state = self.forward(self.parameters, self.state, *self.arrays[self.next()])
        return on_host(outputs)

    def array(self, output):
        return output


class Window:
    def __init__(self, case):
        policy = Policy(case["bundle"])
        self.parameters, self.arrays = jax.device_put(policy.parameters), jax.device_put(read_inputs(case))
        self.forward = jax.jit(policy.window)

    def call(self):
        return on_host(self.forward(self.parameters, *self.arrays))

    def first_outputs(self):
        return dict(zip(OUTPUTS, self.call()))


class Train:
    def __init__(self, case):
        policy = Policy(case["bundle"], training=True)
        self.parameters, self.arrays = jax.device_put(policy.parameters), jax.device_put(read_inputs(case))
        zeros = jax.tree.map(jnp.zeros_like, self.parameters)
        self.moments = (jnp.zeros(()), zeros, jax.tree.map(jnp.copy, zeros))

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def update(moments, parameters, *arrays):
            loss, gradients = jax.value_and_grad(policy.loss)(parameters, *arrays)
            return loss, *adamw(moments, parameters, gradients)

        self.update = update

    def call(self):
        loss, self.moments, self.parameters = self.update(self.moments, self.parameters, *self.arrays)
        return float(loss)

    def first_outputs(self):
        return {"loss": numpy.array([self.call(), self.call()], dtype=numpy.float32)}


PASSES = {"step": Step, "window": Window, "train": Train}
