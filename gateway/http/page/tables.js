// Brokers, sessions, routes, workers, ledger, spool, dead letters and lifecycle: a view goes in, the page shows it.

const TERMS = [
  ["received", "received"], ["recovered", "recovered from the spool"], ["delivered", "delivered"],
  ["filtered", "filtered"], ["dead_lettered", "dead-lettered"],
  ["copies", "copies"], ["in_flight", "in flight"], ["returned", "returned"], ["lost", "lost"],
];
const DONE = ["succeeded", "delivered", "sent"]; // outcomes of commands
const SESSIONS = 24; // shown rows, disconnected sessions first
const ROUTES = 50;
const DEAD_LETTERS = 10;
const NAMES = 20; // so many of a list in a sentence

const words = (name, room) => ({ name, room });
const figures = (name) => ({ name, figures: true });

function showBrokers({ brokers }) {
  const columns = [
    words("broker"), words("address"), words("health"), figures("partitions"), figures("waiting"),
    figures("last acknowledgement"),
  ];
  const rows = brokers.map((one) => [
    textOf(one.id), one.host ? `${one.host}:${one.port}` : "", healthCell(one), count(one.leads), count(one.waiting),
    number(one.last_ack_age_seconds) === null ? "–" : `${span(one.last_ack_age_seconds)} ago`,
  ]);
  fill(find("brokers"), columns, rows, { head: true });
}

function healthCell({ health, silent_seconds: silence, mute_seconds: muteness }) {
  // A healthy broker is silent for the milliseconds of each batch.
  const silent = health === "silent" ? silence || muteness : health === "unreachable" && muteness;
  const tones = new Map([["ok", ""], ["idle", "soft"], ["unreachable", "warning"]]);
  return {
    text: silent ? `${textOf(health)} for ${span(silent)}` : textOf(health),
    tone: tones.get(health) ?? "critical",
  };
}

function showSessions(view) {
  const { sessions, fleet } = view;
  const queues = queuesOf(view);
  const columns = [
    ...(fleet ? [words("worker")] : []), words("session"), words("client id"), words("state"), figures("window"),
    ...(queues ? [figures("queue in EMQX"), figures("dropped by EMQX")] : []),
  ];
  const rows = [...sessions].sort((one, other) => sickness(other) - sickness(one)).map((one) => [
    ...(fleet ? [textOf(one.worker)] : []), textOf(one.session), textOf(one.client_id), sessionCell(one),
    {
      text: `${count(one.unacked)} of ${count(one.window)}`,
      meter: [number(one.unacked) ?? 0, number(one.window) ?? 0],
    },
    ...(queues ? queueCells(queues.get(textOf(one.client_id))) : []),
  ]);
  fill(find("sessions"), columns, rows, { most: SESSIONS });
}

// What EMQX's REST API says of the sessions, where the gateway asks it: the client id's queue there, and what it lost.
function queuesOf({ alive }) {
  const seen = alive.flatMap((worker) => list(asTable(worker.emqx).sessions));
  return seen.length ? new Map(seen.map((one) => [textOf(one.client_id), one])) : null;
}

function queueCells(queue) {
  if (!queue || queue.known === false) return ["–", "–"];
  const dropped = total(queue.dropped);
  return [
    `${count(queue.queue_length)} of ${count(queue.queue_limit)}`,
    { text: count(dropped), tone: dropped ? "critical" : "" },
  ];
}

function sickness(session) {
  return session.subscribed ? 0 : session.connected ? 1 : 2;
}

function sessionCell({ connected, subscribed, problem }) {
  const because = problem ? `: ${problem}` : "";
  if (subscribed) return { text: "subscribed" };
  if (connected) return { text: `not subscribed${because}`, tone: "warning" };
  return { text: `not connected${because}`, tone: "critical" };
}

function showRoutes({ routes }) {
  const columns = [
    words("route"), figures("received"), figures("delivered"), figures("filtered"), figures("dead-lettered"),
  ];
  const rows = Object.entries(routes).map(([name, one]) => [
    name === "" ? "(no route)" : name, count(one.received), count(one.delivered), count(one.filtered),
    { text: count(one.dead_lettered), tone: one.dead_lettered ? "warning" : "" },
  ]);
  fill(find("routes"), columns, rows, { head: true, most: ROUTES });
}

// Of [[commands]]; without any the part stays hidden.
function showCommands({ commands, status }) {
  const columns = [
    words("commands"), words("state"), figures("consumed"), figures("done"), figures("not done"), figures("waiting"),
    figures("under way"), figures("oldest"),
  ];
  const rows = Object.entries(commands).map(([name, one]) => {
    const done = DONE.reduce((all, outcome) => all + (number(asTable(one.finished)[outcome]) ?? 0), 0);
    const failed = total(one.finished) - done;
    return [
      name, commandsCell(one, asTable(status.commands)), count(one.consumed), count(done),
      { text: count(failed), tone: failed ? "warning" : "" }, count(one.waiting), count(one.under_way),
      number(one.oldest_seconds) === null ? "–" : span(one.oldest_seconds),
    ];
  });
  fill(find("commands"), columns, rows, { head: true, most: ROUTES, note: commandsWords(commands) });
}

function commandsCell({ open, partitions, errors, imbalance }, { problem }) {
  const error = Object.values(asTable(errors))[0];
  if (error) return { text: textOf(error), tone: "critical" };
  if (imbalance) return { text: `does not balance: ${count(imbalance)}`, tone: "critical" };
  if (!open) return { text: problem ? `not sent: ${textOf(problem)}` : "not sent yet", tone: "warning" };
  return { text: `sent, from ${count(list(partitions).length)} partitions` };
}

// What was not done, and for which devices most commands wait.
function commandsWords(commands) {
  const all = Object.values(commands);
  const outcomes = new Map();
  for (const one of all) {
    for (const [outcome, many] of Object.entries(asTable(one.finished))) {
      if (!DONE.includes(outcome)) outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + (number(many) ?? 0));
    }
  }
  const missed = [...outcomes].filter(([, many]) => many).map(([outcome, many]) => `${outcome} ${count(many)}`);
  const busiest = all.flatMap((one) => Object.entries(asTable(one.busiest)));
  const waiting = busiest.map(([device, many]) => `${device} ${count(many)}`);
  return [
    missed.length ? `Not done: ${few(missed, ", ")}.` : "",
    waiting.length ? `Most wait for: ${few(waiting, ", ")}.` : "",
  ].filter(Boolean).join(" ");
}

function showWorkers({ workers }) {
  const columns = [
    words("worker"), words("state"), figures("process"), figures("restarts"), figures("sessions"), figures("unacked"),
    figures("received/s"), words("since", "large"),
  ];
  const rows = [...workers].sort((one, other) => trouble(other) - trouble(one)).map((one) => [
    textOf(one.worker), workerCell(one), one.pid ? String(one.pid) : "–", count(one.restarts), sessionsOf(one),
    count(one.unacked), rate(asTable(one.rates).received_per_second), one.since ? moment(one.since) : "–",
  ]);
  fill(find("workers"), columns, rows, { head: true });
}

function trouble(worker) {
  return worker.up === false ? 2 : worker.ready === false ? 1 : 0;
}

function workerCell({ up, ready, state, problem }) {
  if (up === false) return { text: `does not answer${problem ? `: ${problem}` : ""}`, tone: "critical" };
  if (ready === false) return { text: `${textOf(state)}, not ready`, tone: "warning" };
  return { text: `${textOf(state)}, ready` };
}

function sessionsOf(worker) {
  const all = list(worker.sessions);
  return `${all.filter((one) => one.subscribed).length} of ${all.length}`;
}

function showLedger({ ledger }) {
  const rows = TERMS
    .filter(([term]) => number(ledger[term]) !== null && (ledger[term] || !["copies", "lost"].includes(term)))
    .map(([term, name]) => [name, { text: count(ledger[term]), tone: term === "lost" ? "critical" : "" }]);
  fill(find("ledger"), [words("messages"), figures("since the start")], rows, { head: true });
  const balance = find("ledger").querySelector(".balance");
  const even = ledger.imbalance === 0;
  mark(balance, "data-tone", even ? "ok" : "critical");
  if (number(ledger.imbalance) === null) say(balance, "");
  else if (even) say(balance, "✓ Balance 0: every message is accounted for.");
  else say(balance, `✕ Balance ${count(ledger.imbalance)}: so many messages are not accounted for.`);
}

function showSpool({ spool }) {
  if (!spool) {
    find("spool").hidden = true;
    return;
  }
  const share = spool.max_bytes ? Math.round((100 * spool.bytes) / spool.max_bytes) : 0;
  const topics = Object.entries(asTable(spool.spooling));
  const partitions = topics.map(([topic, some]) => `${topic} ${few(list(some), ", ")}`);
  define(find("spool"), [
    ["messages", count(spool.messages)],
    ["on disk", `${bytes(spool.bytes)} of ${bytes(spool.max_bytes)} (${share} %)`],
    ["oldest", spool.messages ? span(spool.oldest_age_seconds) : ""],
    ["partitions", few(partitions, "; ")],
    ["problem", spool.problem],
  ]);
}

function few(all, between) {
  return all.slice(0, NAMES).join(between) + (all.length > NAMES ? `${between}…` : "");
}

function showDead({ dead }) {
  const section = find("dead");
  const columns = [
    words("at", "small"), words("reason", "large"), words("route", "small"), words("meant for", "large"),
    words("what was wrong"),
  ];
  const last = list(dead.last);
  const rows = last.map((one) => [
    moment(one.at), textOf(one.reason), textOf(one.route), textOf(one.topic), textOf(one.text),
  ]);
  fill(section, columns, rows, { most: DEAD_LETTERS, note: deadWords(dead) });
  section.hidden = number(dead.total) === null;
  section.querySelector("table").hidden = last.length === 0;
}

function deadWords({ total: all, by_reason: reasons }) {
  if (!all) return "None since the start.";
  const some = Object.entries(asTable(reasons)).filter(([, many]) => many);
  const which = some.length ? `: ${few(some.map(([reason, many]) => `${reason} ${count(many)}`), ", ")}` : "";
  return `${count(all)} since the start${which}. Payloads are not shown: gateway dlq has them.`;
}

function showLife(view) {
  const { about, alive, status, fleet, kafka, workers } = view;
  const old = alive.flatMap((worker) => list(worker.orphan_sessions)).length;
  const versions = Object.entries(asTable(about.versions)).map(([name, one]) => `${name} ${one}`);
  define(find("life"), [
    ["state", textOf(status.state)],
    ["since", status.since ? moment(status.since) : ""],
    ["instance", textOf(about.instance)],
    ["instance id", textOf(about.instance_id)],
    ["worker", fleet ? "" : textOf(about.worker)],
    ["workers", fleet ? textOf(workers.length) : ""],
    ["last shutdown", textOf(about.last_shutdown)],
    ["Kafka cluster", textOf(kafka.cluster_id ?? asTable(about.kafka).cluster_id)],
    ["producer incarnation", fleet ? "" : textOf(kafka.incarnation)],
    ["canary", canaryWords(view)],
    ["EMQX’s REST API", emqxWords(view)],
    ["slots retiring", few(list(status.slots_retiring), ", ")],
    ["old sessions", old ? `${count(old)}, which are drained and ended` : ""],
    ["versions", few(versions, ", ")],
  ]);
}

function canaryWords({ alive }) {
  const canary = alive.map((worker) => worker.canary).find(Boolean);
  if (!canary) return "";
  const last = number(canary.last_seconds) === null ? "" : `, the last one took ${span(canary.last_seconds)}`;
  const came = `${count(canary.received)} of ${count(canary.sent)} came back, ${count(total(canary.lost))} lost`;
  return `${canary.success ? "comes through" : "does not come through"}${last}; ${came}`;
}

function emqxWords({ alive }) {
  const seen = alive.map((worker) => worker.emqx).find(Boolean);
  if (!seen) return "";
  if (seen.up) return `answers at ${textOf(seen.url)}`;
  return `does not answer at ${textOf(seen.url)}${seen.error ? `: ${seen.error}` : ""}`;
}

function total(counts) {
  return Object.values(asTable(counts)).reduce((all, many) => all + (number(many) ?? 0), 0);
}
