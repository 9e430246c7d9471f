#!/usr/bin/env python3
"""The first hundred training steps of the Mamba policy in PyTorch, on the batches and initial weights of candle-train.

    candle-bench/peers/setup.sh                                   # once: the pinned PyTorch
    CANDLE_PARITY=DIR cargo test -p candle-train --features cli --test it parity::dump -- --ignored
    candle-bench/peers/.venv/bin/python candle-train/tests/parity/parity.py DIR [--golden FILE] [--f64]

The dump holds what candle-train's own loader gave (of simulated games, or of the replays that CANDLE_PARITY_REPLAYS names):

    config.json          the run's configuration
    model.safetensors    initial weights
    batches.safetensors  by name [S, B, T, ...]: features, ids, previous_action, action, resets, weights, returns
    losses.json          the loss of every step in candle-train

Written from the papers' formulas and the configuration, not from candle-train's code: schedule (warm-up, then half a cosine), loss,
clipping by the global norm, and AdamW with decay on matrices alone, state carried from step to step and zeroed at resets. The network and
the likelihood of an action are the benchmark's peer, frame by frame. Prints how far the losses are apart and fails above 1e-4. `--f64` runs PyTorch in f64 too, to see
what is rounding. `--golden` keeps PyTorch's f32 losses for the test that needs no Python.
"""

import argparse
import json
import math
import pathlib
import sys

import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "candle-bench" / "peers"))
from policy import Policy, negative_log_likelihood  # noqa: E402

TOLERANCE = 1e-4


def learning_rate(schedule, step, total):
    warmup = min(schedule["warmup"], total // 4)
    if step < warmup:
        return schedule["peak"] * (step + 1) / warmup
    progress = min((step - warmup) / max(total - warmup - 1, 1), 1.0)
    assert schedule["shape"] == "cosine"
    return schedule["peak"] * (schedule["floor"] + (1 - schedule["floor"]) * 0.5 * (1 + math.cos(math.pi * progress)))


def unroll(policy, batch, state):
    """Logits [B, T, 81], values [B, T] and the state behind the last frame."""
    logits, values = [], []
    for t in range(batch["features"].shape[1]):
        keep = 1 - batch["resets"][:, t].to(state[0].dtype)
        state = [s * keep.reshape(-1, *[1] * (s.dim() - 1)) for s in state]
        frame = [batch[name][:, t] for name in ("features", "ids", "previous_action", "action")]
        l, v, _, *state = policy(*frame, torch.zeros(()).expand_as(frame[3]), *state)
        logits.append(l)
        values.append(v[..., 0])
    return torch.stack(logits, 1), torch.stack(values, 1), state


def train(directory, dtype):
    run = json.loads((directory / "config.json").read_text())
    batches = safetensors.torch.load_file(directory / "batches.safetensors")
    batches = {name: t.to(dtype) if t.is_floating_point() else t.long() for name, t in batches.items()}
    total, lanes = batches["features"].shape[:2]
    policy = Policy(directory, streaming=True, training=True)
    policy.p = {name: p.to(dtype).requires_grad_() for name, p in policy.p.items()}
    settings = run["trainer"]["optimiser"]
    decayed = lambda name, p: p.dim() >= 2 and not name.endswith("a_log")
    groups = [
        {"params": [p for name, p in policy.p.items() if decayed(name, p)], "weight_decay": settings["weight_decay"]},
        {"params": [p for name, p in policy.p.items() if not decayed(name, p)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"])
    state, losses = policy.initial_state(lanes), []
    for step in range(total):
        batch = {name: t[step] for name, t in batches.items()}
        logits, values, state = unroll(policy, batch, state)
        state = [s.detach() for s in state]
        weights = batch["weights"] / batch["weights"].sum()
        loss = (negative_log_likelihood(logits, batch["action"]) * weights).sum()
        loss = loss + run["loss"]["value"] * ((values - batch["returns"]).square() * weights).sum()
        optimizer.zero_grad()
        loss.backward()
        gradients = [p.grad for p in policy.p.values() if p.grad is not None]
        norm = torch.sqrt(sum(g.double().square().sum() for g in gradients)).item()
        if norm > settings["clip"] > 0:
            for g in gradients:
                g.mul_(settings["clip"] / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(run["trainer"]["schedule"], step, total)
        optimizer.step()
        losses.append(loss.item())
    return losses


def apart(found, expected):
    differences = [abs(f - e) / abs(e) for f, e in zip(found, expected, strict=True)]
    worst = max(range(len(differences)), key=differences.__getitem__)
    return differences[worst], worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--golden", type=pathlib.Path)
    parser.add_argument("--f64", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the tensors of a frame are too small for more
    ours = json.loads((arguments.directory / "losses.json").read_text())
    single = train(arguments.directory, torch.float32)
    worst, step = apart(ours, single)
    print(f"{len(ours)} steps, loss {ours[0]:.4f} to {ours[-1]:.4f}")
    print(f"candle-train and PyTorch: at most {worst:.2e} apart, at step {step + 1}")
    if arguments.f64:
        difference, step = apart(single, train(arguments.directory, torch.float64))
        print(f"PyTorch in f32 and in f64: at most {difference:.2e} apart, at step {step + 1}")
    if arguments.golden:
        golden = {"pytorch": torch.__version__.split("+")[0], "losses": single}
        arguments.golden.write_text(json.dumps(golden, indent=0) + "\n")
    sys.exit(f"error: more than {TOLERANCE} apart" if not worst <= TOLERANCE else 0)


if __name__ == "__main__":
    main()
