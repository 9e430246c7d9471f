"""Plain records: what a model eats, gives and carries, and what an engine has done."""

from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt


class Options(TypedDict, total=False):
    """How an engine is set up; everything is allocated at the start."""

    threads: int
    """Threads that compute a batch; 1 to 1024, by default 1."""
    sessions: int
    """Sessions that can be open at the same time; 1 to 2**20, by default 256."""
    queue: int
    """Requests that may wait; more are refused. By default 256; a bound of ``sessions`` refuses none."""
    max_batch: int
    """Most requests that run together; by default 32."""
    max_wait: float | None
    """Seconds, at most 1, that the engine may hold back a request for a fuller batch; by default it runs what waits."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TensorSpec:
    """One tensor of a signature."""

    name: str
    dtype: np.dtype[Any]
    """``float32`` or ``uint32``."""
    shape: tuple[int, ...]
    """Of one row: the axes behind that of the batch."""
    default: npt.NDArray[Any] | None
    """What an input holds until it is set; ``None`` where it must be set before the first step."""
    within: tuple[float, float] | None
    """The range of floats, its end left out; ``None`` for all finite numbers."""
    below: tuple[int, ...] | None
    """The limit of each column of indices; ``None`` where anything goes."""
    can_sample: bool
    """Whether ``SAMPLE`` can stand in place of an index: the model chooses then."""
    meaning: str
    """What the values mean, in words; may be empty."""

    @property
    def required(self) -> bool:
        """Whether, as an input, it must be set before the first step."""
        return self.default is None


@dataclass(frozen=True, eq=False, kw_only=True)
class Signature:
    """What a model eats, gives and carries."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[TensorSpec, ...]


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times in seconds. Percentiles are off by at most 1/64."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What an engine has done since its start."""

    open: int
    """Sessions open now."""
    steps: int
    """Steps made, those of lone sessions on their own threads counted."""
    lone_steps: int
    """Steps of lone sessions on their own threads: they have no place in the batches."""
    batches: int
    """Batches run."""
    batch_sizes: tuple[int, ...]
    """How many batches had ``i + 1`` requests."""
    overloaded: int
    """Requests refused because too many waited."""
    expired: int
    """Requests whose deadline was over before they began."""
    late: int
    """Steps that were begun before their deadline and over only after it."""
    cancelled: int
    """Requests that their sessions no longer wanted."""
    failed: int
    """Requests in which the model failed."""
    queue: Times
    """From a request to the start of its batch, by request."""
    execute: Times
    """Running a batch, by batch."""
    reply: Times
    """From the end of a batch until the session has its answer, by request."""
    lone: Times
    """Running a lone session's step on its own thread."""
