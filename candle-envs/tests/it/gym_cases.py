"""Environments for `gym.rs`: one for each kind of space, which shows what was done, and one with every kind of trouble."""

import os
import subprocess
import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text


class Echo(gymnasium.Env):
    """Shows the action, which has to lie in its space, as the observation."""

    def __init__(self, action, observation=None, first=None, masks=None):
        self.action_space, self.observation_space = action, action if observation is None else observation
        self.first, self.masks = first, masks

    def info(self, action):
        return {} if self.masks is None else {"action_mask": self.masks(action)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action):
        assert self.action_space.contains(action), (action, type(action))
        return action, float(np.sum(action)), False, False, self.info(action)


class Pixels(Echo):
    """Shows 100 times the action and one more."""

    def __init__(self, high):
        super().__init__(Discrete(3, start=-1), Box(0, high, (2, 2, 3), np.uint8), np.zeros((2, 2, 3), np.uint8))
        # What was done last is not legal; after the first class everything is, without a mask.
        self.masks = lambda action: np.arange(-1, 2) != action

    def info(self, action):
        return {} if action == -1 else super().info(action)

    def step(self, action):
        _, *rest = super().step(action)
        return np.full((2, 2, 3), 100 * (action + 1), np.uint8), *rest


class Trouble(gymnasium.Env):
    action_space, observation_space = Discrete(9), Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        # None of this may be taken for an answer, and nothing that is read for a request.
        print("....!!!!")
        os.write(1, b"....!!!!\n")
        assert sys.stdin.read() == ""
        if action == 8:
            subprocess.run(["cat"], check=True)
            subprocess.run(["echo", "printed by a program"], check=True)
        seen, reward, info = np.zeros(2, np.float32), 0.0, {}
        if action == 1:
            raise ValueError("it is out of order")
        if action == 2:
            seen[1] = np.nan
        if action == 3:
            reward = float("inf")
        if action == 4:
            os._exit(7)
        if action == 5:
            info["action_mask"] = np.zeros(9, np.int8)
        if action == 6:
            sys.exit("it is enough")
        if action == 7:
            seen = np.zeros(3, np.float32)
        return seen, reward, action == 8, False, info


mixed = MultiDiscrete([2, 3], start=[5, -1])
alike = MultiDiscrete([[3, 3], [3, 3]])
numbers = Box(np.array([-1, -1, 0], np.float64), np.array([1, 1, np.inf], np.float64), dtype=np.float64)
for name, arguments in {
    "Mixed": (mixed, None, np.array([5, -1]), lambda action: (np.array([1, 1]), np.array([0, 1, 1]))),
    "Alike": (alike, None, np.zeros((2, 2), int)),
    "Switches": (MultiBinary(3), None, np.zeros(3, np.int8)),
    "Numbers": (numbers, None, np.zeros(3)),
    "Numbered": (Discrete(4, start=2), None, 2),
    "Dict": (Discrete(2), Dict({"one": Discrete(2)}), {"one": 0}),
    "Text": (Text(3), Discrete(2), 0),
    "Outside": (Discrete(4, start=2), Discrete(3, start=2), 2),
}.items():
    gymnasium.register(f"{name}-v0", lambda arguments=arguments: Echo(*arguments))
gymnasium.register("Pixels-v0", lambda: Pixels(255))
gymnasium.register("Few-v0", lambda: Pixels(200))
gymnasium.register("Trouble-v0", Trouble)
gymnasium.register("Limited-v0", lambda: Echo(Discrete(2), None, 0), max_episode_steps=3)
