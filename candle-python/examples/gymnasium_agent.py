"""An agent in an environment with the interface of Gymnasium: `python gymnasium_agent.py [BUNDLE [EPISODES]]`.

The environment is a stand-in of twenty lines: a walker on a line, which the main stick moves. Its observations have the shapes that a game
policy eats, and the policy has never seen such a game: in its place comes a `gymnasium.Env` of yours, and a bundle trained on it.
"""

import sys
from typing import Any

import numpy as np

import candle_models

Observation = dict[str, np.ndarray]


class Walk:
    """Keeps to the middle of a line. Actions are the policy's classes; column 8 is the main stick, from left (0) to right (16)."""

    STICK, LAST_CLASS, FRAMES = 8, 16, 120

    def __init__(self, inputs: tuple[candle_models.TensorSpec, ...]) -> None:
        # `gymnasium.spaces.Dict` of `Box`es would be made of the same numbers.
        self.observation_space = {spec.name: spec for spec in inputs if spec.required}

    def reset(self, *, seed: int | None = None) -> tuple[Observation, dict[str, Any]]:
        self.random = np.random.default_rng(seed)
        self.position, self.frame = self.random.uniform(-1, 1), 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.position += 0.05 * (2 * action[self.STICK] / self.LAST_CLASS - 1) + self.random.normal(0, 0.01)
        self.frame += 1
        return self.observe(), -abs(self.position), abs(self.position) > 2, self.frame == self.FRAMES, {}

    def observe(self) -> Observation:
        observation = {name: np.zeros(spec.shape, spec.dtype) for name, spec in self.observation_space.items()}
        observation["features"][0] = self.position
        return observation


class Agent:
    """Chooses actions with a session of its own; the model's memory of the episode stays in there."""

    def __init__(self, session: candle_models.Session) -> None:
        self.session = session

    def begin(self) -> None:
        """Forgets the last episode. The last action goes back to its default as well."""
        self.session.reset()
        for spec in self.session.signature.inputs:
            if spec.default is not None:
                self.session.inputs[spec.name][:] = spec.default

    def act(self, observation: Observation) -> np.ndarray:
        for name, value in observation.items():
            self.session.inputs[name][:] = value
        self.session.step()
        action = self.session.outputs["action"]
        self.session.inputs["previous_action"][:] = action
        return action


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else "weights/policy-mamba"
    episodes = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with candle_models.open(path, sessions=1) as engine, engine.session() as session:
        environment, agent = Walk(engine.signature.inputs), Agent(session)
        for episode in range(episodes):
            observation, _ = environment.reset(seed=episode)
            agent.begin()
            total, over = 0.0, False
            while not over:
                observation, reward, terminated, truncated, _ = environment.step(agent.act(observation))
                total, over = total + reward, terminated or truncated
            print(f"episode {episode}: {session.frames} frames, return {total:.2f}")
        print(f"a step takes {engine.stats.lone.p50 * 1e6:.0f} microseconds")


if __name__ == "__main__":
    main()
