// Asks /status, and shows what it says. Members of the document may be missing: then their part of the page is hidden.

const EVERY_MS = 2000;
const PATIENCE_MS = 6000; // a supervisor waits two seconds for its workers
const BRIEF_MS = 15000;
const SIGNS = { ok: "✓", warning: "!", critical: "✕", unknown: "?" };
const COLOURS = { ok: "00805a", warning: "c98a00", critical: "c0271c", unknown: "66727f" };
const PROBLEMS = 50; // so many are shown
const WORDS = { warning: "Warning", critical: "Critical" };

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
    commands: asTable(asTable(status.commands).routes),
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
    sent_bytes: number(said.sent_bytes_per_second),
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
  const disc = `<circle cx="4" cy="4" r="4" fill="#${COLOURS[tone]}"/>`;
  const icon = `<svg xmlns="${SVG}" viewBox="0 0 8 8">${disc}</svg>`;
  mark(find("icon"), "href", `data:image/svg+xml,${encodeURIComponent(icon)}`);
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
  if (!id) return prose(check);
  const anchor = textOf(id).replace(/[^\w-]/g, "");
  return [...prose(check), " ", element("a", { href: `runbook#${anchor}` }, `Runbook: ${textOf(id)}`)];
}

function quietWords({ rates }) {
  return rates.received === 0 ? "No messages come in at the moment." : "";
}

function problemItem(problem) {
  const word = element("span", { class: "word" }, WORDS[problem.severity]);
  const text = element("p", {}, word, ": ", ...prose(problem.text));
  return element("li", { "data-tone": problem.severity }, text, element("p", { class: "check" }, ...advice(problem)));
}

// A sentence with its `commands` set apart.
function prose(sentence) {
  return textOf(sentence).split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));
}

const PARTS = [
  showBrokers, showSessions, showRoutes, showCommands, showSpool, showLedger, showDead, showWorkers, showLife,
];

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
  for (const part of PARTS) part(view);
  before = { at: now, ledger: view.ledger };
}

// No answer, or none that can be used. What is on the page is of `last`, and has to look so.
function showSilence(why) {
  mark(document.body, "data-stale", "yes");
  const since = last ? ` since ${clock(last)}` : "";
  showVerdict("unknown", `The gateway does not answer${since}.`, [why]);
  listTroubles("Wrong when it answered last", worst);
  before = null;
  tick();
}

function tick() {
  if (!last) return;
  const seconds = Math.max(1, Math.round((Date.now() - last.getTime()) / 1000));
  const stale = document.body.dataset.stale === "yes";
  say(find("fresh"), stale || seconds > 5 ? `${clock(last)}, ${span(seconds)} ago` : `${clock(last)}, live`);
  const from = `What is below is from ${clock(last)}, ${span(seconds)} ago. It is asked again every two seconds.`;
  say(find("since"), stale ? from : "");
}

async function ask() {
  const stop = new AbortController();
  const patience = setTimeout(() => stop.abort(), PATIENCE_MS);
  let answer = null;
  try {
    // Not relative to document.URL, which may hold a user name, nor to the root, which may be another server's.
    const place = location.origin + location.pathname.replace(/[^/]*$/, "");
    answer = await fetch(`${place}status`, { cache: "no-store", redirect: "error", signal: stop.signal });
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
