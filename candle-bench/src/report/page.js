"use strict";
// Light, dark, or as the system says; remembered where the browser lets a file remember.
{
  const button = document.getElementById("theme"), root = document.documentElement;
  const recall = () => { try { return localStorage.getItem("theme") || ""; } catch { return ""; } };
  const show = theme => {
    root.dataset.theme = theme;
    button.textContent = "Theme: " + (theme || "system");
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = { "": "dark", dark: "light", light: "" }[root.dataset.theme];
    show(next);
    try { localStorage.setItem("theme", next); } catch { /* Then it is forgotten. */ }
  });
  show(["dark", "light"].includes(recall()) ? recall() : "");
}
for (const table of document.querySelectorAll("table.rows")) {
  const body = table.tBodies[0], original = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const suite = table.closest("section").id;

  // Sorting: numbers by value, texts as people count, what is empty or no number last; a third click gives back the run's order.
  const value = (row, i, numeric) => {
    const cell = row.cells[i], text = cell.dataset.value ?? ([...cell.childNodes].find(node => node.nodeType === Node.TEXT_NODE)?.data ?? "");
    if (!numeric) return text;
    const number = text.trim() === "" ? Infinity : Number(text);
    return Number.isFinite(number) ? number : null;
  };
  const order = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  const sort = i => {
    const head = heads[i], numeric = head.classList.contains("n");
    const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
    heads.forEach(other => other.setAttribute("aria-sort", other === head ? next : "none"));
    const sign = next === "descending" ? -1 : 1;
    const rows = next === "none" ? original : original.map(row => [value(row, i, numeric), row])
      .sort(([a], [b]) => a === null || a === "" ? (b === null || b === "" ? 0 : 1) : b === null || b === "" ? -1 : sign * order(a, b))
      .map(pair => pair[1]);
    body.append(...rows.flatMap(row => row.told ? [row, row.told] : [row]));
  };
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(i));
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
  });

  // A row tells what was measured, how often, what bounds it, where, and how.
  const tell = row => {
    const list = document.createElement("dl");
    list.className = "told";
    const line = (name, ...nodes) => {
      const term = document.createElement("dt"), text = document.createElement("dd");
      term.textContent = name;
      text.append(...nodes);
      list.append(term, text);
    };
    line("What", row.dataset.what);
    line("Figures", row.dataset.figures || "none that two runs are compared by");
    line("How often", row.dataset.often);
    line("Bound by", row.dataset.bound || "not told here: the suites ops and roofline place operations and passes under what bounds them");
    const place = document.getElementById(suite + "-place-" + row.dataset.place);
    if (place) list.append(...place.cloneNode(true).childNodes);
    line("Method", document.getElementById(suite + "-method").textContent);
    const told = document.createElement("tr"), cell = told.insertCell();
    told.className = "told";
    cell.colSpan = heads.length;
    cell.append(list);
    return told;
  };
  const toggle = row => {
    if (row.told) {
      row.told.remove();
      row.told = null;
    } else {
      row.told = tell(row);
      row.after(row.told);
    }
    row.classList.toggle("open", !!row.told);
    row.querySelector(".ask").setAttribute("aria-expanded", String(!!row.told));
  };
  for (const row of original) {
    const ask = document.createElement("button");
    ask.type = "button";
    ask.className = "ask";
    ask.textContent = "›";
    ask.setAttribute("aria-label", "About this row");
    ask.setAttribute("aria-expanded", "false");
    (row.querySelector("td:not(.extra)") ?? row.cells[0]).prepend(ask);
    // Who selects text in a row does not ask about it.
    row.addEventListener("click", event => { if (event.target === ask || !String(getSelection())) toggle(row); });
  }
}
