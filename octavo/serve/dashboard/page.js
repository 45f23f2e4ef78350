// The page: asks for readings once a second and shows them.

import { Bars, Lanes, TimeChart, Timeline, duration, formats, number } from "./charts.js";
import { Readings } from "./readings.js";

const EVERY_MS = 1000;
const STALE_S = 6;
const SHARES = [0.5, 0.95, 0.99];
const BASE = location.origin + location.pathname.replace(/\/+$/, ""); // without credentials, which fetch refuses in an address

const get = (id) => document.getElementById(id);
const readings = new Readings();
const stored = (name, value) => {
  try {
    if (value !== undefined) localStorage.setItem(`octavo-${name}`, value);
    return localStorage.getItem(`octavo-${name}`);
  } catch {
    return value ?? null; // storage is off
  }
};
let span = Number(stored("span")) || 300;

const chart = (id, options) => new TimeChart(get(id), get(id).textContent.trim(), options);
const charts = {
  ttft: chart("ttft", { format: formats.seconds, nothing: "no first token in this time" }),
  itl: chart("itl", { format: formats.seconds, nothing: "no tokens in this time" }),
  generated: chart("generated", { format: formats.plain, least: 10 }),
  prompt: chart("prompt", { format: formats.plain, least: 10 }),
  requests: chart("requests", { format: formats.plain, least: 4 }),
  memory: chart("memory", { format: formats.share, top: 1 }),
  batch: new Bars(get("batch"), "Sequences in a step"),
  events: new Lanes(get("events"), "Events"),
  startup: new Timeline(get("startup"), "Start"),
};

/** Longer times shown are smoothed over longer windows. */
const smooth = () => (span <= 60 ? 5 : span <= 300 ? 10 : 30);

function show() {
  state();
  if (!readings.about || !readings.samples.length) return;
  const { end } = readings;
  const window = smooth();
  const rate = (name) => readings.rate(name, span, Math.min(window, 5));
  const latencies = { ttft: readings.percentiles("ttft", SHARES, span, window), itl: readings.percentiles("itl", SHARES, span, window) };
  for (const kind of ["ttft", "itl"]) {
    const lines = ["p50", "p95", "p99"].map((name, style) => ({ name, kind: "line", style, points: latencies[kind][style] }));
    charts[kind].draw(lines, end, span);
  }
  const generated = rate("generated");
  const prompt = rate("prompt");
  const cached = rate("cached");
  charts.generated.draw([{ name: "made", kind: "area", style: 0, points: generated }], end, span);
  charts.prompt.draw(
    [
      { name: "all", kind: "area", style: 0, points: prompt },
      { name: "from the cache", kind: "area", style: 3, points: cached },
    ],
    end,
    span,
  );
  const running = readings.gauge("running", span);
  const waiting = readings.gauge("waiting", span);
  charts.requests.draw(
    [
      { name: "running", kind: "area", style: 0, points: running },
      { name: "waiting", kind: "line", style: 2, points: waiting },
    ],
    end,
    span,
  );
  const hits = readings.share("hits", "queries", span, window);
  charts.memory.draw(
    [
      { name: "KV memory in use", kind: "area", style: 0, points: readings.gauge("kv", span) },
      { name: "prefix hit rate", kind: "line", style: 3, points: hits },
    ],
    end,
    span,
  );
  charts.batch.draw(readings.batches(span));
  const lanes = [
    ["preemptions", "preemptions", 1],
    ["evictions", "cache evictions", 0],
    ["ooms", "out of memory", 2],
    ["failed_steps", "failed steps", 2],
    ["error", "failed requests", 2],
    ["abort", "aborted requests", 3],
  ];
  charts.events.draw(
    lanes.map(([name, label, style]) => ({ name: label, style, points: readings.events(name, span), total: readings.grown(name, span) })),
    end,
    span,
  );
  tiles(generated, prompt, latencies, hits);
  advise(readings.advice);
}

function tiles(generated, prompt, latencies, hits) {
  const last = (points) => (points.length ? points[points.length - 1][1] : null);
  const put = (id, value, more, unit = null) => {
    get(`now-${id}`).textContent = value;
    get(`more-${id}`).textContent = more;
    if (unit !== null) get(`now-${id}`).nextElementSibling.textContent = unit;
  };
  put("generated", number(last(generated)), `${number(readings.last("generated"))} since the start`);
  const hit = last(hits);
  put("prompt", number(last(prompt)), hit === null ? `${number(readings.last("prompt"))} since the start` : `${number(hit * 100)} % found in the cache`);
  for (const kind of ["ttft", "itl"]) {
    const [p50, p95, p99] = latencies[kind].map(last);
    put(kind, duration(p50)[0], p50 === null ? "none lately" : `p95 ${formats.seconds(p95)}, p99 ${formats.seconds(p99)}`, duration(p50)[1]);
  }
  const done = ["stop", "length"].reduce((sum, name) => sum + readings.last(name), 0);
  put("running", number(readings.last("running")), `${number(readings.last("waiting"))} waiting, ${number(done)} done`);
  put("kv", number(readings.last("kv") * 100), `${number(readings.last("kept"))} blocks keep prefixes`);
}

function state() {
  const stale = readings.age() > STALE_S || readings.state === "lost";
  const pill = get("state");
  pill.textContent = stale ? `no contact for ${Math.round(readings.age())} s` : readings.state;
  pill.dataset.state = stale ? "lost" : readings.state;
  pill.title = readings.reason;
  document.body.classList.toggle("stale", stale);
  const about = readings.about;
  if (!about) return;
  get("model").textContent = about.model;
  document.title = `${about.model} · Octavo`;
  const facts = [`up ${uptime(Math.max(0, readings.end - about.started_s))}`, `context ${number(about.max_model_len)}`, `version ${about.version}`];
  get("facts").textContent = readings.reason && !stale ? readings.reason : facts.join(" · ");
}

function advise(findings) {
  const lines = findings.map(({ kind, evidence, advice }) => {
    const line = document.createElement("li");
    line.append(Object.assign(document.createElement("strong"), { textContent: kind }), `: ${evidence}. ${advice}`);
    return line;
  });
  get("advice").querySelector("ul").replaceChildren(...lines);
  get("advice").hidden = !lines.length;
}

function uptime(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

function choose(seconds) {
  span = Number(stored("span", seconds));
  for (const button of document.querySelectorAll("[data-span]")) button.setAttribute("aria-pressed", Number(button.dataset.span) === span);
  show();
}

function theme(name) {
  stored("theme", name);
  document.documentElement.dataset.theme = name;
  get("theme").textContent = name;
}

let shown = null;
async function tick() {
  try {
    await readings.fetch(`${BASE}/data`);
    readings.heard = performance.now();
    if (readings.about && shown !== readings.about) {
      shown = readings.about;
      charts.startup.draw(shown.startup);
      get("startup").hidden = !shown.startup.length;
    }
  } catch {
    readings.heard ??= performance.now();
    if (readings.age() > STALE_S) readings.state = "lost";
  }
  if (!document.hidden) show();
  setTimeout(tick, EVERY_MS);
}

for (const button of document.querySelectorAll("[data-span]")) button.addEventListener("click", () => choose(button.dataset.span));
get("theme").addEventListener("click", () => theme({ auto: "light", light: "dark", dark: "auto" }[document.documentElement.dataset.theme]));
addEventListener("resize", show);
document.addEventListener("visibilitychange", show);
theme(stored("theme") ?? "auto");
choose(span);
tick();
