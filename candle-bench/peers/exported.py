"""A streaming step on the file that candle-models exports: every name, width and type is the file's, so that any network can be run.

Inputs keep their names, states are `state.NAME` before the frame and `after.NAME` behind it, outputs are `output.NAME`; the first axis is the
batch. Indices are 64-bit integers of the same values.
"""

import numpy
import safetensors.numpy


def wide(values):
    return values.astype(numpy.int64) if values.dtype == numpy.uint32 else values


class Exported:
    """Calls that walk through the frames of the inputs. The state goes back and forth between two sets of buffers, so a call copies nothing: for
    every frame and either direction there is one `bound` call, with all its buffers."""

    def __init__(self, case):
        inputs = {name: wide(values) for name, values in safetensors.numpy.load_file(case["inputs"]).items()}
        self.batch, self.count = case["batch"], next(iter(inputs.values())).shape[1]
        frames = [{name: numpy.ascontiguousarray(values[:, t]) for name, values in inputs.items()} for t in range(self.count)]
        states = [{name: numpy.zeros(shape, kind) for name, (shape, kind) in self.states().items()} for _ in range(2)]
        self.outputs = {name: numpy.zeros(shape, kind) for name, (shape, kind) in self.results().items()}
        self.bound, self.turn, self.frame = [], 0, 0
        for frame in frames:
            for before, after in (states, states[::-1]):
                given = frame | {f"state.{name}": values for name, values in before.items()}
                found = {f"output.{name}": values for name, values in self.outputs.items()} | {f"after.{name}": values for name, values in after.items()}
                self.bound.append(self.bind(given, found))

    def call(self):
        self.bound[2 * self.frame + self.turn]()
        self.frame, self.turn = (self.frame + 1) % self.count, 1 - self.turn

    def first_outputs(self):
        seen = []
        for _ in range(self.count):
            self.call()
            seen.append({name: values.copy() for name, values in self.outputs.items()})
        return {name: numpy.stack([frame[name] for frame in seen], 1) for name in self.outputs}
