#!/usr/bin/env python3
"""Reference numbers from PyTorch for the layers of candle-models.

    candle-bench/peers/setup.sh                                   # once: the pinned PyTorch
    candle-bench/peers/.venv/bin/python candle-models/tests/golden/make.py

writes, beside this file and once in f32 and once in f64:

    layers.{f32,f64}.safetensors   layer norm, RMS norm, GELU, SiLU
    gru.{f32,f64}.safetensors      torch.nn.GRU, one layer
    mamba.{f32,f64}.safetensors    two Mamba blocks

Both precisions start from the same numbers (rounded to f32). The loss is always the mean of the squared output.

Names in `layers`: `{op}.x`, `{op}.weight`, `{op}.bias`, `{op}.y`, `{op}.grad.{x,weight,bias}`.
Names in `gru` and `mamba` (`{p}` a parameter, `{s}` a state tensor):

    input.x [B, T, D], input.resets u8 [B, T]   one: the row's state is zeroed before that frame
    state.{s}, final.{s}                        state before the first and after the last frame
    param.{p}, output.y [B, T, .], loss [1]
    grad.input.x, grad.state.{s}, grad.param.{p}
    adamw.param.{p}, adamw.loss [10]            after ten steps on the same batch; loss[i] is taken before step i

State of Mamba: `layers.{i}.conv` [B, K - 1, E], oldest frame first, and `layers.{i}.ssm` [B, E, N]; of the GRU: `gru` [B, H].
Linear weights are stored [in, out], the convolution's [K, E] with the newest frame last.
"""

import json
import pathlib

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
SEED = 20_011
EPS = 1e-5
ADAMW = dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
ADAMW_STEPS = 10

B, T = 2, 7  # batch, frames
D = 17  # model width: the smallest with R = ceil(D / 16) = 2, and no whole number of vector registers
E = 2 * D  # inner width
N = 4  # state size per channel
K = 4  # convolution taps
R = -(-D // 16)  # rank of the step size
H = 8  # GRU hidden size
GRU_IN = 6
MAMBA_LAYERS = 2


class Draws:
    """Numbers drawn in f64, rounded to f32 so that every precision starts from the same ones."""

    def __init__(self, seed, dtype):
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def fix(self, values):
        return values.to(torch.float32).to(self.dtype)

    def normal(self, *shape, scale=1.0, mean=0.0):
        return self.fix(mean + scale * torch.randn(shape, generator=self.generator, dtype=torch.float64))

    def uniform(self, *shape, low, high):
        return self.fix(low + (high - low) * torch.rand(shape, generator=self.generator, dtype=torch.float64))


# --- models: a parameter dictionary, a state dictionary, one frame -----------------------------------------------------


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def mamba_parameters(draw):
    params = {}
    for i in range(MAMBA_LAYERS):
        step = draw.uniform(E, low=0.05, high=0.8)
        states = torch.arange(1, N + 1, dtype=torch.float64)
        params |= {
            f"layers.{i}.norm.weight": draw.normal(D, scale=0.2, mean=1.0),
            f"layers.{i}.in_proj.weight": draw.normal(D, 2 * E, scale=D**-0.5),
            f"layers.{i}.conv.weight": draw.normal(K, E, scale=K**-0.5),
            f"layers.{i}.conv.bias": draw.normal(E, scale=0.3),
            f"layers.{i}.x_proj.weight": draw.normal(E, R + 2 * N, scale=E**-0.5),
            f"layers.{i}.dt_proj.weight": draw.normal(R, E, scale=R**-0.5),
            f"layers.{i}.dt_proj.bias": draw.fix(torch.log(torch.expm1(step.double()))),  # softplus gives `step`
            f"layers.{i}.a_log": draw.fix(states.log() + 0.1 * draw.normal(E, N).double()),
            f"layers.{i}.d": draw.normal(E, scale=0.3, mean=1.0),
            f"layers.{i}.out_proj.weight": draw.normal(E, D, scale=E**-0.5),
        }
    return params


def mamba_state(draw):
    """The last K - 1 frames before the convolution, oldest first, and h."""
    state = {}
    for i in range(MAMBA_LAYERS):
        state |= {f"layers.{i}.conv": draw.normal(B, K - 1, E, scale=0.5), f"layers.{i}.ssm": draw.normal(B, E, N, scale=0.5)}
    return state


def mamba_frame(params, u, state):
    """u [B, D] -> [B, D]: x + Mamba(RMSNorm(x)) per layer; Mamba as in Gu & Dao 2023, section 3.4 and algorithm 2."""
    state = dict(state)
    for i in range(MAMBA_LAYERS):
        p = {name.removeprefix(f"layers.{i}."): value for name, value in params.items() if name.startswith(f"layers.{i}.")}
        x, z = (rms_norm(u, p["norm.weight"]) @ p["in_proj.weight"]).split(E, -1)
        window = torch.cat([state[f"layers.{i}.conv"], x[:, None]], 1)  # [B, K, E]
        x = F.silu((window * p["conv.weight"]).sum(1) + p["conv.bias"])
        dt, b, c = (x @ p["x_proj.weight"]).split([R, N, N], -1)
        dt = F.softplus(dt @ p["dt_proj.weight"] + p["dt_proj.bias"])  # [B, E]
        decay = torch.exp(dt[..., None] * -torch.exp(p["a_log"]))  # [B, E, N]
        h = decay * state[f"layers.{i}.ssm"] + (dt * x)[..., None] * b[:, None]
        y = (h * c[:, None]).sum(-1) + p["d"] * x
        u = u + (y * F.silu(z)) @ p["out_proj.weight"]
        state[f"layers.{i}.conv"], state[f"layers.{i}.ssm"] = window[:, 1:], h
    return u, state


def gru_parameters(draw):
    bound = H**-0.5
    return {
        "gru.input.weight": draw.uniform(GRU_IN, 3 * H, low=-bound, high=bound),
        "gru.input.bias": draw.uniform(3 * H, low=-bound, high=bound),
        "gru.hidden.weight": draw.uniform(H, 3 * H, low=-bound, high=bound),
        "gru.hidden.bias": draw.uniform(3 * H, low=-bound, high=bound),
    }


def gru_state(draw):
    return {"gru": draw.normal(B, H, scale=0.5)}


def gru_frame(params, x, state):
    """x [B, in] -> [B, H] by torch.nn.GRU itself, gates r, z, n."""
    gru = torch.nn.GRU(GRU_IN, H, batch_first=True, dtype=x.dtype)
    theirs = {
        "weight_ih_l0": params["gru.input.weight"].T,
        "bias_ih_l0": params["gru.input.bias"],
        "weight_hh_l0": params["gru.hidden.weight"].T,
        "bias_hh_l0": params["gru.hidden.bias"],
    }
    y, h = torch.func.functional_call(gru, theirs, (x[:, None], state["gru"][None]))
    return y[:, 0], {"gru": h[0]}


def unroll(frame, params, xs, resets, state):
    ys = []
    for t in range(xs.shape[1]):
        keep = (1 - resets[:, t]).to(xs.dtype)
        state = {name: value * keep.view(-1, *[1] * (value.dim() - 1)) for name, value in state.items()}
        y, state = frame(params, xs[:, t], state)
        ys.append(y)
    return torch.stack(ys, 1), state


# --- goldens -------------------------------------------------------------------------------------------------------------


def recurrent_goldens(frame, params, xs, state):
    """Forward, gradients and ten AdamW steps."""
    resets = torch.zeros(B, T, dtype=torch.uint8)
    resets[1, 3] = 1
    out = {"input.x": xs, "input.resets": resets}
    out |= {f"param.{n}": v for n, v in params.items()} | {f"state.{n}": v for n, v in state.items()}
    leaves = {n: v.clone().requires_grad_() for n, v in out.items() if n != "input.resets"}
    params = {n: leaves[f"param.{n}"] for n in params}
    state = {n: leaves[f"state.{n}"] for n in state}
    y, final = unroll(frame, params, leaves["input.x"], resets, state)
    loss = y.square().mean()
    loss.backward()
    out |= {"output.y": y, "loss": loss.reshape(1)} | {f"final.{n}": v for n, v in final.items()}
    out |= {f"grad.{n}": v.grad.clone() for n, v in leaves.items()}

    start = {n: v.detach() for n, v in state.items()}
    optimizer = torch.optim.AdamW(params.values(), **ADAMW)
    losses = []
    for _ in range(ADAMW_STEPS):
        optimizer.zero_grad()
        loss = unroll(frame, params, xs, resets, start)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return out | {"adamw.loss": torch.stack(losses)} | {f"adamw.param.{n}": v for n, v in params.items()}


def gru_goldens(dtype):
    draw = Draws(SEED, dtype)
    return recurrent_goldens(gru_frame, gru_parameters(draw), draw.normal(B, T, GRU_IN), gru_state(draw))


def mamba_goldens(dtype):
    draw = Draws(SEED + 1, dtype)
    return recurrent_goldens(mamba_frame, mamba_parameters(draw), draw.normal(B, T, D), mamba_state(draw))


def layer_goldens(dtype):
    draw = Draws(SEED + 2, dtype)
    weight, bias = draw.normal(D, scale=0.3, mean=1.0), draw.normal(D, scale=0.3)
    rows = draw.normal(5, D, scale=2.0, mean=0.5)
    rows[4] = 0.25  # a constant row: the variance is zero and eps decides
    wide = draw.fix(torch.cat([torch.linspace(-12, 12, 49), torch.tensor([-100.0, -30.0, 30.0, 100.0])]))
    ops = {
        "layer_norm": (lambda x, weight, bias: F.layer_norm(x, (D,), weight, bias, EPS), {"x": rows, "weight": weight, "bias": bias}),
        "rms_norm": (rms_norm, {"x": rows, "weight": weight}),
        "gelu": (lambda x: F.gelu(x), {"x": wide}),
        "silu": (lambda x: F.silu(x), {"x": wide}),
    }
    out = {}
    for name, (op, arguments) in ops.items():
        leaves = {n: v.clone().requires_grad_() for n, v in arguments.items()}
        y = op(**leaves)
        y.square().mean().backward()
        out |= {f"{name}.{n}": v for n, v in arguments.items()} | {f"{name}.y": y}
        out |= {f"{name}.grad.{n}": v.grad for n, v in leaves.items()}
    return out


# --- checks of the references themselves ---------------------------------------------------------------------------------


def check_mamba_against_convolution():
    """Without resets and from zero state, the frame loop equals a form over the whole sequence: depthwise conv1d and
    h_t = sum over s <= t of exp(A * (dt_{s+1} + ... + dt_t)) dt_s B_s x_s."""
    draw = Draws(SEED + 3, torch.float64)
    params, xs = mamba_parameters(draw), draw.normal(B, T, D)
    zeros = {n: torch.zeros_like(v) for n, v in mamba_state(draw).items()}
    loop, _ = unroll(mamba_frame, params, xs, torch.zeros(B, T, dtype=torch.uint8), zeros)
    u = xs
    for i in range(MAMBA_LAYERS):
        p = {name.removeprefix(f"layers.{i}."): value for name, value in params.items() if name.startswith(f"layers.{i}.")}
        x, z = (rms_norm(u, p["norm.weight"]) @ p["in_proj.weight"]).split(E, -1)
        x = F.conv1d(F.pad(x.mT, (K - 1, 0)), p["conv.weight"].T[:, None], p["conv.bias"], groups=E).mT
        x = F.silu(x)
        dt, b, c = (x @ p["x_proj.weight"]).split([R, N, N], -1)
        dt = F.softplus(dt @ p["dt_proj.weight"] + p["dt_proj.bias"])
        clock = dt.cumsum(1)
        elapsed = clock[:, :, None] - clock[:, None]  # [B, t, s, E]
        weight = torch.exp(elapsed[..., None] * -torch.exp(p["a_log"])) * torch.ones(T, T).tril()[None, :, :, None, None]
        h = torch.einsum("btsen,bse,bsn->bten", weight.nan_to_num(), dt * x, b)
        y = torch.einsum("bten,btn->bte", h, c) + p["d"] * x
        u = u + (y * F.silu(z)) @ p["out_proj.weight"]
    torch.testing.assert_close(loop, u, rtol=1e-10, atol=1e-10)


def check_precisions_agree(single, double, name):
    for key, value in single.items():
        if value.is_floating_point():
            # AdamW divides by the root of the squared gradient, so small gradients amplify rounding.
            tolerance = 2e-3 if key.startswith("adamw.param") else 2e-5
            torch.testing.assert_close(value.double(), double[key], rtol=tolerance, atol=tolerance, msg=lambda m: f"{name} {key}: {m}")
            assert value.abs().max() > 0, f"{name} {key} is all zero"


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    check_mamba_against_convolution()
    notes = {
        "generator": "candle-models/tests/golden/make.py",
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
        "seed": SEED,
        "adamw": f"lr {ADAMW['lr']}, betas {ADAMW['betas']}, eps {ADAMW['eps']}, weight decay {ADAMW['weight_decay']} on all, {ADAMW_STEPS} steps",
        "eps": EPS,
    }
    metadata = {"golden": json.dumps(notes, sort_keys=True)}  # one entry: the file's bytes do not depend on hash order
    for name, make in {"layers": layer_goldens, "gru": gru_goldens, "mamba": mamba_goldens}.items():
        goldens = {"f32": make(torch.float32), "f64": make(torch.float64)}
        check_precisions_agree(goldens["f32"], goldens["f64"], name)
        for precision, tensors in goldens.items():
            path = HERE / f"{name}.{precision}.safetensors"
            safetensors.torch.save_file({n: v.detach().contiguous().clone() for n, v in tensors.items()}, path, metadata)
            print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
