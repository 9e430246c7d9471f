"""Bundles and inputs that the tests share."""

import functools
import json
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


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    header, data = {}, b""
    for name, array in arrays.items():
        dtype = {"float32": "F32", "uint32": "U32"}[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    stored = path.read_bytes()
    start = 8 + int.from_bytes(stored[:8], "little")
    arrays = {}
    for name, entry in json.loads(stored[8:start]).items():
        if name != "__metadata__":
            (begin, end), dtype = entry["data_offsets"], {"F32": "<f4", "U32": "<u4"}[entry["dtype"]]
            arrays[name] = np.frombuffer(stored[start + begin : start + end], dtype).reshape(entry["shape"])
    return arrays
