#!/usr/bin/env python3
"""Plays on the page of `candle-train watch --web` in headless Chromium.

    scripts/watch-check.py SCREENSHOTS CANDLE-TRAIN

Connect Four against a search, by a click on a column: the stone lies there, the search's visits and values are drawn and can be hidden. The
duel against a policy, by keys: frames come, and the fighter goes where the key says. At desktop and phone width, light and dark: no console
error, no exception, no request to another place, no page wider than its window. Needs nothing but Python.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

from browser import Browser, Failed, check_silence, check_width, is_light

# A network that has learnt next to nothing: what it finds is drawn all the same.
TINY = (
    "frames=256", "play.lanes=2", "play.steps=16", "play.simulations=4", "play.warm_up=4", "learn.updates=1", "learn.batch=4",
    "learn.unroll=0", "network.channels=4", "network.blocks=1", "evaluation.episodes=1", "evaluation.simulations=4",
)
OWN = "page.frame.scene.shapes.find(shape => shape.kind === 'rectangle' && String(shape.color) === '90,160,255')"


class Served:
    """A page that is being served."""

    def __init__(self, program, *arguments):
        command = [program, "watch", *arguments, "--web"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:\d+", line)
        if found is None:
            raise SystemExit(f"{' '.join(command)}: no address in {line!r}")
        self.address = found[0] + "/"

    def __enter__(self):
        return self.address

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def until(browser, condition, what):
    """Waits for what becomes true of the page."""
    script = f"""new Promise(done => {{
      const end = performance.now() + 60000;
      const look = () => {condition} ? done(true) : performance.now() > end ? done(false) : setTimeout(look, 20);
      look();
    }})"""
    if not browser.wait_for(script):
        raise Failed(f"{what}: not within a minute; the page says {browser.run('document.body.innerText')!r}")


def pixel(browser, x, y):
    """The colour of the canvas at a place of the scene."""
    return browser.run(f"""(() => {{
      const scale = canvas.width / page.frame.scene.width;
      // The page's own canvas is made to be drawn, not to be read.
      const copy = document.createElement("canvas").getContext("2d", {{ willReadFrequently: true }});
      copy.drawImage(canvas, -{x} * scale, -{y} * scale);
      return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
    }})()""")


def click(browser, x, y):
    """Clicks at a place of the scene."""
    at = browser.run(f"""(() => {{
      canvas.scrollIntoView({{ block: "center" }});
      const box = canvas.getBoundingClientRect(), scene = page.frame.scene;
      return [box.left + {x} / scene.width * box.width, box.top + {y} / scene.height * box.height];
    }})()""")
    browser.click(*at)


def sit(browser, seat):
    until(browser, f"page.frame !== null && document.querySelectorAll('#seats button').length > {seat}", "the seats")
    browser.run(f"document.querySelectorAll('#seats button')[{seat}].click()")
    until(browser, "plays()", "a seat that was taken")


def check_board(browser, address, window, scheme):
    browser.open(address, window, scheme)
    sit(browser, 0)
    until(browser, "page.frame.waits && document.body.dataset.number == page.frame.number", "a game that waits for a move")
    if pixel(browser, 3.3, 5.3) != [235, 240, 250]:
        raise Failed(f"the board is not empty: {pixel(browser, 3.3, 5.3)}")
    marked = browser.run("canvas.toDataURL()")
    if not browser.run("page.frame.marks.length") or not browser.run("at('search').textContent.startsWith('search: ')"):
        raise Failed("nothing of the search is shown")
    browser.run("at('marks').click()")
    if browser.run("canvas.toDataURL()") == marked or browser.run("at('search').textContent"):
        raise Failed("the search is not hidden")
    click(browser, 3.5, 2.5)
    # The first player's stone falls to the bottom of the column; then the other one has moved.
    until(browser, "page.frame.waits && page.frame.line.includes('step 2:')", "an answer to a move")
    until(browser, "document.body.dataset.number == page.frame.number", "the last frame on the canvas")
    if pixel(browser, 3.3, 5.3) != [220, 60, 50]:
        raise Failed(f"no stone lies where one was played: {pixel(browser, 3.3, 5.3)}")
    browser.run("at('marks').click()")
    # By a key, too.
    browser.run("canvas.focus()")
    browser.key("1", 49)
    until(browser, "page.frame.line.includes('step 4:')", "an answer to a key")


def check_duel(browser, address, window, scheme):
    browser.open(address, window, scheme)
    sit(browser, 1)
    browser.run(f"window.begun = {OWN}.x; window.counted = page.frame.number;")
    browser.run("canvas.focus()")
    key = {"key": "ArrowLeft", "code": "ArrowLeft", "windowsVirtualKeyCode": 37}
    browser.ask("Input.dispatchKeyEvent", type="keyDown", **key)
    until(browser, f"page.frame.number > counted + 10 && {OWN}.x < begun - 10", "a fighter that goes to the left")
    browser.ask("Input.dispatchKeyEvent", type="keyUp", **key)
    until(browser, "page.down.length === 0", "a key that was let go")
    browser.run("window.counted = page.frame.number; at('leave').click();")
    until(browser, "page.frame.player === null && page.frame.number > counted", "a seat that is free again")


def main():
    screenshots, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    screenshots.mkdir(parents=True, exist_ok=True)
    root = pathlib.Path(__file__).resolve().parent.parent
    failures = 0
    # The browser's helpers may write to its profile for a moment after it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        run = pathlib.Path(folder) / "run"
        sets = [f"--set={pair}" for pair in TINY]
        subprocess.run([program, "muzero", "--preset", "connect-four", *sets, "--out", run], check=True, stdout=subprocess.DEVNULL)
        pages = (
            ("board", check_board, ("connect-four", "--bundle", run / "bundle", "--simulations", "16")),
            ("duel", check_duel, ("duel", "--bundle", root / "weights" / "policy-simulated")),
        )
        for name, check, arguments in pages:
            with Served(program, *map(str, arguments)) as address:
                for window, scheme in (("desktop", "light"), ("phone", "dark")):
                    try:
                        check(browser, address, window, scheme)
                        if is_light(browser) != (scheme == "light"):
                            raise Failed(f"the page is not {scheme}")
                        check_width(browser, window)
                        check_silence(browser)
                        print(f"watch-{name}, {window}, {scheme}: ok")
                    except Failed as error:
                        failures += 1
                        print(f"watch-{name}, {window}, {scheme}: {error}")
                    browser.shot(screenshots / f"watch-{name}-{window}-{scheme}.png", whole=False)
        browser.close()
    sys.exit(1 if failures else 0)


main()
