"""The example of Ray Data on a real cluster of this machine, also when an actor is killed."""

import contextlib
import faulthandler
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "examples")]
from support import MAMBA, bundle  # noqa: E402

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray
    import ray_batch

    # To actors goes the code itself, as it does from a script: on the other machines of a cluster there are no such files.
    for module in [ray_batch, sys.modules[__name__]]:
        ray.cloudpickle.register_pickle_by_value(module)
    MISSING = None
except ImportError as error:
    if "CANDLE_REQUIRE_RAY" in os.environ:
        raise
    MISSING = f"ray[data] cannot be imported: {error}"

# Rows of an odd batch are rounded differently from place to place, so that an episode in a wrong place is seen.
BATCH, EPISODES, FRAMES = 5, 40, 12
# A run that hangs is over after so many seconds.
PATIENCE = 900


class Witness:
    """An actor beside the run, in a process of its own: lets actors begin together, and kills one of them."""

    def __init__(self, actors: int, kills: int) -> None:
        import asyncio

        self.actors, self.kills, self.begun, self.killed, self.all = actors, kills, [], [], asyncio.Event()

    async def begin(self, pid: int) -> None:
        self.begun.append(pid)
        if len(self.begun) >= self.actors:
            self.all.set()
        await self.all.wait()

    async def reached_the_middle(self, pid: int) -> None:
        if len(self.killed) < self.kills:
            self.killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    async def report(self) -> tuple[list[int], list[int]]:
        return self.begun, self.killed


def watched(witness):
    """The example's actor, which tells the witness when it begins and when it has come to the middle of its first episodes of two frames."""

    class Watched(ray_batch.Episodes):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            ray.get(witness.begin.remote(os.getpid()))
            self.runner = Telling(self.runner)

    class Telling:
        def __init__(self, runner):
            self.runner, self.inputs, self.outputs, self.passes = runner, runner.inputs, runner.outputs, 0

        def step(self, reset):
            self.passes = 0 if reset.all() else self.passes + 1
            if self.passes == 1:
                ray.get(witness.reached_the_middle.remote(os.getpid()))
            self.runner.step(reset)

    return Watched


def columns() -> list:
    """The inputs of the table: those that must be set, and one that need not."""
    return [spec for spec in bundle().signature.inputs if spec.required or spec.name == "uniform"]


def draw_episodes() -> dict[int, dict[str, np.ndarray]]:
    """Values `[frames, ...]` by episode and input. Numbers of episodes have gaps, and lengths differ."""
    random, episodes = np.random.default_rng(1), {}
    for episode in random.choice(2 * EPISODES, EPISODES, replace=False):
        values, frames = {}, random.integers(2, FRAMES + 1)
        for spec in columns():
            shape = (frames, *spec.shape)
            drawn = random.integers(0, spec.below, shape) if spec.below else random.uniform(-1, 1, shape)
            values[spec.name] = drawn.astype(spec.dtype)
        episodes[int(episode)] = values
    return episodes


def write_table(episodes: dict[int, dict[str, np.ndarray]], folder: Path) -> "pa.Table":
    """Writes the frames of all episodes in random order into three files of different sizes."""
    lengths = {episode: len(values["ids"]) for episode, values in episodes.items()}
    stacked = {spec.name: np.concatenate([values[spec.name] for values in episodes.values()]) for spec in columns()}
    index = {"episode": np.repeat(list(lengths), list(lengths.values())), "frame": np.concatenate([np.arange(n) for n in lengths.values()])}
    table = pa.table({**index, **{name: list(values) for name, values in stacked.items()}, "other": ["not an input"] * sum(lengths.values())})
    table = table.take(np.random.default_rng(2).permutation(len(table)))
    folder.mkdir()
    for number, (start, stop) in enumerate([(0, 20), (20, 150), (150, len(table))]):
        pq.write_table(table.slice(start, stop - start), folder / f"{number}.parquet")
    return table


def plain_loop(episodes: dict[int, dict[str, np.ndarray]]) -> dict[str, bytes]:
    """What a runner answers to one episode after the other, by output, in the order of episodes and frames."""
    found: dict[str, list[bytes]] = {spec.name: [] for spec in bundle().signature.outputs}
    for episode, values in sorted(episodes.items()):
        runner = bundle().runner(BATCH)
        for frame in range(len(values["ids"])):
            for name, value in values.items():
                runner.inputs[name][:] = value[frame]
            runner.step()
            for name, output in runner.outputs.items():
                found[name].append(output[episode % BATCH].tobytes())
    return {name: b"".join(answers) for name, answers in found.items()}


@unittest.skipIf(MISSING is not None, MISSING)
class Cluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        cls.addClassCleanup(faulthandler.cancel_dump_traceback_later)
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="ray")))
        ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False, _temp_dir=str(folder / "ray"))
        cls.addClassCleanup(ray.shutdown)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # The default, 200, is for tables that fill a cluster.
        context.default_hash_shuffle_parallelism = 8
        cls.folder, cls.episodes = folder, draw_episodes()
        cls.table = write_table(cls.episodes, folder / "in")
        cls.expected = plain_loop(cls.episodes)

    def check(self, output: Path) -> None:
        """Compares every byte of an output with the loop's."""
        found = pq.read_table(output).sort_by([("episode", "ascending"), ("frame", "ascending")])
        index = [(episode, frame) for episode, values in sorted(self.episodes.items()) for frame in range(len(values["ids"]))]
        self.assertEqual(list(zip(found["episode"].to_pylist(), found["frame"].to_pylist())), index)
        self.assertEqual(found.column_names[2:], list(self.expected))
        for spec in bundle().signature.outputs:
            answers = ray_batch.array(found, spec.name, found.schema.field(spec.name).type)
            self.assertEqual((answers.dtype, answers.shape), (spec.dtype, (len(index), *spec.shape)))
            self.assertTrue(answers.tobytes() == self.expected[spec.name], f"{spec.name} differs from the loop's")

    def run_example(self, actors: int, kills: int = 0) -> tuple[list[int], list[int]]:
        """Runs the whole example, checks every byte of its output, and gives the processes that were begun and those that were killed."""
        witness = ray.remote(num_cpus=0)(Witness).remote(actors, kills)
        output = self.folder / self.id()
        with mock.patch.object(ray_batch, "Episodes", watched(witness)):
            ray_batch.main([str(MAMBA), str(self.folder / "in"), str(output), "--actors", str(actors), "--batch", str(BATCH)])
        self.check(output)
        return ray.get(witness.report.remote())

    def test_the_command(self):
        output = self.folder / self.id()
        command = [sys.executable, ray_batch.__file__, MAMBA, self.folder / "in", output, "--batch", str(BATCH)]
        environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check(output)

    def test_one_actor(self):
        begun, _ = self.run_example(actors=1)
        self.assertEqual(len(begun), 1)

    def test_two_actors(self):
        begun, _ = self.run_example(actors=2)
        self.assertEqual(len(set(begun)), 2)

    def test_the_only_actor_is_killed(self):
        begun, killed = self.run_example(actors=1, kills=1)
        self.assertEqual((len(begun), killed), (2, begun[:1]))

    def test_one_of_two_actors_is_killed(self):
        begun, killed = self.run_example(actors=2, kills=1)
        self.assertEqual((len(set(begun)), len(killed)), (3, 1))
        self.assertIn(killed[0], begun[:2])

    def test_an_actor_that_is_killed_every_time_ends_the_run(self):
        witness = ray.remote(num_cpus=0)(Witness).remote(1, kills=sys.maxsize)
        with mock.patch.multiple(ray_batch, Episodes=watched(witness), RETRIES=dict.fromkeys(ray_batch.RETRIES, 1)):
            with self.assertRaises(ray.exceptions.RayActorError):
                ray_batch.main([str(MAMBA), str(self.folder / "in"), str(self.folder / self.id()), "--actors", "1"])
        begun, killed = ray.get(witness.report.remote())
        self.assertEqual((len(begun), killed), (2, begun))

    def test_a_table_with_a_gap_is_refused(self):
        folder = self.folder / "gap"
        folder.mkdir()
        episode = min(self.episodes)
        there = [not (row["episode"] == episode and row["frame"] == 0) for row in self.table.select(["episode", "frame"]).to_pylist()]
        pq.write_table(self.table.filter(there), folder / "0.parquet")
        with self.assertRaisesRegex(ValueError, f"episode {episode}: expected frame 0, found frame 1"):
            ray_batch.main([str(MAMBA), str(folder), str(self.folder / "none"), "--batch", str(BATCH)])

    def test_a_table_without_an_input_is_refused(self):
        folder = self.folder / "narrow"
        folder.mkdir()
        pq.write_table(self.table.drop_columns(["features"]), folder / "0.parquet")
        with contextlib.redirect_stderr(io.StringIO()) as text, self.assertRaises(SystemExit):
            ray_batch.main([str(MAMBA), str(folder), str(self.folder / "none")])
        self.assertIn("'frame', 'features', 'ids', 'uniform'], found ['episode', 'frame', 'ids', 'uniform', 'other']", text.getvalue())


@unittest.skipIf(MISSING is not None, MISSING)
class Refusals(unittest.TestCase):
    """What an actor refuses, without a cluster."""

    def test_columns_and_values(self):
        episodes = {0: {spec.name: np.zeros((2, *spec.shape), spec.dtype) for spec in columns()}}
        with tempfile.TemporaryDirectory() as folder:
            table = write_table(episodes, Path(folder, "in")).sort_by("frame")
        actor = ray_batch.Episodes(str(MAMBA), table.column_names, BATCH)
        self.assertEqual(len(actor(table)), 2)
        width, other = len(table["features"][0]), table["features"][1].as_py()
        changes = {
            ("features", "column features: .*expected size"): [other[1:], other],
            ("features", "column features: expected a value everywhere, found 1 nulls"): [None, other],
            ("features", "column features: expected a value everywhere, found 2 nulls"): [[None, None, *other[2:]], other],
            ("features", "tensor features: expected finite numbers, found NaN in column 0"): [other, [np.nan] * width],
            ("ids", "column ids: Integer value -1 not in range"): [[-1] * 6] * 2,
            ("ids", "tensor ids: expected an index up to 398, found 100000 in column 0"): [[100_000] * 6] * 2,
            ("frame", "episode 0: expected frame 1, found frame 0"): [0, 0],
            ("frame", "episode 0: expected frame 1, found frame 2"): [0, 2],
            ("episode", "column episode: expected numbers from 0 to .*, found -1 to 0"): [-1, 0],
            ("episode", "column episode: expected numbers from 0 to .*, found 0 to 9007199254740992"): [0, 2**53],
            ("episode", "column episode: .* was truncated"): [0.5, 0.5],
        }
        for (name, text), values in changes.items():
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                actor(table.set_column(table.column_names.index(name), name, pa.array(values)))
        self.assertEqual(len(actor(table)), 2)


if __name__ == "__main__":
    unittest.main()
