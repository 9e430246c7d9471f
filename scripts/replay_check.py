"""Checks a page of `candle-infer run --html` beside the log (`--out`) of the same run: the picture is drawn and moves, the slider, the
lines, the keys and the links to the largest differences go to their frames, and in every frame looked at the controllers say what the
log says of it, for each player that was decided for."""

import json
import re

from browser import Failed

# Frames compared with the log, evenly over the game.
LOOKED_AT = 25
# The log's names of what the page has a row for.
ROWS = ("buttons", "main x", "main y", "c x", "c y", "shoulder")
SHOWN = """(() => {
  const text = id => document.getElementById(id).textContent;
  const cells = [...document.querySelectorAll("#components tr")].map(row => [...row.cells].map(cell => cell.textContent));
  return { cells, differs: [...document.querySelectorAll("#components tr")].map(row => row.classList.contains("differs")),
           nats: text("nats"), same: text("same"), time: text("time"), slider: Number(document.getElementById("frame").value),
           bodies: [...document.querySelectorAll("#stage .body")].map(body => body.parentNode.parentNode.getAttribute("transform")),
           bars: document.querySelector("#close .bars").getAttribute("d") };
})()"""


def texts(action):
    """The six texts that the page has for an action of the log, of which each token is COMPONENT:VALUE."""
    tokens = dict(token.split(":") for token in action.split())
    buttons = [name for name in ("A", "B", "X", "Y", "Z", "L", "R", "D_up") if tokens[name] == "down"]
    return [" ".join(buttons) or "none", *(tokens[name] for name in ("main_x", "main_y", "c_x", "c_y", "shoulder"))]


def frame_of(shown):
    return int(re.search(r"frame (-?\d+)", shown["time"]).group(1))


def compare(shown, line):
    """The controllers of the page with a line of the log."""
    frame, recorded, chosen = line["frame"], texts(line["recorded"]), texts(line["chosen"])
    if frame_of(shown) != frame:
        raise Failed(f"shows frame {frame_of(shown)}, not {frame}")
    for name, cells, mine, policy, differs in zip(ROWS, shown["cells"], recorded, chosen, shown["differs"], strict=True):
        if cells[:3] != [name, mine, policy] or differs != (mine != policy):
            raise Failed(f"frame {frame}: the page says {cells}, the log {name}, {mine}, {policy}")
        if abs(float(cells[3]) - line["nll"][name]) > 0.0006:
            raise Failed(f"frame {frame}: {name} has {cells[3]} nats, in the log {line['nll'][name]}")
    if abs(float(shown["nats"]) - sum(line["nll"].values())) > 0.004:
        raise Failed(f"frame {frame}: {shown['nats']} nats, in the log {sum(line['nll'].values())}")
    if shown["same"] != ("the same" if recorded == chosen else "differs"):
        raise Failed(f"frame {frame}: {shown['same']}, but {line['recorded']} and {line['chosen']}")


def go(browser, place):
    """Moves the slider as a hand does."""
    browser.run(f'(slider => {{ slider.value = {place}; slider.dispatchEvent(new Event("input")); }})(document.getElementById("frame"))')
    return browser.run(SHOWN)


def until(browser, condition, otherwise):
    """Waits for what the page does by itself, a minute at most."""
    if not browser.wait_for(f"""new Promise(done => {{
      const end = Date.now() + 60000;
      const look = () => ({condition}) ? done(true) : Date.now() > end ? done(false) : requestAnimationFrame(look);
      look();
    }})"""):
        raise Failed(otherwise)


def check_drawn(browser):
    """Floor, fighters, blast zone; both lines of the game; the bars around the frame."""
    for picture, parts in (("stage", (".floor", ".body", ".blast")), ("overview", (".most", ".mean")), ("close", (".bars",))):
        for part in parts:
            box = browser.run(f"""(box => [box.width, box.height])(document.querySelector("#{picture} {part}").getBoundingClientRect())""")
            if min(box) < 2:
                raise Failed(f"{part} of {picture} is {box[0]} by {box[1]} pixels")


def check_links(browser, lines):
    """Every link goes to its frame, and no frame that differs is less likely than the first of them."""
    count = browser.run('document.querySelectorAll("#differences a").length')
    if count == 0:
        raise Failed("no frame differs")
    for i in range(count):
        link = f'document.querySelectorAll("#differences a")[{i}]'
        frame = int(browser.run(f"{link}.hash").rsplit("frame-", 1)[1])
        # A click by the mouse, as it is found on the screen.
        browser.run(f'{link}.scrollIntoView({{ block: "center" }})')
        box = browser.run(f"(box => [box.left + 4, box.top + box.height / 2])({link}.getBoundingClientRect())")
        browser.click(*box)
        until(browser, f'document.getElementById("time").textContent.includes("frame {frame} ")', f"link {i} does not go to frame {frame}")
        shown = browser.run(SHOWN)
        compare(shown, lines[frame])
        if i == 0:
            worst = max(sum(line["nll"].values()) for line in lines.values() if line["recorded"] != line["chosen"])
            if abs(worst - float(shown["nats"])) > 0.004:
                raise Failed(f"the first link is of {shown['nats']} nats, the least likely frame that differs has {worst}")
    return count


def check_moves(browser, first, last):
    """The line, the keys and the play button."""
    browser.run('document.getElementById("overview").scrollIntoView({ block: "center" })')
    box = browser.run('(box => [box.left, box.top, box.width, box.height])(document.getElementById("overview").getBoundingClientRect())')
    browser.click(box[0] + box[2] / 2, box[1] + box[3] / 2)
    middle = browser.run(SHOWN)["slider"]
    if abs(middle - (last - first) / 2) > 0.01 * (last - first) + 1:
        raise Failed(f"a click in the middle of the line goes to place {middle} of {last - first}")
    browser.run("document.activeElement.blur()")
    for key, by in (("ArrowRight", 1), ("ArrowLeft", -1)):
        before = browser.run(SHOWN)["slider"]
        browser.key(key, {"ArrowRight": 39, "ArrowLeft": 37}[key])
        if browser.run(SHOWN)["slider"] != before + by:
            raise Failed(f"{key} does not go {by}")
    go(browser, 0)
    browser.run('document.getElementById("play").click()')
    until(browser, 'document.getElementById("frame").value >= 3', "does not play")
    browser.run('document.getElementById("play").click()')
    if browser.run('document.getElementById("play").textContent') != "Play":
        raise Failed("does not pause")


def check(browser, log):
    """Raises Failed for what the page does wrong, and tells what was looked at."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    by_port = {}
    for line in lines:
        by_port.setdefault(line["port"], {})[line["frame"]] = line
    go(browser, len(by_port[lines[0]["port"]]) // 2)
    check_drawn(browser)
    file = lines[0]["file"].rsplit("/", 1)[-1]
    if f" {file} " not in browser.run('document.getElementById("about").textContent') or browser.run('document.querySelector("img")'):
        raise Failed(f"the name {file} does not stand for itself")
    ports = browser.run('[...document.querySelectorAll("#ports input")].map(radio => Number(radio.value))')
    if ports != sorted(by_port):
        raise Failed(f"has ports {ports}, the log {sorted(by_port)}")
    links, looked_at = 0, 0
    for port in ports:
        browser.run(f'document.querySelector("#ports input[value=\'{port}\']").click()')
        of_port = by_port[port]
        first, last = min(of_port), max(of_port)
        # The slider's places are frames from the first of the replay, which may be before the first that was decided.
        zero = frame_of(go(browser, 0))
        pictures = set()
        for frame in [*range(first, last, max(1, (last - first) // LOOKED_AT)), last]:
            shown = go(browser, frame - zero)
            compare(shown, of_port[frame])
            pictures.add((*shown["bodies"], shown["bars"]))
            looked_at += 1
        if len(pictures) < LOOKED_AT // 2:
            raise Failed(f"{len(pictures)} different pictures in {looked_at} frames")
        links += check_links(browser, of_port)
        check_moves(browser, zero, last)
    return f"{looked_at} frames of {len(ports)} ports as in the log, {links} links"
