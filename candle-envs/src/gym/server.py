"""Environments of Gymnasium for another process, which steps them all by one byte.

    python3 server.py ID COUNT DESCRIPTOR

DESCRIPTOR is an inherited file without a name. Its memory holds these arrays one behind the other, a row for each environment: seeds (u64), rewards
(f64), classes of actions (i64), numbers of actions (f32), observations (f32), what to do (u8: 0 nothing, 1 a step, 2 a reset, 3 a reset with the seed),
terminated, truncated (u8), and which classes are legal (u8).

The first answer says what the environments show and take, or why there are none. From then on every byte on the standard input has each environment do
what its row says. An answer is the byte `.`, or `!` and a line of JSON. The process ends with the input.
"""

import json
import os
import sys
import traceback

NOTHING, STEP, RESET, SEED = range(4)

# What environments read is empty, and what they print goes where errors go: the other process has the pipes alone, before anything is imported.
requests, answers = pipes = [os.dup(0), os.dup(1)]
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
sys.stdout.reconfigure(line_buffering=True)
# What an environment forks would keep the pipes open when this process is gone.
os.register_at_fork(after_in_child=lambda: [os.close(pipes.pop()) for _ in list(pipes)])


def say(ok, what=None):
    text = (b"." if ok else b"!") + (b"" if what is None else json.dumps(what).encode() + b"\n")
    while text:
        text = text[os.write(answers, text):]


def failure(kind, text, lane=0, during="make"):
    return {"kind": kind, "text": text, "lane": lane, "during": during}


try:
    import mmap

    import gymnasium
    import numpy as np
    from gymnasium import spaces
except ImportError as error:
    say(False, failure("import", f"{type(error).__name__}: {error}"))
    sys.exit()


class Refused(Exception):
    """Something that no environment can help: what kind of thing, and a sentence about it."""


def made(name, lane):
    try:
        # Gymnasium watches one of them for mistakes; to watch all would take longer and say everything several times.
        return gymnasium.make(name, disable_env_checker=None if lane == 0 else True)
    except gymnasium.error.Error as error:
        raise Refused("make", f"{type(error).__name__}: {error}") from None
    except ModuleNotFoundError as error:
        # Before the colon of an id stands the module that registers it; of what that one imports, a traceback says more.
        missing = getattr(error.__cause__, "name", None) or error.name
        if ":" in name and missing == name.split(":")[0]:
            raise Refused("make", f"{type(error).__name__}: {error}") from None
        raise


def one_hot(sizes, starts):
    sizes, starts = np.asarray(sizes).reshape(-1), np.asarray(starts).reshape(-1)
    places = np.concatenate(([0], np.cumsum(sizes)[:-1]))

    def write(observation, row):
        index = np.asarray(observation).reshape(-1) - starts
        if index.shape != sizes.shape or ((index < 0) | (index >= sizes)).any():
            raise ValueError(f"the observation {observation} is not in the observation space")
        row[:] = 0
        row[places + index] = 1

    return int(sizes.sum()), write


def observed(space):
    """How an agent's description says what is seen, and what writes it into a row of numbers."""
    if isinstance(space, spaces.Discrete):
        width, write = one_hot([space.n], [space.start])
        return {"kind": "floats", "name": "observation", "shape": [width]}, write
    if isinstance(space, spaces.MultiDiscrete):
        width, write = one_hot(space.nvec, space.start)
        return {"kind": "floats", "name": "observation", "shape": [width]}, write
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        raise Refused("space", f"the observation space {space} is not an array: gymnasium.wrappers.FlattenObservation or one like it makes it one")
    shape, pixels = list(space.shape) or [1], space.dtype == np.uint8 and isinstance(space, spaces.Box)
    pixels = pixels and bool((space.low == 0).all() and (space.high == 255).all())

    def write(observation, row):
        values = observation if type(observation) is np.ndarray else np.asarray(observation)
        if values.size != row.size:
            raise ValueError(f"an observation has the shape {values.shape}, the observation space {space.shape}")
        if pixels:
            np.divide(values.reshape(-1), 255, out=row, dtype=np.float32)
        else:
            row[:] = values.reshape(-1)

    if len(shape) == 3:
        size = dict(zip(("height", "width", "channels"), shape))
        return {"kind": "grid", "name": "observation", **size, "layers": []}, write
    return {"kind": "floats", "name": "observation", "shape": shape}, write


def acted(space):
    """How an agent's description says what is done, what makes the actions of all environments of their classes and numbers, and
    what makes a row of an `action_mask`, if there are any."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return [{"kind": "discrete", "name": "choice", "classes": int(space.n)}], lambda classes, _: classes[:, 0] + start, np.asarray
    if isinstance(space, spaces.MultiDiscrete):
        sizes, start, shape = [int(n) for n in space.nvec.reshape(-1)], np.asarray(space.start), space.shape
        if len(set(sizes)) == 1:
            components = [{"kind": "multi_discrete", "name": "choice", "classes": sizes[0], "columns": len(sizes)}]
        else:
            components = [{"kind": "discrete", "name": f"choice_{i}", "classes": n} for i, n in enumerate(sizes)]
        return components, lambda classes, _: (classes.reshape(-1, *shape) + start).astype(space.dtype), np.concatenate
    if isinstance(space, spaces.MultiBinary):
        components = [{"kind": "binary", "name": "switches", "count": int(np.prod(space.shape))}]
        return components, lambda classes, _: classes.reshape(-1, *space.shape).astype(space.dtype), None
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise Refused("space", f"the action space {space} is neither classes nor numbers: wrap the environment in one whose is")
    bound = lambda x: float(x) if np.isfinite(x) else None
    bounds = [(bound(low), bound(high)) for low, high in zip(space.low.reshape(-1), space.high.reshape(-1))]
    # Neighbours with the same bounds are one component.
    components = []
    for low, high in bounds:
        if components and (components[-1]["low"], components[-1]["high"]) == (low, high):
            components[-1]["columns"] += 1
        else:
            components.append({"kind": "gaussian", "name": f"control_{len(components)}", "columns": 1, "low": low, "high": high})
    if len(components) == 1:
        components[0]["name"] = "control"

    def actions(_, numbers):
        numbers = numbers.reshape(-1, *space.shape).astype(space.dtype)
        # A bound of 64 bits may lie between two numbers of 32.
        return numbers if space.dtype == np.float32 else np.clip(numbers, space.low, space.high)

    return components, actions, None


class Lanes:
    """The environments and the memory that they share with the other process."""

    def __init__(self):
        # What is being done to which of them.
        self.lane, self.during = 0, "make"

    def make(self, name, count, descriptor):
        self.envs = []
        for self.lane in range(count):
            self.envs.append(made(name, self.lane))
        env = self.envs[0]
        observation, self.write = observed(env.observation_space)
        components, self.actions, self.mask = acted(env.action_space)
        sizes = [c.get("columns", c.get("count", 1)) for c in components]
        columns = sum(size for c, size in zip(components, sizes) if c["kind"] != "gaussian")
        numbers = sum(size for c, size in zip(components, sizes) if c["kind"] == "gaussian")
        legal = sum(size * c.get("classes", 2) for c, size in zip(components, sizes) if c["kind"] != "gaussian")
        floats = int(np.prod(observation["shape"] if observation["kind"] == "floats" else env.observation_space.shape))
        arrays = [
            ("seeds", np.uint64, ()), ("rewards", np.float64, ()), ("classes", np.int64, (columns,)), ("numbers", np.float32, (numbers,)),
            ("floats", np.float32, (floats,)), ("todo", np.uint8, ()), ("terminated", np.uint8, ()), ("truncated", np.uint8, ()),
            ("legal", np.uint8, (legal,)),
        ]
        total = sum(int(np.dtype(kind).itemsize * np.prod((count, *shape), dtype=np.int64)) for _, kind, shape in arrays)
        # Memory that is not there is to be said now, not by a signal in the middle of a step.
        getattr(os, "posix_fallocate", lambda file, _, size: os.ftruncate(file, size))(descriptor, 0, total)
        shared, offset = mmap.mmap(descriptor, total), 0
        os.close(descriptor)
        for array, kind, shape in arrays:
            setattr(self, array, np.ndarray((count, *shape), kind, shared, offset))
            offset += getattr(self, array).nbytes
        self.legal[:] = 1
        self.rows = list(self.floats)
        self.masked = [False] * count
        limit = env.spec.max_episode_steps if env.spec else None
        self.spec = {"observation": [observation], "action": components, "max_steps": limit and int(limit)}

    def show(self, lane, observation, info):
        self.write(observation, self.rows[lane])
        mask = info.get("action_mask") if self.mask else None
        if mask is not None:
            self.legal[lane] = self.mask(mask) != 0
            self.masked[lane] = True
        elif self.masked[lane]:
            self.legal[lane] = 1
            self.masked[lane] = False

    def round(self):
        """Has every environment do what is to be done; the others have done it where one of them fails."""
        failed = None
        for lane, (todo, action) in enumerate(zip(self.todo.tobytes(), self.actions(self.classes, self.numbers))):
            if todo == NOTHING:
                continue
            self.lane, self.during = lane, "step" if todo == STEP else "reset"
            try:
                if todo == STEP:
                    observation, reward, terminated, truncated, info = self.envs[lane].step(action)
                    self.rewards[lane], self.terminated[lane], self.truncated[lane] = reward, bool(terminated), bool(truncated)
                else:
                    observation, info = self.envs[lane].reset(seed=int(self.seeds[lane]) if todo == SEED else None)
                self.show(lane, observation, info)
            except BaseException as error:
                failed = failed or self.error(error)
        return failed

    def error(self, error):
        kind, text = error.args if isinstance(error, Refused) else ("raised", traceback.format_exc().rstrip())
        return failure(kind, text, self.lane, self.during)


def main():
    lanes = Lanes()
    try:
        lanes.make(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except BaseException as error:
        return say(False, lanes.error(error))
    say(True, lanes.spec)
    while os.read(requests, 1):
        failed = lanes.round()
        say(not failed, failed)
    for env in lanes.envs:
        env.close()


main()
