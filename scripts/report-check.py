#!/usr/bin/env python3
"""Checks pages of `candle-bench report` in headless Chromium, over its DevTools protocol on two pipes.

    scripts/report-check.py SCREENSHOTS PAGE ...

At desktop and phone width, light and dark: no console error, no exception, no request to another place, no page wider than the
window, no labels of a chart on top of each other. Every column of every table is sorted by a click and by a key and compared with
the same sort made here; a row tells of itself, more columns appear when asked for, the theme changes. Needs nothing but Python.
"""

import base64
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

WINDOWS = {"desktop": (1280, 900), "phone": (390, 844)}
# A picture of a whole page is cut off here.
HIGHEST = 14000
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)
# Texts of a picture that cover each other by more than a pixel.
OVERLAPS = """[...document.querySelectorAll("svg")].filter(svg => svg.checkVisibility()).flatMap(svg => {
  const boxes = [...svg.querySelectorAll("text")].map(text => [text.textContent.trim(), text.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1).map(([b]) => a + " and " + b));
})"""
# Texts that stick out of their picture.
CUT = """[...document.querySelectorAll("svg")].filter(svg => svg.checkVisibility()).flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
  }).map(text => text.textContent.trim());
})"""
COLUMN = """(() => {
  const table = document.querySelectorAll("table.rows")[%d], head = table.tHead.rows[0].cells[%d];
  const rows = [...table.tBodies[0].rows].filter(row => !row.classList.contains("told"));
  const cell = row => row.cells[%d];
  const text = cell => [...cell.childNodes].find(node => node.nodeType === Node.TEXT_NODE)?.data ?? "";
  return { sorted: head.getAttribute("aria-sort"), numeric: head.classList.contains("n"), name: head.textContent,
           cells: rows.map(row => cell(row).dataset.value ?? text(cell(row))) };
})()"""


class Failed(Exception):
    """What a page does wrong."""


class Browser:
    """Chromium and one page in it."""

    def __init__(self, profile):
        self.directory = pathlib.Path(profile)
        names = [self.directory / "requests", self.directory / "replies"]
        for name in names:
            os.mkfifo(name)
        # The shell puts the pipes on the numbers that Chromium reads and writes.
        command = shlex.join(["chromium", *FLAGS, f"--user-data-dir={self.directory / 'profile'}", "about:blank"])
        redirected = f"exec {command} 3<{shlex.quote(str(names[0]))} 4>{shlex.quote(str(names[1]))}"
        self.process = subprocess.Popen(["sh", "-c", redirected], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.requests = open(names[0], "wb", buffering=0)
        self.replies = open(names[1], "rb", buffering=0)
        self.received, self.number, self.session, self.events = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        self.process.wait()

    def message(self):
        while b"\0" not in self.received:
            some = self.replies.read(1 << 16)
            if not some:
                raise SystemExit("chromium ended by itself")
            self.received += some
        line, self.received = self.received.split(b"\0", 1)
        return json.loads(line)

    def ask(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        self.requests.write(json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise Failed(f"{method}: {message['error']['message']}")
                return message["result"]
            self.events.append(message)

    def wait(self, event):
        while not any(message.get("method") == event for message in self.events):
            self.events.append(self.message())

    def run(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, userGesture=True)
        if "exceptionDetails" in result:
            raise Failed(f"{expression[:60]}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def open(self, page, window, scheme):
        width, height = WINDOWS[window]
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=window == "phone")
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=page.resolve().as_uri())
        self.wait("Page.loadEventFired")

    def key(self, name, code):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, text="\r" if kind == "keyDown" else "")

    def shot(self, file, whole):
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], HIGHEST), "scale": 1}
        more = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        file.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", **more)["data"]))

    def complaints(self):
        """What the browser has to say against the page since it was opened."""
        for message in self.events:
            params = message.get("params", {})
            match message.get("method"):
                case "Runtime.exceptionThrown":
                    details = params["exceptionDetails"]
                    yield details.get("exception", {}).get("description") or details["text"]
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert", "warning"):
                    yield f"console: {params['type']}: {params['args']}"
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    yield f"log: {params['entry']['text']}"
                case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("file:", "data:")):
                    yield f"asks for {params['request']['url']}"


def natural(text):
    """As people count: digits by value."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part.casefold()) for part in re.split(r"(\d+)", text) if part]


def number(text):
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def check_sorted(found, expected):
    """Whether a column stands in the order that it claims, what has no value last."""
    if found["sorted"] != expected:
        raise Failed(f"column {found['name']}: aria-sort is {found['sorted']}, not {expected}")
    values = [number(text) if found["numeric"] else text or None for text in found["cells"]]
    present = [value for value in values if value is not None]
    if values[: len(present)] != present:
        raise Failed(f"column {found['name']}: cells without a value do not stand last: {found['cells']}")
    if found["numeric"]:
        # Texts are compared by the browser's collation, which is not Python's; of them only equal ones are checked below.
        ordered = sorted(present, reverse=expected == "descending")
        if ordered != present:
            raise Failed(f"column {found['name']}: not {expected}: {found['cells']}")
    elif len(set(present)) != sum(a != b for a, b in zip(present, present[1:])) + bool(present):
        raise Failed(f"column {found['name']}: equal cells are not together: {found['cells']}")
    elif all(part.isascii() and part.replace(" ", "").isalnum() for part in present):
        ordered = sorted(present, key=natural, reverse=expected == "descending")
        if ordered != present:
            raise Failed(f"column {found['name']}: not {expected}: {found['cells']}")


def check_tables(browser):
    columns = 0
    for table in range(browser.run('document.querySelectorAll("table.rows").length')):
        at = f'document.querySelectorAll("table.rows")[{table}]'
        count = browser.run(f"{at}.tHead.rows[0].cells.length")
        before = browser.run(COLUMN % (table, 0, 0))["cells"]
        for column in range(count):
            columns += 1
            button = f'{at}.tHead.rows[0].cells[{column}].querySelector("button")'
            browser.run(f"{button}.click()")
            check_sorted(browser.run(COLUMN % (table, column, column)), "ascending")
            # A key where the column is shown, a click where it is not.
            browser.run(f"{button}.focus()")
            if browser.run(f"document.activeElement === {button}"):
                browser.key("Enter", 13)
            else:
                browser.run(f"{button}.click()")
            check_sorted(browser.run(COLUMN % (table, column, column)), "descending")
            browser.run(f"{button}.click()")
            if browser.run(COLUMN % (table, 0, 0))["cells"] != before:
                raise Failed("a third click does not give back the order of the run")
        told = browser.run(f"""(() => {{
          const row = {at}.tBodies[0].rows[0], ask = row.querySelector(".ask");
          ask.click();
          const told = [...row.nextElementSibling.querySelectorAll("dd")].map(text => text.textContent.trim());
          const expanded = ask.getAttribute("aria-expanded");
          ask.click();
          return {{ told, expanded, closed: !{at}.querySelector("tr.told") }};
        }})()""")
        if len(told["told"]) < 12 or not all(told["told"]) or told["expanded"] != "true" or not told["closed"]:
            raise Failed(f"the first row of table {table} does not tell of itself: {told}")
        more = browser.run(f"""(() => {{
          const shown = () => [...{at}.tHead.rows[0].cells].filter(head => head.checkVisibility()).length;
          const before = shown(), box = {at}.closest("section").querySelector(".more");
          box?.click();
          const after = shown();
          box?.click();
          return {{ before, after, hidden: {at}.tHead.querySelectorAll(".extra").length }};
        }})()""")
        if more["after"] != count or more["before"] + more["hidden"] != count:
            raise Failed(f"table {table}: {more} of {count} columns")
    return columns


def is_light(browser):
    colour = browser.run("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) > 384


def check(browser, page, window, scheme, screenshots):
    browser.open(page, window, scheme)
    name = f"{page.stem}-{window}-{scheme}"
    browser.shot(screenshots / f"{name}.png", whole=False)
    browser.shot(screenshots / f"{name}-whole.png", whole=True)
    if is_light(browser) != (scheme == "light"):
        raise Failed(f"the page is not {scheme}")
    # What is folded is checked too.
    browser.run('document.querySelectorAll("details").forEach(details => details.open = true)')
    for what, expression in (("labels on top of each other", OVERLAPS), ("labels cut off", CUT)):
        found = browser.run(expression)
        if found:
            raise Failed(f"{what}: {found[:5]} and {max(len(found) - 5, 0)} more")
    columns = check_tables(browser)
    width = browser.run("document.documentElement.scrollWidth")
    if width > WINDOWS[window][0]:
        wide = browser.run(f"""[...document.body.querySelectorAll("*")].filter(element => !element.closest(".box, .picture")
          && element.getBoundingClientRect().right > {WINDOWS[window][0]} + 1).slice(0, 3).map(element => element.outerHTML.slice(0, 120))""")
        raise Failed(f"the page is {width} pixels wide: {wide}")
    browser.run('document.getElementById("theme").click()')
    if browser.run("document.documentElement.dataset.theme") != "dark" or is_light(browser):
        raise Failed("the theme does not change")
    browser.run('localStorage.removeItem("theme")')
    complaints = list(browser.complaints())
    if complaints:
        raise Failed("; ".join(complaints))
    print(f"{name}: {columns} columns sorted")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    screenshots, pages = pathlib.Path(sys.argv[1]), [pathlib.Path(page) for page in sys.argv[2:]]
    screenshots.mkdir(parents=True, exist_ok=True)
    failed = []
    # Some of the browser's processes write to their profile for a moment after the one that was started has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            for page in pages:
                for window in WINDOWS:
                    for scheme in ("light", "dark"):
                        try:
                            check(browser, page, window, scheme, screenshots)
                        except Failed as error:
                            failed.append(f"{page.name}, {window}, {scheme}: {error}")
                            print(f"error: {failed[-1]}", file=sys.stderr)
        finally:
            browser.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
