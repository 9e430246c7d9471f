"""Drives this workspace's classic control beside Gymnasium's: same seeds, same actions, through 1e5 steps of each environment, and compares
states, observations, rewards, flags and the ends of episodes, with each way of resetting automatically. Then prints the golden values of
`candle-envs/tests/it/classic.rs`.

    pip install --target DIR gymnasium==1.4.0
    PYTHONPATH=DIR python3 scripts/gymnasium-check.py [ENVIRONMENT ...]

With `--speed LANES` it measures instead: steps per second of Gymnasium's CartPole, so many side by side, in this process by Gymnasium's `SyncVectorEnv`
and in processes of their own by the crate, in turn. Choosing the actions is not measured. A figure is the median of short windows, as the example `steps`
measures; of several figures the median is printed, with the smallest and the largest.

    PYTHONPATH=DIR python3 scripts/gymnasium-check.py --speed 64
"""

import json
import statistics
import subprocess
import sys
import time
from importlib.metadata import version

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

NAMES = {"cartpole": "CartPole-v1", "mountain-car": "MountainCar-v0", "acrobot": "Acrobot-v1", "pendulum": "Pendulum-v1"}
TRACE = "cargo run --quiet --release -p candle-envs --example trace --".split()
STEPS, LANES, SEED = 100_000, 20, 1000
# Of f64 states; observations and rewards are f32, of which Gymnasium rounds some before they are computed.
STATE, FLOAT = 1e-12, 2e-7


class Differs(Exception):
    pass


def trace(name, steps, lanes, autoreset):
    command = [*TRACE, name, str(SEED), str(steps), str(lanes), autoreset]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        yield from map(json.loads, program.stdout)
    if program.returncode:
        raise Differs(f"{' '.join(command)} failed")


class Beside:
    """Gymnasium's environments, which do what a trace says, and the largest differences."""

    def __init__(self, name, lanes, autoreset):
        make = lambda: gymnasium.make(NAMES[name], disable_env_checker=True)
        self.envs = SyncVectorEnv([make] * lanes, autoreset_mode=AutoresetMode[autoreset.upper()])
        self.numbers = isinstance(self.envs.single_action_space, gymnasium.spaces.Box)
        self.reward, self.length, self.ended = np.zeros(lanes), np.zeros(lanes, int), np.zeros(lanes, bool)
        self.state = self.float = self.episodes = self.bits = self.steps = 0

    def near(self, what, found, expected, tolerance):
        found, expected = np.asarray(found, float).ravel(), np.asarray(expected, float).ravel()
        difference = float(np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected)), initial=0))
        if not difference <= tolerance:
            raise Differs(f"{what}: {found.tolist()}, Gymnasium {expected.tolist()}")
        return difference

    def same(self, what, found, expected):
        if list(found) != list(expected):
            raise Differs(f"{what}: {list(found)}, Gymnasium {list(expected)}")

    def observed(self, line, observations):
        expected = np.array([env.unwrapped.state for env in self.envs.envs], np.float64)
        self.state = max(self.state, self.near("state", line["states"], expected, STATE))
        found = np.array(line["states"], np.float64)
        other = np.any(found != expected, axis=1)
        self.bits, self.steps = self.bits + int(np.sum(~other)), self.steps + len(expected)
        # A double pendulum is chaotic, and Gymnasium's Acrobot squares by the C library's power, which rounds one square in a thousand
        # otherwise than a product: each step is compared from the same state. With products in its place all steps are equal to the bit.
        for i in np.flatnonzero(other):
            self.envs.envs[i].unwrapped.state = found[i]
        self.float = max(self.float, self.near("observation", line["floats"], observations, FLOAT))

    def reset(self, line, mask, **arguments):
        observations, _ = self.envs.reset(**arguments)
        self.observed(line, observations)
        self.same("first", np.array(line["first"])[mask], [True] * int(mask.sum()))
        for what in ("terminated", "truncated", "ignored"):
            self.same(what, np.array(line[what])[mask], [False] * int(mask.sum()))
        self.reward[mask], self.length[mask], self.ended[mask] = 0, 0, False

    def step(self, line, autoreset):
        actions = np.array(line["done"]["numbers"], np.float32)[:, None] if self.numbers else np.array(line["done"]["classes"])
        observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        ignored = self.ended if autoreset == "next_step" else np.zeros_like(self.ended)
        ended = terminated | truncated
        self.observed(line, observations)
        self.float = max(self.float, self.near("reward", line["rewards"], rewards, FLOAT))
        self.same("terminated", line["terminated"], terminated)
        # Gymnasium also calls truncated what its limit of steps would have ended, if the game had not.
        self.same("truncated", line["truncated"], truncated & ~terminated)
        self.same("ignored", line["ignored"], ignored)
        self.same("first", line["first"], ended if autoreset == "same_step" else ignored)
        self.reward, self.length = np.where(ignored, 0, self.reward + rewards), np.where(ignored, 0, self.length + 1)
        self.same("ends of episodes", [[lane, steps] for lane, _, steps in line["episodes"]], [[i, self.length[i]] for i in np.flatnonzero(ended)])
        self.near("returns", [reward for _, reward, _ in line["episodes"]], self.reward[ended], 1e-9)
        self.episodes += int(ended.sum())
        if autoreset == "same_step":
            final = np.array(line["final_floats"]).reshape(len(ended), -1)[ended]
            expected = [infos["final_obs"][i] for i in np.flatnonzero(ended)]
            self.float = max(self.float, self.near("final observation", final, expected, FLOAT))
            self.reward[ended], self.length[ended] = 0, 0
        self.ended = ended


def compare(name, autoreset, steps, lanes):
    beside = Beside(name, lanes, autoreset)
    for number, line in enumerate(trace(name, steps // lanes, lanes, autoreset)):
        done = line["done"]
        try:
            if "reset" in done:
                beside.reset(line, np.ones(lanes, bool), seed=done["reset"])
            elif "reset_lanes" in done:
                mask = np.array(done["reset_lanes"])
                beside.reset(line, mask, options={"reset_mask": mask})
            else:
                beside.step(line, autoreset)
        except Differs as differs:
            raise Differs(f"{name}, {autoreset}, line {number + 1} of the trace: {differs}") from None
    print(f"{name:13} {autoreset:10} {beside.steps:7} steps, {beside.episodes:5} episodes: "
          f"states within {beside.state:.1e}, {beside.bits / beside.steps:.2%} equal to the bit; f32 within {beside.float:.1e}", flush=True)


def golden(name):
    """Some steps after `reset(seed=42)`, as the test has them."""
    env = gymnasium.make(NAMES[name]).unwrapped
    env.reset(seed=42)
    actions = [1.0, -2.5, 0.25, 2.0, -0.5] if name == "pendulum" else [1, 0, 1, 1, 0] if name == "cartpole" else [2, 0, 1, 2, 0]
    print(f"{name}: {[float(x) for x in env.state]}")
    for action in actions:
        observation, reward, *_ = env.step(np.array([action], np.float32) if name == "pendulum" else action)
    print(f"  after {actions}: {[float(x) for x in env.state]}\n  seen {[float(x) for x in observation]}, reward {float(reward)}")


def speed(lanes, rounds=7, windows=301, seconds=1e-3):
    """Each has its turn in every round."""
    env, found = "CartPole-v1", {}
    example = f"cargo run --quiet --release -p candle-envs --example steps -- {lanes} gym:{env}".split()
    envs = SyncVectorEnv([lambda: gymnasium.make(env, disable_env_checker=True)] * lanes)
    envs.reset(seed=0)
    random = np.random.default_rng(0)
    for _ in range(rounds):
        rates = []
        while len(rates) < windows:
            spent = steps = 0
            while spent < seconds:
                actions = random.integers(0, 2, lanes)
                begin = time.perf_counter()
                envs.step(actions)
                spent, steps = spent + time.perf_counter() - begin, steps + lanes
            rates.append(steps / spent)
        found.setdefault("SyncVectorEnv", []).append(statistics.median(rates))
        one, all_threads = subprocess.run(example, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-2:]
        found.setdefault("gym:, 1 process", []).append(float(one) * 1e6)
        found.setdefault("gym:, a process for each core", []).append(float(all_threads) * 1e6)
    for name, rates in found.items():
        print(f"{name:30} {statistics.median(rates) / 1e3:7.0f} thousand steps/s ({min(rates) / 1e3:.0f} to {max(rates) / 1e3:.0f})")


def main():
    if sys.argv[1:2] == ["--speed"]:
        return speed(int(sys.argv[2]))
    names = sys.argv[1:] or list(NAMES)
    print(f"Gymnasium {version('gymnasium')}, NumPy {version('numpy')}")
    for name in names:
        compare(name, "next_step", STEPS, LANES)
        for autoreset in ("same_step", "disabled"):
            compare(name, autoreset, STEPS // 10, LANES)
    for name in names:
        golden(name)


if __name__ == "__main__":
    try:
        main()
    except Differs as differs:
        sys.exit(str(differs))
