"""Bundles and inputs that the tests share."""

import functools
from pathlib import Path

import numpy as np

import candle_models

ROOT = Path(__file__).resolve().parents[2]
MAMBA = ROOT / "weights" / "policy-mamba"


@functools.cache
def bundle() -> candle_models.Bundle:
    """A network with a state."""
    return candle_models.Bundle(MAMBA)


def draw(leading: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """Values of every input that must be set, `[leading..., shape...]`."""
    random = np.random.default_rng(seed)
    values = {}
    for spec in bundle().signature.inputs:
        if not spec.required:
            continue
        shape = leading + spec.shape
        values[spec.name] = random.integers(0, spec.below, shape) if spec.below else random.normal(0, 0.3, shape)
    return values


def fill(inputs, values: dict[str, np.ndarray], place=...) -> None:
    """Writes values into the inputs of a session or runner."""
    for name, value in values.items():
        inputs[name][...] = value[place]


def answers(session) -> dict[str, np.ndarray]:
    """What the session answered, as copies."""
    return {name: value.copy() for name, value in session.outputs.items()}


def assert_same(found, expected) -> None:
    """The same names and, but for rounding, the same values."""
    assert found.keys() == expected.keys(), (found.keys(), expected.keys())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
