#!/usr/bin/env python3
"""Reads a game with libmelee's own client from a spectator server and compares every frame with the replay that is played back.

    candle-infer playback GAME.slp --server 127.0.0.1:51441 --rate 0 &
    scripts/spectate-check.py GAME.slp --port 51441

It knows the replay from its own reading of the file's bytes, which shares nothing with libmelee's or with this repository's.
With --pipes DIR it also presses a controller through libmelee, on the pipe DIR/Pipes/slippibot1, once per frame.
"""

import argparse
import pathlib
import struct
import sys

import melee

BUTTONS = {
    "BUTTON_A": 0x100, "BUTTON_B": 0x200, "BUTTON_X": 0x400, "BUTTON_Y": 0x800, "BUTTON_START": 0x1000, "BUTTON_Z": 0x10,
    "BUTTON_R": 0x20, "BUTTON_L": 0x40, "BUTTON_D_LEFT": 0x1, "BUTTON_D_RIGHT": 0x2, "BUTTON_D_DOWN": 0x4, "BUTTON_D_UP": 0x8,
}


def replay(path):
    """Every frame in the order of the recording, those that a rollback replaced too: its id and, by port and follower, what is compared."""
    data = pathlib.Path(path).read_bytes()
    at = 15
    sizes = {data[i]: int.from_bytes(data[i + 1:i + 3], "big") for i in range(at + 2, at + 1 + data[at + 1], 3)}
    at += 1 + data[at + 1]
    frames, players = [], {}
    while at < len(data) and data[at] != 0x39:
        code, event = data[at], data[at:]
        if code in (0x37, 0x38):
            frame, port, follower = struct.unpack_from(">iBB", event, 1)
            player = players.setdefault((port + 1, bool(follower)), {})
        if code == 0x37:
            player["sticks"] = struct.unpack_from(">4f", event, 0x19)
            player["shoulder"], = struct.unpack_from(">f", event, 0x29)
            player["buttons"], = struct.unpack_from(">H", event, 0x31)
        elif code == 0x38:
            player["character"], player["state"] = struct.unpack_from(">BH", event, 0x7)
            player["position"] = struct.unpack_from(">2f", event, 0xA)
            player["percent"], player["shield"] = struct.unpack_from(">2f", event, 0x16)
            player["stocks"] = event[0x21]
        elif code == 0x3C:
            frames.append((frame, players))
            players = {}
        at += 1 + sizes[code]
    return frames


def seen(state):
    """The same of what libmelee gives."""
    players = {}
    for port, leader in state.players.items():
        for player, follower in ((leader, False), (leader.nana, True)):
            if player is None:
                continue
            pad = player.controller_state
            stick = [float(2 * (value - 0.5)) for value in (*pad.main_stick, *pad.c_stick)]
            players[port, follower] = {
                "sticks": tuple(stick),
                "shoulder": float(pad.l_shoulder),
                "buttons": sum(bits for name, bits in BUTTONS.items() if pad.button[melee.enums.Button[name]]),
                "character": int(player.character.value),
                "state": int(player.action.value),
                "position": (float(player.position.x), float(player.position.y)),
                "percent": float(player.percent),
                "shield": float(player.shield_strength),
                "stocks": int(player.stock),
            }
    return int(state.frame), players


def differs(name, want, found):
    if name == "sticks":
        # libmelee moves sticks from [-1, 1] to [0, 1], in 32 bits.
        return any(abs(a - b) > 1e-6 for a, b in zip(want, found))
    return want != found


def compare(want, found):
    (frame, players), (id_, others) = want, found
    if frame != id_ or players.keys() != others.keys():
        sys.exit(f"frame {frame} of {sorted(players)}: libmelee gave frame {id_} of {sorted(others)}")
    for who, player in players.items():
        for name, value in player.items():
            if differs(name, value, others[who][name]):
                sys.exit(f"frame {frame}, {who}: {name} is {value} in the replay, {others[who][name]} by libmelee")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("replay")
    parser.add_argument("--port", type=int, default=51441)
    parser.add_argument("--pipes", help="a folder for libmelee's controller, Pipes/slippibot1 in it")
    arguments = parser.parse_args()
    frames = replay(arguments.replay)
    console = melee.Console(is_remote=True, slippi_port=arguments.port, skip_rollback_frames=False, dolphin_home_path=arguments.pipes)
    controller = None
    if arguments.pipes:
        console.is_mainline = True
        # libmelee says there which pipe is whose, for a Dolphin that would start afterwards.
        config = pathlib.Path(arguments.pipes) / "Config"
        config.mkdir(exist_ok=True)
        (config / "Dolphin.ini").write_text("[Core]\n")
        controller = melee.Controller(console=console, port=1)
        controller.connect()
    if not console.connect():
        sys.exit(f"libmelee found no server on port {arguments.port}")
    for number, want in enumerate(frames):
        state = console.step()
        compare(want, seen(state))
        if controller:
            controller.tilt_analog(melee.enums.Button.BUTTON_MAIN, number % 3 / 2, 0.5)
            (controller.press_button if number % 2 else controller.release_button)(melee.enums.Button.BUTTON_A)
    if controller:
        controller.release_all()
        controller.flush()
    print(f"libmelee {melee.version.__version__} read {len(frames)} frames, {frames[0][0]} to {frames[-1][0]}, as they stand in the replay")
    # The server says farewell when everything has been taken.
    try:
        while True:
            console._slippstream.dispatch(False)
    except melee.slippstream.EnetDisconnected:
        console._slippstream.shutdown()


if __name__ == "__main__":
    main()
