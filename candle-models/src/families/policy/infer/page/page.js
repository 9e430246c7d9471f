"use strict";
const game = JSON.parse(document.getElementById("replay").textContent);
const arrays = { Uint8: Uint8Array, Int16: Int16Array, Uint16: Uint16Array, Int32: Int32Array };
const column = ({ kind, data }) => new arrays[kind](Uint8Array.from(atob(data), c => c.charCodeAt(0)).buffer);
const columns = object => Object.fromEntries(Object.entries(object).map(([name, value]) => [name, value?.kind ? column(value) : value]));
const element = id => document.getElementById(id);

// Texts of a replay become text nodes and nothing else.
const add = (parent, name, attributes = {}, text = "") => {
  const space = parent.namespaceURI === "http://www.w3.org/2000/svg" || name === "svg" ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const child = document.createElementNS(space, name);
  set(child, attributes);
  if (text) child.textContent = text;
  parent.append(child);
  return child;
};
const set = (node, attributes) => Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));

const ids = column(game.ids), last = ids.length - 1;
const players = game.players.map(player => ({ ...player, frames: columns(player.frames), decided: player.decided && columns(player.decided) }));
const dots = columns(game.dots), dotsBefore = new Uint32Array(last + 2);
dots.count.forEach((count, i) => dotsBefore[i + 1] = dotsBefore[i] + count);
const BYTES = game.groups.length, BUTTONS = game.buttons.length;

// Time since "Go!" by the frame's id.
const clock = i => {
  const hundredths = Math.round(Math.abs(ids[i]) * 100 / 60), minutes = Math.floor(hundredths / 6000);
  return (ids[i] < 0 ? "−" : "") + minutes + ":" + (hundredths % 6000 / 100).toFixed(2).padStart(5, "0");
};
const characterOf = (player, i) => game.characters[player.frames.character[i]] ?? "unknown fighter";
const nameOf = player => [player.name || "no name", player.code && "(" + player.code + ")", player.computer && "(the computer)"].filter(Boolean).join(" ");
const stateOf = (player, i) => {
  const id = player.frames.state[i];
  return (game.states.find(([, from, to]) => from <= id && id <= to)?.[0] ?? "special move or other") + " (state " + id + ")";
};
const percentOf = (player, i) => (player.frames.percent[i] / 32).toFixed(1) + "%";
const flag = (player, i, bit) => (player.frames.flags[i] >> bit & 1) === 1;
const factsOf = (player, i) => {
  const stocks = player.frames.stocks[i];
  return [stocks + (stocks === 1 ? " stock" : " stocks"), stateOf(player, i), "facing " + (flag(player, i, 3) ? "left" : "right"),
    flag(player, i, 0) ? "on the ground" : "in the air", flag(player, i, 2) && "hitstun", flag(player, i, 1) && "invulnerable"].filter(Boolean).join(", ");
};

// Actions as they stand in the log: a text for each component.
const signed = value => (value < 0 ? "" : "+") + value;
const texts = bytes => [...bytes].map((byte, group) => {
  if (group === 0) return game.buttons.filter((_, i) => byte >> i & 1).join(" ") || "none";
  return group < BYTES - 1 ? signed(byte / 8 - 1) : (byte / 4).toFixed(2);
});
const NEUTRAL = [0, 8, 8, 8, 8, 0];
const short = bytes => {
  const all = texts(bytes), moved = game.groups.map((name, group) => bytes[group] !== NEUTRAL[group] && (group ? name + " " : "") + all[group]);
  return moved.filter(Boolean).join(", ") || "nothing";
};
// What was decided in a frame, if anything was.
const decision = (player, i) => {
  const { decided } = player, at = i - (decided?.first ?? Infinity);
  if (!(at >= 0 && at * BYTES < decided.recorded.length)) return null;
  const some = array => array.subarray(at * BYTES, at * BYTES + BYTES);
  return { recorded: some(decided.recorded), chosen: some(decided.chosen), nats: some(decided.nats) };
};
// Nats of a whole action in every frame of the game; none before the first decision.
const totals = new Map(players.filter(player => player.decided).map(player => {
  const total = new Float32Array(last + 1), { first, nats } = player.decided;
  nats.forEach((some, i) => total[first + Math.floor(i / BYTES)] += some / 1000);
  return [player, total];
}));
const equal = (a, b) => a.every((byte, i) => byte === b[i]);

// The head.
const watched = [...totals.keys()];
const seconds = Math.max(ids[last], 0) / 60;
element("title").textContent = players.map(player => characterOf(player, 0) + ", " + nameOf(player)).join(" against ");
element("about").textContent = [game.stage.name, Math.floor(seconds / 60) + ":" + Math.floor(seconds % 60).toString().padStart(2, "0"),
  last + 1 + " frames", game.file, "format " + game.version, "policy " + game.model.name].join(" · ");
element("incomplete").hidden = !game.incomplete;
element("incomplete").textContent = "The replay is incomplete: " + game.incomplete;
const { name: model, delay, seed, plays_like: like } = game.model;
element("method").textContent = "In every frame " + model + " was given the recorded past, its own earlier choices never: what it chose did not act on this game. It saw the game up to "
  + (delay === 0 ? "the frame before" : delay + 1 + " frames before") + " the one that it decided. Its choice is " + (seed === null ? "the most likely class of each component" : "drawn from its distribution with seed " + seed)
  + (like ? ", and it plays like " + like : "") + ".";
element("unseen-parts").textContent = "The stage is drawn from published constants: blast zones by Magus420 (Smashboards), platforms as in the library libmelee. " + (game.stage.shape?.unseen ?? "");
element("frame").max = last;

// The fighters' cards.
const cards = players.map((player, i) => {
  const card = add(element("fighters"), "div", { class: "fighter", style: "--own: var(--port-" + i + ")" });
  const title = add(card, "h2"), facts = add(card, "p"), percent = add(facts, "b"), rest = add(facts, "span");
  return at => {
    title.textContent = "Port " + player.port + " · " + characterOf(player, at) + " · " + nameOf(player);
    percent.textContent = percentOf(player, at);
    rest.textContent = " " + factsOf(player, at);
  };
});

// The stage.
const stage = element("stage"), shape = game.stage.shape;
const place = (player, i) => [player.frames.x[i] / game.parts, -player.frames.y[i] / game.parts];
const points = list => list.map(([x, y]) => x + "," + -y).join(" ");
const [left, right, top_, bottom] = shape.blast, edge = shape.floor.at(-1)[0];
add(stage, "rect", { class: "blast", x: left, y: -top_, width: right - left, height: top_ - bottom });
add(stage, "polygon", { class: "floor", points: points([...shape.floor, [edge - 12, -14], [12 - edge, -14]]) });
shape.platforms.forEach(([y, from, to]) => add(stage, "line", { class: "platform", x1: from, x2: to, y1: 0.8 - y, y2: 0.8 - y }));
const dotsDrawn = Array.from({ length: 7 }, () => add(stage, "circle", { class: "dot", r: 1.6 }));
const bodies = players.map((player, i) => {
  const group = add(stage, "g", { style: "--own: var(--port-" + i + ")" });
  const trail = add(group, "path", { class: "trail" }), body = add(group, "g");
  const shield = add(body, "circle", { class: "shield", cy: -7.5 }), facing = add(body, "g");
  add(facing, "path", { class: "body", d: "M-3.4 -3.4V-11.6A3.4 3.4 0 0 1 3.4 -11.6L7 -9.6L3.4 -7.6V-3.4A3.4 3.4 0 0 1 -3.4 -3.4Z" });
  const ring = add(body, "circle", { class: "ring", cy: -7.5, r: 10 }), label = add(body, "text", {}, "P" + player.port);
  return at => {
    const [x, y] = place(player, at), state = player.frames.state[at];
    let path = "", before = null;
    for (let i = Math.max(0, at - 30); i <= at; i++) {
      const [x, y] = place(player, i);
      path += (before && Math.hypot(x - before[0], y - before[1]) < 20 ? "L" : "M") + x.toFixed(1) + " " + (y - 7.5).toFixed(1);
      before = [x, y];
    }
    set(trail, { d: path });
    set(group, { class: [flag(player, at, 2) && "hitstun", state <= 10 && "dead"].filter(Boolean).join(" ") });
    set(body, { transform: "translate(" + x + " " + y + ")" });
    set(facing, { transform: "scale(" + (flag(player, at, 3) ? -1 : 1) + " 1)" });
    set(ring, { visibility: flag(player, at, 1) ? "visible" : "hidden" });
    set(shield, { r: state >= 178 && state <= 182 ? player.frames.shield[at] / 5 : 0 });
    return label;
  };
});
// Stage and fighters, as near as they fit, twice as wide as high.
const look = at => {
  let [x0, x1, y0, y1] = [-edge - 15, edge + 15, -70, 32];
  players.forEach(player => {
    const [x, y] = place(player, at);
    if (player.frames.state[at] <= 10) return;
    x0 = Math.min(x0, Math.max(x - 22, left - 4)), x1 = Math.max(x1, Math.min(x + 22, right + 4));
    y0 = Math.min(y0, Math.max(y - 30, -top_ - 4)), y1 = Math.max(y1, Math.min(y + 14, 4 - bottom));
  });
  const width = Math.max(x1 - x0, 2 * (y1 - y0)), height = width / 2;
  set(stage, { viewBox: [(x0 + x1 - width) / 2, (y0 + y1 - height) / 2, width, height].join(" ") });
  return width;
};
const showStage = at => {
  const width = look(at);
  // One above its fighter and one below, so that they do not cover each other.
  bodies.forEach((body, i) => set(body(at), { "font-size": width / 36, y: i === 0 ? -17 : width / 36 }));
  dotsDrawn.forEach((dot, n) => {
    const i = dotsBefore[at] + n, shown = i < dotsBefore[at + 1];
    set(dot, { visibility: shown ? "visible" : "hidden" });
    if (!shown) return;
    const owner = dots.owner[i];
    set(dot, { cx: dots.x[i] / game.parts, cy: -dots.y[i] / game.parts - (owner >= 4 ? 5 : 0), r: owner >= 4 ? 4 : 1.6,
      style: owner % 4 < 2 ? "--own: var(--port-" + owner % 4 + ")" : "" });
  });
};

// The controllers: the player's and the policy's.
const pad = (title, own) => {
  const figure = add(element("pads"), "figure", { style: "--own: " + own });
  const caption = add(figure, "figcaption", {}, title);
  const svg = add(figure, "svg", { viewBox: "0 0 200 118", "aria-hidden": "true" });
  const stick = (x, y, reach) => {
    add(svg, "circle", { class: "well", cx: x, cy: y, r: reach + 7 });
    const line = add(svg, "line", { class: "stick", x1: x, y1: y }), knob = add(svg, "circle", { class: "knob", r: 6 });
    return (a, b) => {
      const [x2, y2] = [x + reach * a, y - reach * b];
      set(line, { x2, y2 });
      set(knob, { cx: x2, cy: y2 });
    };
  };
  const main = stick(42, 66, 28), c = stick(108, 82, 18);
  add(svg, "rect", { class: "well", x: 20, y: 6, width: 88, height: 10, rx: 3 });
  const level = add(svg, "rect", { class: "level", x: 20, y: 6, height: 10, rx: 3 });
  // In the order of the buttons: A B X Y Z L R D_up.
  const places = [[162, 66, 15], [140, 88, 9], [187, 60, 9], [156, 40, 9], [187, 34, 8], [10, 11, 8], [119, 11, 8], [75, 40, 9]];
  const buttons = game.buttons.map((name, i) => {
    const [cx, cy, r] = places[i], circle = add(svg, "circle", { class: "well", cx, cy, r });
    add(svg, "text", { x: cx, y: cy }, name === "D_up" ? "↑" : name);
    return circle;
  });
  return (bytes, title) => {
    caption.textContent = title;
    const axis = group => bytes[group] / 8 - 1;
    main(axis(1), axis(2));
    c(axis(3), axis(4));
    set(level, { width: 88 * bytes[5] / 4 });
    buttons.forEach((circle, i) => set(circle, { class: bytes[0] >> i & 1 ? "down" : "well" }));
    svg.style.opacity = bytes === NEUTRAL ? 0.4 : 1;
  };
};
const pads = [pad("Player", "var(--link)"), pad("Policy", "var(--chosen)")];
const rows = game.groups.map(name => {
  const row = add(element("components"), "tr");
  add(row, "th", { scope: "row" }, name);
  return [row, add(row, "td"), add(row, "td"), add(row, "td", { class: "n" })];
});
const nats = milli => milli === 65535 ? "≥ 65.54" : (milli / 1000).toFixed(3);
const showControllers = at => {
  const found = decision(player, at);
  pads[0](found?.recorded ?? NEUTRAL, "Port " + player.port + ", the player");
  pads[1](found?.chosen ?? NEUTRAL, "The policy's choice");
  const [recorded, chosen] = found ? [texts(found.recorded), texts(found.chosen)] : [];
  rows.forEach(([row, ...cells], group) => {
    const values = found ? [recorded[group], chosen[group], nats(found.nats[group])] : ["–", "–", "–"];
    cells.forEach((cell, i) => cell.textContent = values[i]);
    row.classList.toggle("differs", !!found && values[0] !== values[1]);
  });
  element("same").textContent = !found ? "decides later" : equal(found.recorded, found.chosen) ? "the same" : "differs";
  element("nats").textContent = found ? totals.get(player)[at].toFixed(3) : "–";
};

// The likelihood of the whole game and of some seconds.
const HEIGHT = 100, SIDE = 120;
const overview = element("overview"), close = element("close");
const most = add(overview, "path", { class: "most" }), mean = add(overview, "path", { class: "mean" });
set(overview, { viewBox: "0 0 " + (last + 1) + " " + HEIGHT });
set(close, { viewBox: "0 0 " + (2 * SIDE + 1) + " " + HEIGHT });
players.forEach((player, i) => player.frames.stocks.forEach((stocks, at) => {
  if (at > 0 && stocks < player.frames.stocks[at - 1]) add(overview, "line", { class: "lost", x1: at, x2: at, y1: 0, y2: HEIGHT, style: "--own: var(--port-" + i + ")" });
}));
const now = add(overview, "line", { class: "now", y1: 0, y2: HEIGHT });
const bars = add(close, "path", { class: "bars" });
add(close, "line", { class: "now", x1: SIDE + 0.5, x2: SIDE + 0.5, y1: 0, y2: HEIGHT, opacity: 0.35 });
let peak = 1;
const drawOverview = () => {
  const total = totals.get(player), width = Math.max(1, Math.ceil((last + 1) / 600)), highs = [], means = [];
  for (let from = 0; from <= last; from += width) {
    const some = total.subarray(from, Math.min(from + width, last + 1));
    highs.push(some.reduce((a, b) => Math.max(a, b)));
    means.push(some.reduce((a, b) => a + b) / some.length);
  }
  peak = Math.max(1, highs.reduce((a, b) => Math.max(a, b)));
  const point = (value, i) => (i * width) + " " + (HEIGHT * (1 - value / peak)).toFixed(2);
  set(most, { d: "M0 " + HEIGHT + "L" + highs.map((value, i) => point(value, i) + "L" + point(value, i + 1)).join("L") + "V" + HEIGHT + "Z" });
  set(mean, { d: "M" + means.map((value, i) => point(value, i + 0.5)).join("L") });
  const decided = player.decided.nats.length / BYTES;
  element("mean").textContent = "port " + player.port + ": " + (total.reduce((a, b) => a + b, 0) / decided).toFixed(3) + " nats per frame";
  element("overview-top").textContent = element("close-top").textContent = peak.toFixed(1) + " nats";
};
const showLikelihood = at => {
  set(now, { x1: at + 0.5, x2: at + 0.5 });
  const total = totals.get(player);
  let path = "";
  for (let i = Math.max(0, at - SIDE); i <= Math.min(last, at + SIDE); i++) {
    const high = HEIGHT * total[i] / peak;
    path += "M" + (i - at + SIDE + 0.1) + " " + HEIGHT + "v" + (-high).toFixed(2) + "h0.8V" + HEIGHT + "z";
  }
  set(bars, { d: path });
};

// Where they differ most.
const MOST = 20, APART = 30;
let places = [];
const hash = at => "#port-" + player.port + "-frame-" + ids[at];
const listDifferences = () => {
  const total = totals.get(player), order = [...total.keys()].filter(at => decision(player, at)).sort((a, b) => total[b] - total[a]);
  places = [];
  for (const at of order) {
    const { recorded, chosen } = decision(player, at);
    if (equal(recorded, chosen) || places.some(other => Math.abs(other - at) < APART)) continue;
    places.push(at);
    if (places.length === MOST) break;
  }
  element("differences").replaceChildren();
  places.forEach(at => {
    const { recorded, chosen } = decision(player, at), item = add(element("differences"), "li");
    const link = add(item, "a", { href: hash(at) }, clock(at));
    // A click changes the address, which is followed, unless it is this one already.
    link.addEventListener("click", () => { if (location.hash === link.hash) jump(at); });
    item.append(" " + total[at].toFixed(2) + " nats: the player " + short(recorded) + "; the policy " + short(chosen));
  });
};

// One frame everywhere.
let player = watched[0], frame = 0, playing = false, told = 0;
const show = () => {
  cards.forEach(card => card(frame));
  showStage(frame);
  showControllers(frame);
  showLikelihood(frame);
  const slider = element("frame"), text = clock(frame) + ", frame " + ids[frame] + " (" + ids[0] + " to " + ids[last] + ")";
  slider.value = frame;
  slider.setAttribute("aria-valuetext", text);
  element("time").textContent = text;
};
// To those who listen, once it stands still.
const tell = () => {
  clearTimeout(told);
  told = setTimeout(() => {
    if (playing) return;
    element("said").textContent = clock(frame) + ". " + players.map(player => "Port " + player.port + ": " + percentOf(player, frame) + ", " + factsOf(player, frame)).join(". ");
  }, 400);
};
const go = at => {
  frame = Math.min(Math.max(at, 0), last);
  show();
  if (!playing) tell();
};
const jump = at => {
  pause();
  go(at);
  stage.scrollIntoView({ block: "nearest" });
};
let before = 0, owed = 0;
const tick = time => {
  if (!playing) return;
  owed += Math.min(time - before, 250) * 0.06 * element("speed").value;
  before = time;
  const whole = Math.floor(owed);
  owed -= whole;
  if (whole > 0) go(frame + whole);
  if (frame === last) pause();
  else requestAnimationFrame(tick);
};
const pause = () => {
  playing = false;
  element("play").textContent = "Play";
  tell();
};
const play = () => {
  if (frame === last) go(0);
  playing = true;
  owed = 0;
  before = performance.now();
  element("play").textContent = "Pause";
  requestAnimationFrame(tick);
};
const step = by => { pause(); go(frame + by); };
const choose = chosen => {
  player = chosen;
  document.querySelectorAll("#ports input").forEach(radio => radio.checked = Number(radio.value) === player.port);
  drawOverview();
  listDifferences();
  show();
};
watched.forEach(one => {
  const label = add(element("ports"), "label"), radio = add(label, "input", { type: "radio", name: "port", value: one.port });
  label.append(" Port " + one.port + ": " + characterOf(one, 0) + ", " + nameOf(one));
  radio.addEventListener("change", () => choose(one));
});
const follow = () => {
  const [, port, id] = location.hash.match(/^#port-(\d)-frame-(-?\d+)$/) ?? [];
  const named = watched.find(one => one.port === Number(port)), at = ids.indexOf(Number(id));
  if (!named || at < 0) return;
  if (named !== player) choose(named);
  jump(at);
};
const next = () => {
  const later = places.filter(at => at > frame);
  const at = later.length ? Math.min(...later) : Math.min(...places);
  if (places.length) jump(at);
};
const speed = by => {
  const select = element("speed");
  select.selectedIndex = Math.min(Math.max(select.selectedIndex + by, 0), select.options.length - 1);
};

element("play").addEventListener("click", () => playing ? pause() : play());
[["second-back", -60], ["back", -1], ["on", 1], ["second-on", 60]].forEach(([id, by]) => element(id).addEventListener("click", () => step(by)));
element("frame").addEventListener("input", event => { pause(); go(Number(event.target.value)); });
// A share of the chart's width as a frame.
const drag = (svg, at) => {
  const moved = event => {
    if (event.type === "pointermove" && !(event.buttons & 1)) return;
    if (event.type === "pointerdown") svg.setPointerCapture(event.pointerId);
    const box = svg.getBoundingClientRect();
    pause();
    go(at((event.clientX - box.left) / box.width));
  };
  svg.addEventListener("pointerdown", moved);
  svg.addEventListener("pointermove", moved);
};
drag(overview, share => Math.floor(share * (last + 1)));
// Where it was put down stays under the finger: the picture moves with every step.
let put = 0;
close.addEventListener("pointerdown", () => put = frame, { capture: true });
drag(close, share => put - SIDE + Math.floor(share * (2 * SIDE + 1)));
addEventListener("hashchange", follow);
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("select")) return;
  const control = event.target.closest?.("button, a, summary, input");
  const keys = {
    ArrowLeft: () => step(event.shiftKey ? -60 : -1), ArrowRight: () => step(event.shiftKey ? 60 : 1), Home: () => step(-Infinity), End: () => step(Infinity),
    n: next, N: next, "+": () => speed(1), "-": () => speed(-1),
    p: () => choose(watched[(watched.indexOf(player) + 1) % watched.length]),
  };
  // A focused control has its own use of some keys.
  if (event.key === " " && (!control || control.id === "frame")) keys[" "] = () => playing ? pause() : play();
  if (control?.type === "radio") delete keys.ArrowLeft, delete keys.ArrowRight;
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

choose(player);
go(0);
follow();
