"""What the peers' libraries share: the layout of the game policy's inputs and outputs, and how a call walks through frames."""

import contextlib
import importlib
import importlib.metadata
import json
import os
import pathlib

import numpy
import safetensors.numpy

INPUTS = ("features", "ids", "previous_action", "action", "uniform")
OUTPUTS = ("logits", "value", "action")
FEATURES = 288
ACTION_STATE_IDS, CHARACTER_IDS = 4, 2
# Key, first of the action's columns, columns, classes of a column.
COMPONENTS = [("buttons", 0, 8, 2), ("main_x", 8, 1, 17), ("main_y", 9, 1, 17), ("c_x", 10, 1, 17), ("c_y", 11, 1, 17), ("shoulder", 12, 1, 5)]
INDEPENDENT_WIDTHS = [64, 64, 64, 64, 64, 32]
EPS = 1e-5
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


class Unavailable(Exception):
    """A case that cannot be had here, for the reason in its text. The others can."""


def require(package):
    """The package, or Unavailable with what to do."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise Unavailable(f"the Python package {package} cannot be imported: {error}") from error
        raise Unavailable(f"the Python package {package} is not installed; candle-bench/peers/setup.sh installs it") from error
    except ImportError as error:
        raise Unavailable(f"the Python package {package} cannot be imported: {error}") from error


def version(package):
    """None where it is missing. Nothing is imported: a library that does not compute must not take memory."""
    distributions = importlib.metadata.packages_distributions().get(package)
    return importlib.metadata.version(distributions[0]).split("+")[0] if distributions else None


CPUS = sorted(os.sched_getaffinity(0))


def allow_cpus(number=None):
    """Lets this process and all its threads run on so many of its CPUs, or on all of them again."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), CPUS[:number])


def config_of(bundle):
    return json.loads((pathlib.Path(bundle) / "config.json").read_text())


def backbone_of(bundle):
    """The architecture and the kind of its backbone, one of the two that the peers have, without count tables."""
    config = config_of(bundle)["model"]
    kind = config["backbone"]["kind"]
    if kind not in ("mlp", "mamba"):
        raise Unavailable(f"the peers have no backbone {kind}, only mlp and mamba")
    if config.get("prior"):
        raise Unavailable("the peers have no policy over count tables (model.prior)")
    return config, kind


def read_inputs(case):
    """Indices become i64, in which the u32 that means "choose" is -1."""
    tensors = safetensors.numpy.load_file(case["inputs"])
    arrays = [tensors[name] for name in INPUTS]
    if arrays[0].shape[0] != case["batch"]:
        raise ValueError(f"inputs have {arrays[0].shape[0]} rows, the case says {case['batch']}")
    return [a.astype(numpy.int32).astype(numpy.int64) if a.dtype == numpy.uint32 else a.astype(numpy.float32) for a in arrays]


class Streaming:
    """Calls that walk through the frames of the inputs and carry the state on."""

    def __init__(self, case):
        inputs = read_inputs(case)
        self.count, self.frame = inputs[0].shape[1], 0
        self.frames = [[numpy.ascontiguousarray(a[:, t]) for a in inputs] for t in range(self.count)]

    def next(self):
        t, self.frame = self.frame, (self.frame + 1) % self.count
        return t

    def array(self, output):
        return output.numpy()

    def first_outputs(self):
        outputs = [[self.array(o).copy() for o in self.call()] for _ in range(self.count)]
        return {name: numpy.stack([o[i] for o in outputs], 1) for i, name in enumerate(OUTPUTS)}
