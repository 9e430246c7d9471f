"""Runs a printed network over sequences, frame by frame: PROGRAM NETWORK PARAMETERS INPUTS OUTPUTS.

INPUTS holds the inputs [sequences, frames, ...] by name and `resets` [sequences, frames]; OUTPUTS gets the outputs as raw f32, each as
[frames, sequences, ...], in the order of the program.
"""

import pathlib
import runpy
import sys

import numpy as np

_, program, network, parameters, inputs, outputs = sys.argv
program = runpy.run_path(program)
W, inputs = program["load"](parameters), program["load"](inputs)
resets = inputs.pop("resets")
shapes = {name.removeprefix("state."): values.shape for name, values in list(inputs.items()) if name.startswith("state.")}
state, frames = {name: inputs.pop(f"state.{name}") for name in shapes}, []
for t in range(resets.shape[1]):
    keep = (resets[:, t] == 0).astype(np.float32)
    state = {name: values * keep.reshape(-1, *[1] * (values.ndim - 1)) for name, values in state.items()}
    answers, state = program[network](W, {name: values[:, t] for name, values in inputs.items()}, state)
    for name, values in [*answers.items(), *state.items()]:
        assert np.asarray(values).dtype in (np.float32, np.int64, np.uint32), f"{name} is {values.dtype}"
    frames.append(answers)
raw = [np.stack([frame[name] for frame in frames]).astype("<f4").tobytes() for name in frames[0]]
pathlib.Path(outputs).write_bytes(b"".join(raw))
