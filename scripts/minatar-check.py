#!/usr/bin/env python3
"""Plays MinAtar's own games, writes what happened as traces, and lets candle-envs play the same again: every observation, reward and end
must be equal.

    pip install minatar==1.0.15 numpy        # no other of its dependencies is needed
    scripts/minatar-check.py                 # 10 000 steps of each game, checked by `cargo test`
    scripts/minatar-check.py --write         # the short traces that the tests of candle-envs read

A trace is text, a line for each reset or step: the action (a letter of `nlurdf`, or `R` for a reset), the random draws that it took, the
reward, whether the game was over, and the cells of the observation that changed. Draws are separated by commas; one of [0, 1) is two
hexadecimal digits, n for (2 n + 1) / 512, and a whole number is a single digit, counted from the lowest one possible. A cell is two digits
to base 32: (row * 10 + column) * channels + channel. What is empty is `-`."""

import argparse
import copy
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

logging.disable(logging.WARNING)  # it warns that nothing can be drawn without matplotlib
from minatar import Environment  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SHORT = ROOT / "candle-envs/tests/minatar"
GAMES = ["breakout", "freeway", "asterix", "space_invaders", "seaquest"]
ACTIONS = "nlurdf"
DIGITS = "0123456789abcdefghijklmnopqrstuv"
# A player who looks ahead: so many tries of each action, so many steps deep, in which it is done up to so often.
TRIES, DEPTH, AGAIN = 3, 12, 8


class Draws:
    """In place of the generator of a game: draws that a few digits hold, and a list of them. What it does not know, nobody has drawn so far."""

    def __init__(self, seed):
        self.generator = np.random.RandomState(seed)
        self.taken = []

    def __deepcopy__(self, memo):
        return Draws(self.generator.randint(2**31))

    def rand(self, size=None):
        draws = self.generator.randint(256, size=size)
        self.taken += [f"{draw:02x}" for draw in np.ravel(draws)]
        return (2 * draws + 1) / 512

    def randint(self, low, high=None, size=None):
        low, high = (0, low) if high is None else (low, high)
        assert high - low <= 10, "more than a digit holds"
        draws = self.generator.randint(low, high, size=size)
        self.taken += [str(draw - low) for draw in np.ravel(draws)]
        return draws


def landing(game):
    """The column from which the ball of Breakout comes to the last row; directions 2 and 3 are downwards."""
    game = copy.deepcopy(game)
    while game.ball_y < 8 or game.ball_dir < 2:
        game.act(0)
    return game.ball_x


def wealth(environment, plan):
    """What a player may be after beside the reward: to cross the road, to be far from the edges, where others come in,
    divers on board (plan 0) or coming up with them (1)."""
    game = environment.env
    match environment.game_name():
        case "freeway":
            return -game.pos
        case "asterix":
            return -abs(game.player_x - 4.5)
        case "seaquest":
            return game.diver_count + 20 * plan * game.ramp_index - abs(game.sub_x - 4.5) / 10
    return 0


def lives(environment, action, plan, generator):
    """Steps that a copy lives through which does `action` for a while and then nothing or anything, and what it has then."""
    environment = copy.deepcopy(environment)
    earned, again, others = 0, 1 + generator.randint(AGAIN), generator.choice([1, 6])
    for step in range(DEPTH):
        reward, over = environment.act(action if step < again else generator.randint(others))
        earned += 30 * reward
        if over:
            return step, earned
    return DEPTH, earned + wealth(environment, plan)


def careful(environment, plan, generator):
    """The action after which copies live longest; of equals the one that brings most, or else any. Breakout takes a longer view than that."""
    if environment.game_name() == "breakout":
        return [0, 3, 1][np.sign(landing(environment.env) - environment.env.pos)]
    tries = []
    for action in range(6):
        lived = [lives(environment, action, plan, generator) for _ in range(TRIES)]
        tries.append((*np.max(lived, axis=0), generator.rand(), action))
    return max(tries)[-1]


def trace(game, steps, seed):
    """Lines of a trace. Games differ in how careful their player is, so that some are long and some short."""
    environment, generator = Environment(game), np.random.RandomState(seed)
    draws = environment.random = environment.env.random = Draws(seed)
    shown, over, returns = None, True, []

    def line(action, reward):
        nonlocal shown
        seen = environment.state()
        changed = np.flatnonzero(seen if shown is None else seen != shown)
        shown = seen.copy()
        cells = "".join(DIGITS[cell // 32] + DIGITS[cell % 32] for cell in changed)
        taken, draws.taken = ",".join(draws.taken), []
        return f"{action} {taken or '-'} {reward:.0f} {over:d} {cells or '-'}"

    for _ in range(steps):
        if over:
            environment.reset()
            environment.last_action = 0  # which a reset of MinAtar does not change
            # The first player is careless, so that a short trace has an end; a game of Freeway is as long as it is.
            careless = not returns and game != "freeway"
            care = 0.0 if careless else generator.choice([0.0, 0.9, 1.0], p=[0.1, 0.2, 0.7])
            plan, over = generator.randint(2), False
            returns.append(0)
            yield line("R", 0)
        action = careful(environment, plan, generator) if generator.rand() < care else generator.randint(6)
        reward, over = environment.act(action)
        returns[-1] += reward
        yield line(ACTIONS[action], reward)
    print(f"{game}: {steps} steps, {len(returns)} games, returns up to {max(returns)}")


def write(folder, game, steps, seed):
    (folder / f"{game.replace('_', '-')}.txt").write_text("\n".join(trace(game, steps, seed)) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="the short traces of the tests")
    arguments.add_argument("--steps", type=int, default=10000, help="steps of each game [10000]")
    arguments.add_argument("--seed", type=int, default=3)
    arguments.add_argument("games", nargs="*", default=GAMES, help="some of them, to write")
    given = arguments.parse_args()
    if given.games != GAMES and not given.write:
        arguments.error("all games are checked together")
    if given.write:
        for game in given.games:
            write(SHORT, game, 900, given.seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        for game in given.games:
            write(Path(folder), game, given.steps, given.seed)
        command = ["cargo", "test", "-p", "candle-envs", "--lib", "--", "--ignored", "--exact", "minatar::tests::traces_of_a_folder"]
        sys.exit(subprocess.run(command, cwd=ROOT, env=os.environ | {"MINATAR_TRACES": folder}).returncode)


if __name__ == "__main__":
    main()
