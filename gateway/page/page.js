// Asks /status, and shows what it says. Members of the document may be missing: then their part of the page is hidden.

const EVERY_MS = 2000;
const PATIENCE_MS = 6000; // a supervisor waits two seconds for its workers
const BRIEF_MS = 15000;
const SIGNS = { ok: "✓", warning: "!", critical: "✕", unknown: "?" };
const COLOURS = { ok: "00805a", warning: "c98a00", critical: "c0271c", unknown: "66727f" };
const PROBLEMS = 50; // so many are shown
const WORDS = { warning: "Warning", critical: "Critical" };
const TERMS = [
  ["received", "received"], ["recovered", "recovered from the spool"], ["delivered", "delivered"], ["filtered", "filtered"],
  ["dead_lettered", "dead-lettered"], ["in_flight", "in flight"], ["returned", "returned"], ["lost", "lost"],
];

let last = null; // when the gateway answered last
let before = null; // {at, ledger} of the answer before, for rates
let timer = null;
let asking = false;
let unreadySince = Infinity; // when the gateway was first seen not ready
let worst = []; // what was wrong at the last answer, the worst first

// What the page shows, from the document of one worker or of a supervisor.
function read(status, now) {
  const fleet = Array.isArray(status.workers);
  const workers = fleet ? status.workers : [];
  const alive = fleet ? workers.filter((worker) => worker.up !== false) : [status];
  const kafka = asTable(status.kafka);
  const ledger = asTable(status.ledger);
  const sessions = alive.flatMap((worker) => list(worker.sessions).map((one) => ({ ...one, worker: worker.worker })));
  return {
    now, status, fleet, workers, alive, ledger, sessions, kafka,
    down: workers.length - (fleet ? alive.length : 0),
    unacked: number(status.unacked) ?? sum(sessions, "unacked"),
    oldest: number(status.oldest_unacked_age_seconds),
    brokers: list(kafka.brokers),
    partitions: list(status.partitions),
    partitionsTotal: number(status.partitions_total) ?? list(status.partitions).length,
    problems: list(status.problems),
    spool: status.spool ? asTable(status.spool) : null,
    routes: asTable(status.routes),
    dead: { total: ledger.dead_lettered, by_reason: {}, last: [], ...asTable(status.dead_letters) },
    latency: { produce: null, end_to_end: null, ...asTable(status.latency) },
    rates: ratesOf(asTable(status.rates), ledger, now),
    about: fleet ? asTable(alive[0]) : status,
  };
}

// What the gateway says of its rates, or the difference of two answers.
function ratesOf(said, ledger, now) {
  const between = (term) => {
    if (!before || number(ledger[term]) === null || now - before.at < 500) return null;
    return Math.max(0, (ledger[term] - (before.ledger[term] ?? 0)) * 1000 / (now - before.at));
  };
  return {
    received: number(said.received_per_second) ?? between("received"),
    delivered: number(said.delivered_per_second) ?? between("delivered"),
    received_bytes: number(said.received_bytes_per_second),
    dead_lettered: number(said.dead_lettered_per_second) ?? between("dead_lettered"),
  };
}

// Everything that is wrong, the worst first: the gateway's problems, and why it is not ready where they do not say it.
function troubles({ status, problems, now }) {
  if (status.ready !== false) unreadySince = Infinity;
  else unreadySince = Math.min(unreadySince, now);
  const known = problems.map((one) => ({ ...one, severity: one.severity === "critical" ? "critical" : "warning" }));
  if (status.ready !== false || known.some((one) => one.severity === "critical")) return known;
  const reasons = list(status.reasons);
  // A start, a replaced worker: no messages are taken for a moment, and nothing is wrong.
  const severity = now - unreadySince < BRIEF_MS ? "warning" : "critical";
  const said = known.map((one) => textOf(one.text));
  const why = (reasons.length ? reasons : ["The gateway is not ready."])
    .map((text) => ({ severity, text: textOf(text) }))
    .filter(({ text }) => !said.some((one) => one.includes(text)));
  return severity === "warning" ? [...known, ...why] : [...why, ...known];
}

// A sentence that counts seconds changes at every answer; it is read out when `what` is another.
function showVerdict(tone, headline, aside, what = headline) {
  const spoken = find("spoken");
  if (spoken.dataset.what !== what) {
    spoken.dataset.what = what;
    say(spoken, headline);
  }
  mark(find("verdict"), "data-tone", tone);
  say(find("sign"), SIGNS[tone]);
  say(find("headline"), headline);
  find("aside").replaceChildren(...aside);
  const sign = tone === "ok" ? "" : `${SIGNS[tone]} `;
  say(document.querySelector("title"), `${sign}${headline.slice(0, 60)} · ${find("name").textContent}`);
  const drop = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><circle cx="4" cy="4" r="4" fill="#${COLOURS[tone]}"/></svg>`;
  mark(find("icon"), "href", `data:image/svg+xml,${encodeURIComponent(drop)}`);
}

function showTroubles(view) {
  worst = troubles(view);
  if (worst.length) showVerdict(worst[0].severity, textOf(worst[0].text), advice(worst[0]), nameOf(worst[0]));
  else showVerdict("ok", "All is well.", [quietWords(view)]);
  listTroubles("Also wrong", worst.slice(1));
}

function nameOf({ severity, id, subject, text }) {
  return id ? [severity, id, subject].join(" ") : textOf(text);
}

function listTroubles(title, all) {
  const section = find("problems");
  section.hidden = !all.length;
  say(section.querySelector("h2"), title);
  const shown = all.slice(0, PROBLEMS);
  const now = JSON.stringify([shown, all.length]);
  if (section.dataset.now === now) return;
  section.dataset.now = now;
  const left = all.length - shown.length;
  const more = left ? [element("li", {}, `${count(left)} more are in /status.`)] : [];
  section.querySelector("ol").replaceChildren(...shown.map(problemItem), ...more);
}

// What to look at, and where the runbook says more.
function advice({ check, id }) {
  return [...prose(check), ...(id ? [" ", element("a", { href: `runbook#${encodeURIComponent(id)}` }, `Runbook: ${textOf(id)}`)] : [])];
}

function quietWords({ rates }) {
  return rates.received === 0 ? "No messages come in at the moment." : "";
}

function problemItem(problem) {
  const first = element("p", {}, element("span", { class: "word" }, WORDS[problem.severity]), ": ", ...prose(problem.text));
  return element("li", { "data-tone": problem.severity }, first, element("p", { class: "check" }, ...advice(problem)));
}

// A sentence with its `commands` set apart.
function prose(sentence) {
  return textOf(sentence).split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));
}

function showTables(view) {
  const { brokers, sessions, fleet, workers, routes } = view;
  fill(find("brokers"),
    [{ name: "broker" }, { name: "address" }, { name: "health" }, { name: "partitions", number: true }, { name: "waiting", number: true }, { name: "last acknowledgement", number: true }],
    brokers.map((one) => [
      textOf(one.id), one.host ? `${one.host}:${one.port}` : "", healthCell(one), count(one.leads), count(one.waiting),
      number(one.last_ack_age_seconds) === null ? "–" : `${span(one.last_ack_age_seconds)} ago`,
    ]), { head: true });
  const queues = queuesOf(view);
  const ranked = [...sessions].sort((one, other) => sickness(other) - sickness(one));
  fill(find("sessions"),
    [...(fleet ? [{ name: "worker" }] : []), { name: "session" }, { name: "client id" }, { name: "state" }, { name: "window", number: true }, ...(queues ? [{ name: "queue in EMQX", number: true }, { name: "dropped by EMQX", number: true }] : [])],
    ranked.map((one) => [
      ...(fleet ? [textOf(one.worker)] : []), textOf(one.session), textOf(one.client_id), sessionCell(one),
      { text: `${count(one.unacked)} of ${count(one.window)}`, meter: [number(one.unacked) ?? 0, number(one.window) ?? 0] },
      ...(queues ? queueCells(queues.get(textOf(one.client_id))) : []),
    ]), { most: 24 });
  fill(find("routes"),
    [{ name: "route" }, { name: "received", number: true }, { name: "delivered", number: true }, { name: "filtered", number: true }, { name: "dead-lettered", number: true }],
    Object.entries(routes).map(([name, one]) => [
      name === "" ? "(no route)" : name, count(one.received), count(one.delivered), count(one.filtered),
      { text: count(one.dead_lettered), tone: one.dead_lettered ? "warning" : "" },
    ]), { head: true, most: 50 });
  fill(find("workers"),
    [{ name: "worker" }, { name: "state" }, { name: "process", number: true }, { name: "restarts", number: true }, { name: "sessions", number: true }, { name: "unacked", number: true }, { name: "received/s", number: true }, { name: "since", room: "large" }],
    [...workers].sort((one, other) => trouble(other) - trouble(one)).map((one) => [
      textOf(one.worker), workerCell(one), one.pid ? String(one.pid) : "–", count(one.restarts), sessionsOf(one), count(one.unacked),
      rate(asTable(one.rates).received_per_second), one.since ? moment(one.since) : "–",
    ]), { head: true });
}

// What EMQX's REST API says of the sessions, where the gateway asks it: the client id's queue there, and what it lost.
function queuesOf({ alive }) {
  const seen = alive.flatMap((worker) => list(asTable(worker.emqx).sessions));
  return seen.length ? new Map(seen.map((one) => [textOf(one.client_id), one])) : null;
}

function queueCells(queue) {
  if (!queue || queue.known === false) return ["–", "–"];
  const dropped = Object.values(asTable(queue.dropped)).reduce((total, many) => total + (number(many) ?? 0), 0);
  return [`${count(queue.queue_length)} of ${count(queue.queue_limit)}`, { text: count(dropped), tone: dropped ? "critical" : "" }];
}

function healthCell({ health, silent_seconds: silence, mute_seconds: muteness }) {
  const silent = silence || (health === "unreachable" && muteness);
  const tone = { ok: "", idle: "soft", unreachable: "warning" }[health] ?? "critical";
  return { text: silent ? `${textOf(health)} for ${span(silent)}` : textOf(health), tone };
}

function sickness(session) {
  return session.subscribed ? 0 : session.connected ? 1 : 2;
}

function sessionCell({ connected, subscribed, problem }) {
  const because = problem ? `: ${problem}` : "";
  if (subscribed) return { text: "subscribed" };
  return connected ? { text: `not subscribed${because}`, tone: "warning" } : { text: `away${because}`, tone: "critical" };
}

function trouble(worker) {
  return worker.up === false ? 2 : worker.ready === false ? 1 : 0;
}

function workerCell(worker) {
  if (worker.up === false) return { text: `does not answer${worker.problem ? `: ${worker.problem}` : ""}`, tone: "critical" };
  return worker.ready === false ? { text: `${textOf(worker.state)}, not ready`, tone: "warning" } : { text: `${textOf(worker.state)}, ready` };
}

function sessionsOf(worker) {
  const all = list(worker.sessions);
  return `${all.filter((one) => one.subscribed).length} of ${all.length}`;
}

function showLedger({ ledger }) {
  const rows = TERMS.filter(([term]) => number(ledger[term]) !== null && (ledger[term] || term !== "lost"));
  fill(find("ledger"), [{ name: "messages" }, { name: "since the start", number: true }],
    rows.map(([term, name]) => [name, { text: count(ledger[term]), tone: term === "lost" ? "critical" : "" }]), { head: true });
  const balance = find("ledger").querySelector(".balance");
  if (number(ledger.imbalance) === null) {
    say(balance, "");
    return;
  }
  mark(balance, "data-tone", ledger.imbalance === 0 ? "ok" : "critical");
  say(balance, ledger.imbalance === 0 ? "✓ Balance 0: every message is accounted for." : `✕ Balance ${count(ledger.imbalance)}: so many messages are not accounted for.`);
}

function showSpool({ spool }) {
  if (!spool) {
    find("spool").hidden = true;
    return;
  }
  const spooling = Object.entries(asTable(spool.spooling)).map(([topic, numbers]) => `${topic} ${list(numbers).slice(0, 20).join(", ")}${list(numbers).length > 20 ? ", …" : ""}`);
  define(find("spool"), [
    ["messages", count(spool.messages)],
    ["on disk", `${bytes(spool.bytes)} of ${bytes(spool.max_bytes)} (${spool.max_bytes ? Math.round(100 * spool.bytes / spool.max_bytes) : 0} %)`],
    ["oldest", spool.messages ? span(spool.oldest_age_seconds) : ""],
    ["partitions", spooling.slice(0, 20).join("; ")],
    ["problem", spool.problem],
  ]);
}

function showDead({ dead }) {
  const section = find("dead");
  const reasons = Object.entries(asTable(dead.by_reason)).filter(([, many]) => many);
  const total = reasons.length ? `: ${reasons.map(([reason, many]) => `${reason} ${count(many)}`).join(", ")}` : "";
  fill(section,
    [{ name: "at", room: "small" }, { name: "reason", room: "large" }, { name: "route", room: "small" }, { name: "meant for", room: "large" }, { name: "what was wrong" }],
    list(dead.last).map((one) => [moment(one.at), textOf(one.reason), textOf(one.route), textOf(one.topic), textOf(one.text)]),
    { most: 10, note: dead.total ? `${count(dead.total)} since the start${total}. Payloads are not shown: gateway dlq has them.` : "None since the start." });
  section.hidden = number(dead.total) === null;
  section.querySelector("table").hidden = list(dead.last).length === 0;
}

function canaryWords({ alive }) {
  const canary = alive.map((worker) => worker.canary).find(Boolean);
  if (!canary) return "";
  const lost = Object.values(asTable(canary.lost)).reduce((total, many) => total + (number(many) ?? 0), 0);
  const last = number(canary.last_seconds) === null ? "" : `, the last one took ${span(canary.last_seconds)}`;
  return `${canary.success ? "comes through" : "does not come through"}${last}; ${count(canary.received)} of ${count(canary.sent)} came back, ${count(lost)} lost`;
}

function emqxWords({ alive }) {
  const [seen] = alive.map((worker) => worker.emqx).filter(Boolean);
  if (!seen) return "";
  return seen.up ? `answers at ${textOf(seen.url)}` : `does not answer at ${textOf(seen.url)}${seen.error ? `: ${seen.error}` : ""}`;
}

function showLife(view) {
  const { about, status, fleet, kafka, workers } = view;
  const versions = Object.entries(asTable(about.versions)).map(([name, one]) => `${name} ${one}`).join(", ");
  define(find("life"), [
    ["state", textOf(status.state)],
    ["since", status.since ? moment(status.since) : ""],
    ["instance", textOf(about.instance)],
    ["instance id", textOf(about.instance_id)],
    ["worker", fleet ? "" : textOf(about.worker)],
    ["last shutdown", textOf(about.last_shutdown)],
    ["Kafka cluster", textOf(kafka.cluster_id ?? asTable(about.kafka).cluster_id)],
    ["producer incarnation", fleet ? "" : textOf(kafka.incarnation)],
    ["canary", canaryWords(view)],
    ["EMQX’s REST API", emqxWords(view)],
    ["slots retiring", list(status.slots_retiring).join(", ")],
    ["workers", fleet ? textOf(workers.length) : ""],
    ["old sessions", list(about.orphan_sessions).length ? `${list(about.orphan_sessions).length} are drained and ended` : ""],
    ["versions", versions],
  ]);
}

function show(status) {
  const now = performance.now();
  const view = read(status, now);
  say(find("name"), view.about.instance ? `Gateway ${view.about.instance}` : "Gateway");
  mark(document.body, "data-stale", "no");
  find("data").hidden = false;
  say(find("since"), "");
  showTroubles(view);
  showFlow(view);
  showGrid(view.partitions, view.partitionsTotal);
  showTables(view);
  showLedger(view);
  showSpool(view);
  showDead(view);
  showLife(view);
  before = { at: now, ledger: view.ledger };
}

// No answer, or none that can be used. What is on the page is of `last`, and has to look so.
function showSilence(why) {
  mark(document.body, "data-stale", "yes");
  showVerdict("unknown", last ? `The gateway does not answer since ${clock(last)}.` : "The gateway does not answer.", [why]);
  listTroubles("Wrong when it answered last", worst);
  before = null;
  tick();
}

function tick() {
  if (!last) return;
  const seconds = Math.max(1, Math.round((Date.now() - last.getTime()) / 1000));
  const stale = document.body.dataset.stale === "yes";
  say(find("fresh"), stale || seconds > 5 ? `${clock(last)}, ${span(seconds)} ago` : `${clock(last)}, live`);
  say(find("since"), stale ? `What is below is from ${clock(last)}, ${span(seconds)} ago. It is asked again every two seconds.` : "");
}

async function ask() {
  const stop = new AbortController();
  const patience = setTimeout(() => stop.abort(), PATIENCE_MS);
  let answer = null;
  try {
    // Not relative to document.URL, which may hold a user name, nor to the root, which may be another server's.
    answer = await fetch(`${location.origin}${location.pathname.replace(/[^/]*$/, "")}status`, { cache: "no-store", redirect: "error", signal: stop.signal });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}: ${(await answer.text()).slice(0, 300)}`);
    const status = await answer.json();
    last = new Date();
    show(asTable(status));
  } catch (error) {
    if (!answer) showSilence("Is it running, and is this machine still connected to it?");
    else if (answer.ok) showSilence(`Its answer could not be shown: ${error.message}`);
    else showSilence(`${error.message}${answer.status === 401 ? " Load this page again to be asked for it." : ""}`);
  } finally {
    clearTimeout(patience);
  }
}

// Asks, and again two seconds after the answer, as long as somebody looks.
async function poll() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  try {
    await ask();
  } finally {
    asking = false;
    tick();
    timer = setTimeout(poll, EVERY_MS);
  }
}

watchGrid();
document.addEventListener("visibilitychange", poll);
setInterval(tick, 1000);
poll();
