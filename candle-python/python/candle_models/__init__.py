"""Small networks for agents and radio that answer in microseconds.

``open`` starts an engine on a bundle. Every agent has a session of its own: it writes its inputs in place, steps once a frame, reads its
outputs, and the model's state stays in between::

    import candle_models

    with candle_models.open("weights/policy-mlp") as engine, engine.session() as agent:
        agent.inputs["features"][:] = 0.1
        agent.inputs["ids"][:] = 14
        agent.step()
        print(agent.outputs["action"])
"""

from os import PathLike
from typing import Unpack

from ._errors import (
    BundleError,
    BusyError,
    CandleError,
    CapacityError,
    ClosedError,
    DeadlineExceeded,
    FileError,
    InputError,
    ModelError,
    OverloadedError,
    StateLostError,
)
from ._native import SAMPLE, Bundle, Engine, Runner, Session
from ._records import Options, Signature, Stats, TensorSpec, Times

__all__ = [
    "Bundle",
    "BundleError",
    "BusyError",
    "CandleError",
    "CapacityError",
    "ClosedError",
    "DeadlineExceeded",
    "Engine",
    "FileError",
    "InputError",
    "ModelError",
    "Options",
    "OverloadedError",
    "Runner",
    "SAMPLE",
    "Session",
    "Signature",
    "StateLostError",
    "Stats",
    "TensorSpec",
    "Times",
    "open",
]


def open(path: str | PathLike[str], network: str | None = None, **options: Unpack[Options]) -> Engine:
    """Loads a bundle and starts an engine on one of its networks, by default the one that is stepped frame by frame.

    Raises ``FileError``, ``BundleError`` or ``InputError``: if the bundle is missing or damaged, or an option is out of range.
    """
    return Bundle(path, network).engine(**options)
