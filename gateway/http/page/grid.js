// Partitions as a grid: a cell each, in a place that stays, with a colour and a sign for how it is.

const HEALTH = {
  leaderless: ["×", "no leader"],
  silent: ["!", "silent"],
  held: ["‖", "held"],
  spooling: ["↓", "in the spool"],
  waiting: ["…", "waiting"],
  ok: ["", "ok"],
  idle: ["", "idle"],
};
const CELLS = 2000; // so many are drawn; the gateway sends no more, the worst first
const cells = new Map(); // "topic\npartition" → its button
const topics = new Map(); // topic → {box, head, cells}
let layoutNow = "";

function kindOf(partition) {
  return Object.hasOwn(HEALTH, partition.health) ? partition.health : "other";
}

function showGrid(partitions, total) {
  const section = find("partitions");
  section.hidden = partitions.length === 0;
  if (section.hidden) return;
  const shown = partitions.slice(0, CELLS).sort(byPlace);
  const layout = shown.map(keyOf).join("\r");
  if (layout !== layoutNow) {
    layoutNow = layout;
    placeCells(shown);
  }
  for (const partition of shown) colour(cells.get(keyOf(partition)), partition);
  const some = `${count(shown.length)} of ${count(total)} partitions in use are shown, the worst of them.`;
  say(find("partitions-note"), total > shown.length ? some : "");
  showLegend(shown);
  const detail = find("detail");
  const chosen = cells.get(detail.dataset.key);
  if (chosen) tell(chosen);
  else if (detail.dataset.key) say(detail, `${detail.dataset.key.replace("\n", "-")}: not listed any more.`);
}

function byPlace(one, other) {
  return one.topic < other.topic ? -1 : one.topic > other.topic ? 1 : one.partition - other.partition;
}

function keyOf(partition) {
  return `${partition.topic}\n${partition.partition}`;
}

function placeCells(shown) {
  const focused = document.activeElement?.dataset?.key;
  cells.clear();
  topics.clear();
  const grid = find("grid");
  grid.classList.toggle("many", shown.length > 200);
  for (const partition of shown) {
    let topic = topics.get(partition.topic);
    if (!topic) {
      const row = element("div", { class: "cells" });
      const title = element("h3", {}, textOf(partition.topic), " ", element("span"));
      const attributes = { class: "topic", role: "group", "aria-label": `Topic ${partition.topic}` };
      topic = { box: element("div", attributes, title, row), row, cells: 0 };
      topics.set(partition.topic, topic);
    }
    const key = keyOf(partition);
    const cell = element("button", { type: "button", class: "cell", tabindex: "-1", "data-key": key });
    cells.set(key, cell);
    topic.cells += 1;
    topic.row.append(cell);
  }
  for (const topic of topics.values()) {
    say(topic.box.querySelector("h3 span"), counted(topic.cells, "partition", "partitions"));
  }
  grid.replaceChildren(...[...topics.values()].map((topic) => topic.box));
  const entry = cells.get(focused) ?? cells.values().next().value;
  entry.tabIndex = 0;
  if (focused && cells.has(focused)) entry.focus();
}

function colour(cell, partition) {
  const kind = kindOf(partition);
  mark(cell, "data-health", kind);
  say(cell, kind === "other" ? "?" : HEALTH[kind][0]);
  const words = describe(partition);
  mark(cell, "title", words);
  mark(cell, "aria-label", words);
}

function describe(partition) {
  const kind = kindOf(partition);
  const { waiting, spooled, silent_seconds: silent, last_ack_age_seconds: age } = partition;
  return [
    `${partition.topic}-${partition.partition}: ${kind === "other" ? textOf(partition.health) : HEALTH[kind][1]}.`,
    number(partition.leader) === null ? "No leader." : `Leader: broker ${partition.leader}.`,
    waiting ? `${counted(waiting, "record waits", "records wait")} (${bytes(partition.waiting_bytes)}).` : "",
    spooled ? `${counted(spooled, "record is", "records are")} in the spool.` : "",
    silent ? `No acknowledgement for ${span(silent)} while records wait.` : "",
    !silent && number(age) !== null ? `Last acknowledgement ${span(age)} ago.` : "",
  ].filter(Boolean).join(" ");
}

function showLegend(shown) {
  const counts = new Map();
  for (const partition of shown) counts.set(kindOf(partition), (counts.get(kindOf(partition)) ?? 0) + 1);
  const kinds = [...Object.keys(HEALTH), "other"].filter((kind) => counts.has(kind));
  const legend = find("legend");
  const now = kinds.map((kind) => `${kind} ${counts.get(kind)}`).join();
  if (legend.dataset.now === now) return;
  legend.dataset.now = now;
  legend.replaceChildren(...kinds.map((kind) => {
    const [sign, word] = HEALTH[kind] ?? ["?", "other"];
    const cell = element("span", { class: "cell", "data-health": kind, "aria-hidden": "true" }, sign);
    return element("li", {}, cell, `${count(counts.get(kind))} ${word}`);
  }));
}

function tell(cell) {
  const detail = find("detail");
  detail.dataset.key = cell.dataset.key;
  say(detail, cell.title);
}

// One Tab stop; the arrow keys go from cell to cell.
function step(event) {
  const ways = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  const vertically = event.key === "ArrowDown" || event.key === "ArrowUp";
  const cell = event.target.closest(".cell[data-key]");
  if (!cell || !(event.key in ways || vertically)) return;
  const all = [...cells.values()];
  const at = all.indexOf(cell);
  let next = at + (ways[event.key] ?? 0);
  if (vertically) next = all.indexOf(vertical(all, cell, event.key === "ArrowDown"));
  const target = all[Math.min(all.length - 1, Math.max(0, next))];
  cell.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
  event.preventDefault();
}

// The nearest cell of the line above or below.
function vertical(all, cell, down) {
  const from = cell.getBoundingClientRect();
  let best = cell;
  let bestDistance = Infinity;
  for (const other of all) {
    const to = other.getBoundingClientRect();
    const away = down ? to.top - from.top : from.top - to.top;
    if (away < from.height / 2) continue;
    const distance = away * 1000 + Math.abs(to.left - from.left);
    if (distance < bestDistance) [best, bestDistance] = [other, distance];
  }
  return best;
}

function watchGrid() {
  const grid = find("grid");
  for (const kind of ["click", "focusin", "mouseover"]) {
    grid.addEventListener(kind, (event) => {
      const cell = event.target.closest(".cell[data-key]");
      if (cell) tell(cell);
    });
  }
  grid.addEventListener("keydown", step);
}
