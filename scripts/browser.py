"""Headless Chromium over its DevTools protocol on two pipes, and what every page is checked for. Needs nothing but Python."""

import base64
import json
import os
import pathlib
import re
import shlex
import subprocess

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
        self.received, self.number, self.session, self.events, self.own = b"", 0, None, [], ()
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

    def wait_for(self, promise):
        """The value of a promise of the page."""
        result = self.ask("Runtime.evaluate", expression=promise, awaitPromise=True, returnByValue=True)
        return result["result"].get("value")

    def open(self, page, window, scheme):
        """Opens a file, or an address, from which it may ask for more."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self.own = ("file:", "data:", *([address] if isinstance(page, str) else []))
        width, height = WINDOWS[window]
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=window == "phone")
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=address)
        self.wait("Page.loadEventFired")

    def key(self, name, code):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, text="\r" if kind == "keyDown" and name == "Enter" else "")

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1 if kind == "mousePressed" else 0, clickCount=1)

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
                case "Network.requestWillBeSent" if not params["request"]["url"].startswith(self.own):
                    yield f"asks for {params['request']['url']}"


def is_light(browser):
    colour = browser.run("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) > 384


def check_look(browser, page, window, scheme, screenshots):
    """Opens a page: it is light or dark as asked for, and none of its labels is cut off or covers another. Returns the page's name here."""
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
    return name


def check_width(browser, window):
    """No page is wider than its window."""
    width = browser.run("document.documentElement.scrollWidth")
    if width > WINDOWS[window][0]:
        wide = browser.run(f"""[...document.body.querySelectorAll("*")].filter(element => !element.closest(".box, .picture")
          && element.getBoundingClientRect().right > {WINDOWS[window][0]} + 1).slice(0, 3).map(element => element.outerHTML.slice(0, 120))""")
        raise Failed(f"the page is {width} pixels wide: {wide}")


def check_silence(browser):
    """The browser has nothing to say against the page."""
    complaints = list(browser.complaints())
    if complaints:
        raise Failed("; ".join(complaints))
