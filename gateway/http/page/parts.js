"use strict";

// What all the others use: elements, numbers for people, tables that are brought up to date in place.
// Strings from the gateway go into text nodes and attributes alone; nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  return dress(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, name), attributes, children);
}

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function find(id) {
  return document.getElementById(id);
}

// Written only when it differs: a screen reader repeats what is written again, and a selection would be lost.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function mark(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

function list(value) {
  return Array.isArray(value) ? value : [];
}

function asTable(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
}

function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });

function count(value) {
  return number(value) === null ? "–" : whole.format(value);
}

function counted(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

function rate(value) {
  if (number(value) === null) return "–";
  return value > 0 && value < 10 ? fine.format(value) : whole.format(value);
}

function bytes(value) {
  if (number(value) === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (Math.abs(value) >= 1000 && step < units.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${step && Math.abs(value) < 10 ? value.toFixed(1) : whole.format(value)} ${units[step]}`;
}

function span(seconds) {
  if (number(seconds) === null) return "–";
  if (seconds > 0 && seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

function clock(moment) {
  return moment.toLocaleTimeString("en-GB");
}

// A moment as the gateway writes it, in the time of whoever reads.
function moment(text) {
  const at = new Date(typeof text === "number" ? text * 1000 : text);
  if (Number.isNaN(at.getTime())) return String(text ?? "–");
  const today = at.toDateString() === new Date().toDateString();
  return today ? clock(at) : `${at.toLocaleDateString("en-GB")} ${clock(at)}`;
}

function textOf(value) {
  return value === null || value === undefined ? "" : String(value);
}

// A table's head where it has changed, then its rows. A cell is a text, or {text, tone, meter: [value, max]}. Columns
// are {name, figures, room}; room "small" or "large" keeps a column from being squeezed. Rows beyond `most` are left
// out, which the section's note says.
function fill(section, columns, rows, { most = 100, note = "", head = false } = {}) {
  section.hidden = rows.length === 0;
  const table = section.querySelector("table");
  const names = columns.map((column) => column.name).join("\n");
  if (table.dataset.columns !== names) {
    table.dataset.columns = names;
    if (columns.length > 2) table.className = "cards"; // where it is narrow
    const heads = columns.map((column) => element("th", { scope: "col", ...kindOfColumn(column) }, column.name));
    table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody"));
  }
  const body = table.tBodies[0];
  const shown = rows.slice(0, most);
  while (body.rows.length > shown.length) body.deleteRow(-1);
  while (body.rows.length < shown.length) body.append(rowOf(columns, head));
  shown.forEach((row, at) => row.forEach((cell, column) => write(body.rows[at].cells[column], cell)));
  const left = rows.length - shown.length;
  const below = section.querySelector(".note");
  if (below) say(below, [left ? `${count(left)} more are not shown; /status has them.` : "", note].join(" ").trim());
}

function kindOfColumn({ figures: right, room }) {
  return { ...(right && { class: "number" }), ...(room && { "data-room": room }) };
}

function rowOf(columns, head) {
  const cells = columns.map((column, at) => {
    const attributes = { "data-label": column.name, ...kindOfColumn(column) };
    return head && at === 0 ? element("th", { scope: "row", ...attributes }) : element("td", attributes);
  });
  return element("tr", {}, ...cells);
}

function write(node, cell) {
  const { text, tone = "", meter = null } = typeof cell === "object" && cell !== null ? cell : { text: textOf(cell) };
  mark(node, "data-tone", tone);
  if (!meter) {
    say(node, text);
    return;
  }
  if (!node.firstElementChild) {
    node.replaceChildren(element("span", {}, element("meter", { min: "0", "aria-hidden": "true" }), element("span")));
  }
  const [bar, words] = node.firstElementChild.children;
  bar.max = Math.max(1, meter[1]);
  bar.high = bar.max * 0.95;
  bar.value = meter[0];
  say(words, text);
}

function define(section, pairs) {
  const place = section.querySelector("dl");
  const wanted = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const names = wanted.map(([name]) => name).join("\n");
  if (place.dataset.names !== names) {
    place.dataset.names = names;
    place.replaceChildren(...wanted.flatMap(([name]) => [element("dt", {}, name), element("dd")]));
  }
  wanted.forEach(([, value], at) => say(place.children[2 * at + 1], String(value)));
  section.hidden = wanted.length === 0;
}
