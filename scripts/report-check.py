#!/usr/bin/env python3
"""Checks pages of `candle-bench report` and of `candle-infer run --html` in headless Chromium.

    scripts/report-check.py SCREENSHOTS PAGE ...

At desktop and phone width, light and dark: no console error, no exception, no request to another place, no page wider than the
window, no labels of a chart on top of each other. Of a report: every column of every table is sorted by a click and by a key and
compared with the same sort made here; a row tells of itself, more columns appear when asked for, the theme changes. A page with a
log beside it, its name in .jsonl, is one of a replay: replay_check.py says what is checked. Needs nothing but Python.
"""

import math
import pathlib
import re
import sys
import tempfile

import replay_check
from browser import WINDOWS, Browser, Failed, check_look, check_silence, check_width, is_light

COLUMN = """(() => {
  const table = document.querySelectorAll("table.rows")[%d], head = table.tHead.rows[0].cells[%d];
  const rows = [...table.tBodies[0].rows].filter(row => !row.classList.contains("told"));
  const cell = row => row.cells[%d];
  const text = cell => [...cell.childNodes].find(node => node.nodeType === Node.TEXT_NODE)?.data ?? "";
  return { sorted: head.getAttribute("aria-sort"), numeric: head.classList.contains("n"), name: head.textContent,
           cells: rows.map(row => cell(row).dataset.value ?? text(cell(row))) };
})()"""


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


def check(browser, page, window, scheme, screenshots):
    name = check_look(browser, page, window, scheme, screenshots)
    log = page.with_suffix(".jsonl")
    if log.exists():
        found = replay_check.check(browser, log)
    else:
        found = f"{check_tables(browser)} columns sorted"
    check_width(browser, window)
    if not log.exists():
        check_theme(browser)
    check_silence(browser)
    print(f"{name}: {found}")


def check_theme(browser):
    browser.run('document.getElementById("theme").click()')
    if browser.run("document.documentElement.dataset.theme") != "dark" or is_light(browser):
        raise Failed("the theme does not change")
    browser.run('localStorage.removeItem("theme")')


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
