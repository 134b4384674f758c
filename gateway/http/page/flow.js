// The way from MQTT to Kafka as a drawing: side by side where there is room, else one below the other.

const WIDE = {
  size: [0, 22, 1000, 268],
  boxes: {
    mqtt: [6, 36, 236, 118], gateway: [382, 36, 236, 118], kafka: [758, 36, 236, 118],
    spool: [290, 222, 202, 64], dead: [508, 222, 202, 64],
  },
  pipes: {
    in: ["M242 80 H372", [307, 44, "middle"]], out: ["M618 80 H748", [683, 44, "middle"]],
    spool: ["M440 154 V212", [428, 192, "end"]], dead: ["M560 154 V212", [572, 192, "start"]],
  },
  backs: { in: ["M382 132 H252", [312, 152, "middle"]], out: ["M758 132 H628", [688, 152, "middle"]] },
};

const TALL = {
  size: [0, 0, 340, 640],
  boxes: {
    mqtt: [20, 6, 300, 118], gateway: [20, 206, 300, 118],
    spool: [6, 376, 146, 64], dead: [188, 376, 146, 64], kafka: [20, 516, 300, 118],
  },
  pipes: {
    in: ["M150 124 V196", [162, 158, "start"]], out: ["M178 324 V506", [192, 482, "start"]],
    spool: ["M80 324 V366", [0, 0, "start"]], dead: ["M260 324 V366", [0, 0, "start"]],
  },
  backs: { in: ["M110 206 V134", [98, 172, "end"]], out: ["M162 516 V334", [150, 486, "end"]] },
};

const narrow = window.matchMedia("(max-width: 640px)");
let drawing = null;

// Box, and the texts in it. Everything that changes is in `parts`.
function draw(layout) {
  const parts = { layout };
  const title = shape("title");
  const picture = shape("svg", { viewBox: layout.size.join(" "), role: "img" }, title);
  for (const [name, [path]] of Object.entries(layout.backs)) {
    picture.append(...arrow(path, "back", "back-head"), backText(parts, layout, name));
  }
  for (const [name, [path, [x, y, anchor]]] of Object.entries(layout.pipes)) {
    const [line, head] = arrow(path, "pipe", "head");
    parts[`pipe-${name}`] = line;
    parts[`label-${name}`] = shape("text", { x, y, "text-anchor": anchor, class: "label" });
    parts[`small-${name}`] = shape("text", { x, y: y + 19, "text-anchor": anchor, class: "small" });
    picture.append(line, head, parts[`label-${name}`], parts[`small-${name}`]);
  }
  for (const [name, place] of Object.entries(layout.boxes)) picture.append(box(parts, name, place));
  parts.title = title;
  find("flow").replaceChildren(picture);
  return parts;
}

function backText(parts, layout, name) {
  const [x, y, anchor] = layout.backs[name][1];
  parts[`back-${name}`] = shape("text", { x, y, "text-anchor": anchor, class: "small" });
  return parts[`back-${name}`];
}

// A path of straight parts, "M x y H x" or "V y", and the head at its end.
function arrow(path, lineClass, headClass) {
  const [, x, y, way, end] = /^M(\d+) (\d+) ([HV])(\d+)$/.exec(path);
  const [endx, endy] = way === "H" ? [Number(end), Number(y)] : [Number(x), Number(end)];
  const turn = way === "H" ? (endx > Number(x) ? 0 : 180) : endy > Number(y) ? 90 : 270;
  const transform = `translate(${endx} ${endy}) rotate(${turn})`;
  const head = shape("path", { d: "M-2 -7 L10 0 L-2 7 Z", class: headClass, transform });
  return [shape("path", { d: path, class: lineClass }), head];
}

function box(parts, name, [x, y, width, height]) {
  const group = shape("g", {}, shape("rect", { x, y, width, height, rx: 10, class: "box" }));
  const small = height < 100;
  const lines = small ? [["title", 24], ["first", 48]] : [["title", 26], ["first", 50], ["second", 72]];
  for (const [line, below] of lines) {
    const kind = line === "title" ? "title" : "";
    parts[`${name}-${line}`] = shape("text", { x: x + 14, y: y + below, class: kind });
    group.append(parts[`${name}-${line}`]);
  }
  if (!small) {
    const track = { x: x + 14, y: y + 90, width: width - 28, height: 10, rx: 5 };
    parts[`${name}-bar`] = shape("rect", { ...track, width: 0, class: "fill" });
    parts[`${name}-track`] = shape("rect", { ...track, class: "track" });
    group.append(parts[`${name}-track`], parts[`${name}-bar`]);
  }
  parts[`${name}-group`] = group;
  return group;
}

function showFlow(view) {
  const layout = narrow.matches ? TALL : WIDE;
  if (!drawing || drawing.layout !== layout) drawing = draw(layout);
  const parts = drawing;
  const put = (name, text) => say(parts[name], text);
  const tone = (name, critical, warning) =>
    mark(parts[`${name}-group`], "data-tone", critical ? "critical" : warning ? "warning" : "");
  const { sessions, brokers, ledger, spool, dead, rates, latency } = view;
  const away = sessions.filter((one) => !one.subscribed).length;
  const windowSize = sum(sessions, "window");
  const sick = brokers.filter((one) => one.health === "silent" || one.health === "unreachable").length;

  put("mqtt-title", "MQTT");
  const all = counted(sessions.length, "session", "sessions");
  put("mqtt-first", sessions.length ? `${count(sessions.length - away)} of ${all}` : "no session");
  put("mqtt-second", `window ${count(view.unacked)} of ${count(windowSize)}`);
  gauge(parts, "mqtt", windowSize ? view.unacked / windowSize : 0);
  tone("mqtt", away === sessions.length, away);

  put("gateway-title", view.fleet ? counted(view.workers.length, "worker", "workers") : "Gateway");
  put("gateway-first", `${count(ledger.in_flight)} in flight`);
  put("gateway-second", view.oldest === null ? "nothing waits" : `oldest waits ${span(view.oldest)}`);
  gauge(parts, "gateway", null);
  tone("gateway", false, view.down);

  put("kafka-title", "Kafka");
  const well = brokers.length - sick;
  const known = counted(brokers.length, "broker", "brokers");
  const answer = well === 1 || brokers.length === 1 ? "answers" : "answer";
  put("kafka-first", brokers.length ? `${count(well)} of ${known} ${answer}` : "");
  put("kafka-second", quantiles(latency.produce));
  gauge(parts, "kafka", null);
  tone("kafka", brokers.some((one) => one.health === "silent"), sick);

  put("spool-title", "Spool");
  const spooled = spool && (spool.messages ? `${count(spool.messages)}, ${bytes(spool.bytes)}` : "empty");
  put("spool-first", spooled || "off");
  tone("spool", spool && spool.problem, spool && spool.messages);
  put("dead-title", "Dead letters");
  put("dead-first", count(dead.total));

  put("label-in", `${rate(rates.received)}/s`);
  put("small-in", number(rates.received_bytes) === null ? "" : `${bytes(rates.received_bytes)}/s`);
  put("label-out", `${rate(rates.delivered)}/s`);
  put("small-out", number(rates.sent_bytes) === null ? "" : `${bytes(rates.sent_bytes)}/s`);
  put("back-in", "acknowledged");
  put("back-out", "acks=all");
  moving(parts["pipe-in"], rates.received > 0);
  moving(parts["pipe-out"], rates.delivered > 0);
  moving(parts["pipe-spool"], Boolean(spool && spool.messages));
  moving(parts["pipe-dead"], rates.dead_lettered > 0);
  put("title", describeFlow(view, away, sick));
  say(find("latency"), latencyText(latency));
}

function latencyText({ produce, end_to_end: whole }) {
  const known = [];
  if (quantiles(produce)) known.push(`a batch until Kafka’s acknowledgement ${quantiles(produce)}`);
  if (quantiles(whole)) known.push(`a message from MQTT to Kafka ${quantiles(whole)}`);
  return known.length ? `Over the last minute: ${known.join("; ")}.` : "";
}

function quantiles(found) {
  const { p50, p99 } = asTable(found);
  return number(p50) === null ? "" : `p50 ${span(p50)}, p99 ${span(p99)}`;
}

function describeFlow({ sessions, brokers, ledger, rates, spool, dead }, away, sick) {
  return [
    `${sessions.length - away} of ${sessions.length} MQTT sessions are subscribed.`,
    `${rate(rates.received)} messages a second come in, ${rate(rates.delivered)} a second are delivered to Kafka.`,
    brokers.length ? `${brokers.length - sick} of ${brokers.length} Kafka brokers answer.` : "",
    `${count(ledger.in_flight)} messages are in flight.`,
    spool ? `${count(spool.messages)} messages are in the spool.` : "",
    number(dead.total) === null ? "" : `There were ${count(dead.total)} dead letters.`,
  ].join(" ");
}

function gauge(parts, name, share) {
  const track = parts[`${name}-track`];
  const bar = parts[`${name}-bar`];
  mark(track, "visibility", share === null ? "hidden" : "visible");
  mark(bar, "visibility", share === null ? "hidden" : "visible");
  const full = Math.min(1, Math.max(0, share ?? 0));
  mark(bar, "width", String(Math.round(full * Number(track.getAttribute("width")))));
  mark(bar, "data-tone", full >= 0.95 ? "warning" : "");
}

function moving(line, really) {
  line.classList.toggle("moving", really);
}

function sum(rows, name) {
  return rows.reduce((total, row) => total + (number(row[name]) ?? 0), 0);
}
