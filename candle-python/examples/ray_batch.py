"""Batch inference with Ray Data: `python ray_batch.py BUNDLE INPUT OUTPUT [--actors N] [--batch B]`.

A row of the Parquet files in INPUT is one frame: the whole numbers `episode` and `frame` (0, 1, ... of its episode), and a list of numbers for
every input of the network. Inputs with a default may be left out. Rows can lie in any order and in any file. OUTPUT, which must not exist yet,
gets a row for each of them: `episode`, `frame` and a list for every output. Every episode begins in the network's initial state.

The answers are the same bytes for any number of actors and any cut of the table into blocks, on processors of one kind: an episode's number
alone says in which row of a pass of B rows it runs. That matters because a row may be rounded differently in another place or a wider pass.
"""

import argparse
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import ray
from ray.data.expressions import col, lit

import candle_models

# An actor whose process or machine dies is started again, and what it had not answered is run anew. A group that kills its actor every time
# ends the run instead of going round for ever.
RETRIES = {"max_restarts": 5, "max_task_retries": 5}


def column_type(spec: candle_models.TensorSpec) -> pa.DataType:
    """The type of a tensor's column: lists of fixed sizes, one in the other for each axis."""
    return reduce(pa.list_, reversed(spec.shape), pa.from_numpy_dtype(spec.dtype))


def array(table: pa.Table, name: str, kind: pa.DataType) -> np.ndarray:
    """A column as an array `[rows, ...]`. Raises `ValueError` if it is not of that type and cannot be brought to it, or has a null."""
    try:
        values = table[name].cast(kind).combine_chunks()
    except pa.ArrowException as error:
        raise ValueError(f"column {name}: {error}") from error
    shape, nulls = [len(values)], values.null_count
    while pa.types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        values = values.flatten()
        nulls += values.null_count
    if nulls:
        raise ValueError(f"column {name}: expected a value everywhere, found {nulls} nulls")
    return values.to_numpy().reshape(shape)


def check_frames(episode: np.ndarray, frame: np.ndarray) -> None:
    """Raises `ValueError` unless the frames of every episode, in order, are 0, 1, ...: without one, the states behind it would be wrong."""
    if episode[0] < 0 or episode[-1] >= 2**53:  # Ray divides them as floats, towards 0.
        raise ValueError(f"column episode: expected numbers from 0 to 2**53, found {episode[0]} to {episode[-1]}")
    _, first, count = np.unique(episode, return_index=True, return_counts=True)
    expected = np.arange(len(frame)) - np.repeat(first, count)
    if (frame != expected).any():
        row = np.argmax(frame != expected)
        raise ValueError(f"episode {episode[row]}: expected frame {expected[row]}, found frame {frame[row]}")


class Episodes:
    """An actor: a runner of B rows on a bundle that is opened once."""

    def __init__(self, bundle: str, columns: list[str], batch: int) -> None:
        self.runner, self.batch = candle_models.Bundle(bundle).runner(batch), batch
        self.inputs = {spec.name: column_type(spec) for spec in self.runner.signature.inputs if spec.name in columns}

    def __call__(self, table: pa.Table) -> pa.Table:
        """Answers a group: all frames of at most B episodes, whose numbers are the same when divided by B."""
        table = table.sort_by([("episode", "ascending"), ("frame", "ascending")])
        episode, frame = array(table, "episode", pa.int64()), array(table, "frame", pa.int64())
        check_frames(episode, frame)
        values = {name: array(table, name, kind) for name, kind in self.inputs.items()}
        for name, value in values.items():
            self.runner.inputs[name][:] = value[0]  # Rows without an episode compute as well, and nobody reads what.
        answers = {name: np.empty((len(table), *output.shape[1:]), output.dtype) for name, output in self.runner.outputs.items()}
        order = np.argsort(frame, kind="stable")
        for number, rows in enumerate(np.split(order, np.searchsorted(frame[order], np.arange(1, frame.max() + 1)))):
            places = episode[rows] % self.batch
            for name, value in values.items():
                self.runner.inputs[name][places] = value[rows]
            self.runner.step(np.full(self.batch, number == 0))
            for name, answer in answers.items():
                answer[rows] = self.runner.outputs[name][places]
        columns = {name: reduce(pa.FixedSizeListArray.from_arrays, answer.shape[:0:-1], pa.array(answer.ravel())) for name, answer in answers.items()}
        return pa.table({"episode": episode, "frame": frame, **columns})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Runs the episodes of a Parquet table through a bundle, on a Ray cluster.")
    parser.add_argument("bundle", type=Path, help="a folder that every machine of the cluster sees")
    parser.add_argument("input", help="Parquet files of frames")
    parser.add_argument("output", help="a folder of Parquet files, which must not exist yet")
    parser.add_argument("--actors", type=int, default=2, help="processes that compute (default: 2)")
    parser.add_argument("--batch", type=int, default=32, help="episodes that run in step with each other (default: 32)")
    options = parser.parse_args(arguments)
    inputs = candle_models.Bundle(options.bundle).signature.inputs
    frames = ray.data.read_parquet(options.input)
    there = frames.schema().names
    columns = ["episode", "frame", *(spec.name for spec in inputs if spec.required or spec.name in there)]
    if min(options.actors, options.batch) < 1 or not set(columns) <= set(there):
        parser.error(f"expected at least 1 actor, a batch of at least 1 and the columns {columns}, found {there}")
    groups = frames.select_columns(columns).with_column("_group", col("episode") // lit(options.batch)).groupby("_group")
    made, pool = (str(options.bundle.resolve()), columns, options.batch), ray.data.ActorPoolStrategy(size=options.actors)
    # An actor computes on one core, and is booked with half of one: if actors could hold every core, nobody would be left to read the files.
    answers = groups.map_groups(Episodes, fn_constructor_args=made, batch_format="pyarrow", compute=pool, num_cpus=0.5, **RETRIES)
    answers.write_parquet(options.output, mode="error")


if __name__ == "__main__":
    main()
