#!/usr/bin/env python3
"""Searches of mctx on small tabular games, with the random numbers that it drew at the roots: what candle-models is compared with.

    python3 -m venv .venv && .venv/bin/pip install mctx==0.0.71 jax==0.10.2 jaxlib==0.10.2
    .venv/bin/python scripts/mctx-check.py > candle-models/tests/golden/mctx.json

A game has `states` states and is made of integers: `number(seed, kind, state, action)` in [-1, 1) is exact in f32, here and in the tests, which
make the same game of the same seed. Kinds: 0 the state behind an action, 1 reward, 2 logit, 3 value (of action 0), 4 whether the game ends
with an action (below -0.8 it does, of two players), 5 whether the model masks an action (below -0.5 it does, never action 0), 6 whether an
action is illegal at a root (likewise). Between two players the discount is -1, otherwise 0.9; behind an end it is 0, and the value is 0.

mctx breaks ties with a noise of 1e-7 that these games do not need: no two scores are that close, or the searches would differ.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import mctx
import numpy as np

ROOTS = 4


def spread(x):
    x = np.uint64(x) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return int(x ^ (x >> np.uint64(16)))


def bits(seed, kind, state, action):
    x = seed
    for part in (kind, state, action):
        x = spread(x * 0x01000193 + part + 1 & 0xFFFFFFFF)
    return x


def number(seed, kind, state, action):
    return (bits(seed, kind, state, action) >> 16) / 32768 - 1


def game(case):
    seed, states, actions = case["seed"], case["states"], case["actions"]

    def table(kind):
        return np.array([[number(seed, kind, s, a) for a in range(actions)] for s in range(states)], np.float32)

    following = np.array([[bits(seed, 0, s, a) % states for a in range(actions)] for s in range(states)], np.int32)
    reward, logit, value = table(1), 2 * table(2), table(3)[:, 0]
    discount = np.full_like(reward, -1 if case["players"] == 2 else np.float32(0.9))
    ends = (table(4) < -0.8) & (case["players"] == 2)
    discount[ends] = 0
    masked = (table(5) < -0.5) & bool(case["masks"]) & (np.arange(actions) > 0)
    logit[masked] = np.finfo(np.float32).min
    illegal = (table(6) < -0.5) & bool(case["masks"]) & (np.arange(actions) > 0)
    return [jnp.asarray(x) for x in (following, reward, discount, ends, logit, value, illegal)]


def shortest(x):
    return [shortest(y) for y in x] if np.ndim(x) else float(str(np.float32(x)))


def integers(x):
    return np.asarray(x).astype(int).tolist()


def run(case):
    following, reward, discount, ends, logit, value, illegal = game(case)
    at = jnp.arange(ROOTS)

    def recurrent(_, __, action, state):
        behind = following[state, action]
        end = ends[state, action]
        output = mctx.RecurrentFnOutput(
            reward=reward[state, action],
            discount=discount[state, action],
            prior_logits=logit[behind],
            value=jnp.where(end, 0.0, value[behind]),
        )
        return output, behind

    root = mctx.RootFnOutput(prior_logits=2 * jnp.asarray(
        [[number(case["seed"], 2, s, a) for a in range(case["actions"])] for s in range(ROOTS)], jnp.float32), value=value[at], embedding=at)
    key = jax.random.PRNGKey(case["seed"])
    common = dict(params=(), rng_key=key, root=root, recurrent_fn=recurrent, num_simulations=case["simulations"],
                  invalid_actions=illegal[at].astype(jnp.int32), max_depth=case["max_depth"])
    shape = (ROOTS, case["actions"])
    policy = dict(case["method"])
    if policy.pop("kind") == "gumbel":
        noise = jax.random.gumbel(jax.random.split(key)[1], shape, jnp.float32)
        transform = functools.partial(mctx.qtransform_completed_by_mix_value, value_scale=policy["value_scale"],
                                      maxvisit_init=policy["maxvisit_init"], rescale_values=policy["rescale"])
        output = mctx.gumbel_muzero_policy(**common, max_num_considered_actions=policy["max_considered"], qtransform=transform)
    else:
        alpha = jnp.full([shape[1]], policy["dirichlet_alpha"], jnp.float32)
        noise = jax.random.dirichlet(jax.random.split(key, 3)[1], alpha=alpha, shape=(ROOTS,))
        output = mctx.muzero_policy(**common, **policy)
    tree, summary = output.search_tree, output.search_tree.summary()
    expected = {
        "visits": integers(summary.visit_counts),
        "weights": shortest(output.action_weights),
        "values": shortest(summary.value),
        "q": shortest(summary.qvalues),
        # Node for node: what the simulations made.
        "parents": integers(tree.parents),
        "node_visits": integers(tree.node_visits),
        "node_values": shortest(tree.node_values),
    }
    if case["method"]["kind"] == "gumbel":
        expected["actions"] = integers(output.action)
    return case | {"noise": shortest(noise), "expected": expected}


def main():
    gumbel = dict(kind="gumbel", max_considered=16, value_scale=0.1, maxvisit_init=50.0, rescale=True)
    puct = dict(kind="puct", dirichlet_fraction=0.25, dirichlet_alpha=0.3, pb_c_init=1.25, pb_c_base=19652.0, temperature=1.0)
    plain = dict(states=50, actions=4, players=1, masks=False, simulations=24, max_depth=None)
    cases = [
        plain | dict(method=gumbel),
        plain | dict(method=gumbel, actions=18, masks=True, simulations=40),
        plain | dict(method=gumbel | dict(max_considered=5), actions=9, players=2, masks=True, simulations=50),
        plain | dict(method=gumbel, max_depth=3, actions=3, simulations=40),
        plain | dict(method=gumbel | dict(rescale=False, value_scale=1.0), actions=6, players=2),
        plain | dict(method=gumbel, actions=2, simulations=7),
        plain | dict(method=puct),
        plain | dict(method=puct, actions=18, masks=True, simulations=40),
        plain | dict(method=puct, actions=9, players=2, masks=True, simulations=50),
        plain | dict(method=puct, max_depth=2, actions=3, simulations=40),
        plain | dict(method=puct | dict(dirichlet_fraction=0.0, pb_c_init=2.5, pb_c_base=50.0), actions=7, simulations=60),
    ]
    results = [run(case | {"seed": 100 + i}) for i, case in enumerate(cases)]
    json.dump({"mctx": mctx.__version__, "jax": jax.__version__, "cases": results}, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
