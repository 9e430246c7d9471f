#!/usr/bin/env python3
"""How many simulations a second mctx makes with a perceptron of two layers of 128, as `search_speed` of candle-models does.

    python3 -m venv .venv && .venv/bin/pip install mctx==0.0.71 jax==0.10.2 jaxlib==0.10.2
    .venv/bin/python scripts/mctx-speed.py [EMBEDDING]

Compiled as a whole, on all cores that there are; the median of runs and, in brackets, the best.
"""

import sys
import time

import jax
import jax.numpy as jnp
import mctx

ACTIONS, HIDDEN = 4, 128


def parameters(key, inputs, embedding):
    def layer(key, inputs, outputs):
        weight, bias = jax.random.split(key)
        bound = inputs**-0.5
        return jax.random.uniform(weight, (inputs, outputs), minval=-bound, maxval=bound), jax.random.uniform(bias, (outputs,), minval=-bound, maxval=bound)

    keys = jax.random.split(key, 3)
    return layer(keys[0], inputs, HIDDEN), layer(keys[1], HIDDEN, HIDDEN), layer(keys[2], HIDDEN, embedding + ACTIONS + 2)


def network(params, x, embedding):
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    x = x @ weight + bias
    return x[:, :embedding], x[:, embedding:embedding + ACTIONS], x[:, -2], x[:, -1]


def measure(policy, batch, simulations, embedding):
    keys = jax.random.split(jax.random.PRNGKey(1), 3)
    first, dynamics = parameters(keys[0], embedding, embedding), parameters(keys[1], embedding + ACTIONS, embedding)
    board = jax.random.normal(keys[2], (batch, embedding))

    def recurrent(params, _, action, x):
        x, logits, value, reward = network(params, jnp.concatenate([x, jax.nn.one_hot(action, ACTIONS)], 1), embedding)
        return mctx.RecurrentFnOutput(reward=reward, discount=jnp.full_like(reward, 0.99), prior_logits=logits, value=value), x

    @jax.jit
    def plan(key):
        x, logits, value, _ = network(first, board, embedding)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=x)
        output = policy(params=dynamics, rng_key=key, root=root, recurrent_fn=recurrent, num_simulations=simulations)
        return output.action, output.action_weights

    times, begin, number = [], None, 0
    while len(times) < 21 or time.perf_counter() - begin < 1:
        key = jax.random.PRNGKey(number)
        start = time.perf_counter()
        jax.block_until_ready(plan(key))
        if begin is None:
            begin = time.perf_counter()
        else:
            times.append(time.perf_counter() - start)
        number += 1
    times.sort()
    return times[len(times) // 2], times[0]


def main():
    embedding = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    print(f"{ACTIONS} actions, embedding of {embedding}; millions of simulations a second")
    for name, policy in (("gumbel", mctx.gumbel_muzero_policy), ("puct", mctx.muzero_policy)):
        for batch in (1, 32, 256):
            for simulations in (25, 50):
                median, best = (batch * simulations / seconds / 1e6 for seconds in measure(policy, batch, simulations, embedding))
                print(f"{name:>7} {batch:4} {simulations:3}  {median:.3f} ({best:.3f})", flush=True)


if __name__ == "__main__":
    main()
