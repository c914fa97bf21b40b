// Reads GET /v1/status/stream and shows what it says. The key, where one is asked for, stays in this tab (sessionStorage).
import { bar, bytes, count, element, facts, flow, percent, spark, table, timeline } from "./view.js";

const at = (id) => document.getElementById(id);
const show = (id, ...children) => at(id).replaceChildren(...children);

// ---- what was, for rates
const kept = 60;                 // samples of a worker
const seen = new Map();          // by URL and life: the last reading, rates, fractions of time
const traffic = [];              // {at_ms, bytes by link} of the last ten seconds
let newest = 0;                  // number of the last event shown

// Rates of a process between its last two readings, each of which it takes when it is asked.
function rates(name, doing) {
  if (!doing) return undefined;
  let s = seen.get(name);
  if (!s) seen.set(name, s = { last: doing, busy: [] });
  const time = (doing.at_us - s.last.at_us) / 1e6;
  if (time > 0.02) {
    const per = (key) => Math.max(0, doing[key] - s.last[key]) / time;
    s.tokens = per("generated_tokens");
    s.prompts = Math.max(0, per("prompt_tokens") - per("cached_tokens"));
    s.tiers = new Map(doing.tiers.map((t) => {
      const before = s.last.tiers.find((b) => b.name === t.name) || t;
      return [t.name, { in: (t.in_bytes - before.in_bytes) / time, out: (t.out_bytes - before.out_bytes) / time }];
    }));
    s.busy.push(Math.min(1, per("computing_us") / 1e6));
    if (s.busy.length > kept) s.busy.shift();
    s.last = doing;
  }
  return s;
}

function linkRates(now) {
  const key = (l) => l.from + " " + l.to;
  traffic.push({ at_ms: now.at_ms, bytes: new Map(now.links.map((l) => [key(l), l.bytes])) });
  while (traffic.length > 2 && traffic[0].at_ms < now.at_ms - 10000) traffic.shift();
  const first = traffic[0], time = (now.at_ms - first.at_ms) / 1000;
  return now.links.map((l) => ({ ...l, rate: time > 0 ? Math.max(0, l.bytes - (first.bytes.get(key(l)) ?? 0)) / time : 0 }));
}

// ---- parts of the page
const host = (url) => url.replace(/^https?:\/\//, "");
function namer(workers) {
  const hosts = new Set(workers.map((w) => host(w.url).replace(/:\d+$/, "")));
  const byUrl = new Map(workers.map((w) => [w.url, `${w.role ?? "worker"} ${hosts.size === 1 ? host(w.url).match(/:\d+$/)?.[0] ?? host(w.url) : host(w.url)}`]));
  return (url) => byUrl.get(url) ?? (url ? host(url) : "–");
}

function sums(pairs) {
  show("sums", ...pairs.map(([name, value]) => element("li", {}, element("b", {}, value), element("span", {}, name))));
}

function workerCard(w, name) {
  const state = w.leaving ? "leaving" : w.state, r = w.rates;
  const card = element("article", { "data-role": w.role, "data-state": w.state },
    element("div", { class: "title" }, element("h3", {}, w.short),
      element("span", { class: "badge", "data-state": state }, w.state === "gone" ? `gone for ${count(w.heard_ms / 1000)} s` : state)));
  if (w.wrong) card.append(element("p", { class: "note" }, w.wrong));
  if (w.state === "unheard") return card;
  if (w.state !== "here") return card.append(facts([["requests, ever", count(w.given)],
    ...(w.keepers.length ? [["copies of its answers are at", w.keepers.map(name).join(", ")]] : [])])), card;
  const used = w.blocks - w.blocks_free, pairs = [["requests now, ever", `${w.requests}, ${w.given}`]];
  if (w.role !== "decode") pairs.push(["prompt tokens a second", r?.prompts === undefined ? "–" : count(r.prompts)]);
  if (w.role !== "prefill") pairs.push(["tokens a second", r?.tokens === undefined ? "–" : count(r.tokens)]);
  if (w.keepers.length) pairs.push(["its copies are at", w.keepers.map(name).join(", ")]);
  if (w.doing?.kept_copies) pairs.push(["keeps for others", bytes(w.doing.kept_bytes)]);
  pairs.push(["run", w.life.slice(0, 8)]);
  card.append(facts([["KV blocks", `${count(used)} of ${count(w.blocks)}`]]), bar(used, w.blocks, `${w.short}: KV blocks used`), facts(pairs));
  return card;
}

function tiersOf(list) {
  const rows = list.flatMap(({ short, doing, blocks, blocks_free, rates: r }) => [
    [short, "device", `${count(blocks - blocks_free)} of ${count(blocks)}`, "", "", "", ""], ...doing.tiers.map((t) => {
    const rate = r?.tiers?.get(t.name) ?? { in: 0, out: 0 };
    return ["", t.name + (t.bad ? " (left alone after a failure)" : ""), t.blocks ? count(t.blocks) : "–",
      bytes(t.out_bytes), bytes(rate.out) + "/s", bytes(t.in_bytes), bytes(rate.in) + "/s"];
  })]);
  const number = true;
  show("tiers", table([{ name: "of" }, { name: "tier" }, { name: "blocks", number }, { name: "out", number }, { name: "now", number },
    { name: "back", number }, { name: "now", number }], rows));
}

// The part of its id that tells it from others; of one with a key's digest not all of that.
const numberOf = (id) => id.slice(id.lastIndexOf(".") + 1).replace(/^([0-9a-f]{8})[0-9a-f]{24}-/, "$1-");

function sequencesOf(now, name) {
  const rows = now.sequences.map((s) => [numberOf(s.id), count(s.prompt_tokens),
    bar(s.told, s.most, `Answer ${s.id}`), `${count(s.told)} of ${count(s.most)}`, name(s.prefill), name(s.decode),
    s.resumed ? `went on from a copy (${s.resumed})` : s.moved ? `moved (${s.moved})` : "–"]);
  const number = true;
  show("sequences", rows.length ? table([{ name: "answer" }, { name: "prompt", number }, { name: "" }, { name: "tokens", number }, { name: "computed by" },
    { name: "decoded by" }, { name: "lost and found" }], rows) : element("p", { class: "note" }, "None."));
  if (now.running > rows.length) at("sequences").append(element("p", { class: "note" }, `and ${now.running - rows.length} more`));
}

function said(e, name) {
  const answer = `answer ${numberOf(e.sequence ?? "")}`;
  switch (e.what) {
    case "came": return ["good", name(e.who), " is here"];
    case "died": return ["bad", name(e.who), " died"];
    case "replaced": return ["bad", name(e.who), " is another run; what the one before had is lost"];
    case "misfit": return ["bad", name(e.who), ` gets nothing: ${e.why ?? ""}`];
    case "answer_moved": return ["bad", answer, ` lost ${name(e.who)} after ${e.amount} tokens`];
    case "prompt_moved": return ["bad", answer, `: its prompt lost ${name(e.who)}, and is computed elsewhere`];
    case "followed": return ["good", answer, ` was begun before this router, and is followed at ${name(e.to)}, which has ${e.amount} tokens`];
    case "resumed": return ["good", answer, ` went on at ${name(e.to)} from its copy, ${e.amount} tokens computed again`];
    default: return ["", e.what, ""];
  }
}

function eventsOf(list, name) {
  const log = at("events");
  if (list.length && list[list.length - 1].number < newest) newest = 0, log.replaceChildren();  // another run of the server
  for (const e of list) {
    if (e.number <= newest) continue;
    newest = e.number;
    const [kind, who, what] = said(e, name), when = new Date(e.at_ms);
    log.prepend(element("li", { "data-kind": kind }, element("time", { datetime: when.toISOString() }, when.toLocaleTimeString("en-GB")),
      element("b", {}, who), what));
  }
  while (log.children.length > 64) log.lastChild.remove();
}

// ---- the two kinds of servers
function router(now) {
  const name = namer(now.workers), links = linkRates(now);
  for (const one of seen.keys()) if (!now.workers.some((w) => one === w.url + " " + w.life)) seen.delete(one);
  const workers = now.workers.map((w) => ({ ...w, short: name(w.url), keepers: w.keepers ?? [], rates: rates(w.url + " " + w.life, w.doing) }));
  for (const w of workers)
    w.line = w.state !== "here" ? w.state : w.role === "prefill" ? `prompts: ${w.requests}` : `answers: ${w.requests}`;
  const number = true;
  const busiest = [...links].sort((a, b) => b.rate - a.rate || b.bytes - a.bytes).slice(0, 16);
  const here = workers.filter((w) => w.state === "here");
  const sum = (f) => here.reduce((all, w) => all + (f(w) ?? 0), 0);
  sums([["answers under way", count(now.running)], ["tokens a second", count(sum((w) => w.role === "prefill" ? 0 : w.rates?.tokens))],
    ["KV between workers", bytes(links.reduce((all, l) => all + l.rate, 0)) + "/s"],
    ["workers here", `${here.length} of ${workers.length}`],
    ["answers that lost their worker", count(now.totals.answers_moved)],
    ["of them from a copy", count(now.totals.resumed)], ["tokens computed again", count(now.totals.computed_again)]]);
  const drawn = workers.filter((w) => w.role);
  show("flow", flow(drawn, links, links.map((l) => `${name(l.from)} to ${name(l.to)}: ${bytes(l.rate)} a second`).join("; ") || "No KV was sent yet"));
  show("links", links.length ? table([{ name: "from" }, { name: "to" }, { name: "now", number }, { name: "all", number }, { name: "prompts", number }],
    busiest.map((l) => [name(l.from), name(l.to), bytes(l.rate) + "/s", bytes(l.bytes), count(l.prompts)])) : "");
  show("workers", ...workers.map((w) => workerCard(w, name)));
  show("timeline", ...here.filter((w) => w.rates?.busy.length).map((w) => {
    const last = w.rates.busy[w.rates.busy.length - 1];
    return element("div", {}, element("div", { class: "title" }, element("span", {}, w.short), element("span", {}, percent(last) + " busy")),
      spark(w.rates.busy, kept, `${w.short}: busy ${percent(last)} of the time`));
  }));
  at("timeline-note").textContent = "A router computes nothing. Shown is which part of the time each worker's model computed, sample by sample; " +
    "each worker draws its layers and transfers on its own page.";
  sequencesOf(now, name);
  tiersOf(here.filter((w) => w.doing));
  eventsOf(now.events, name);
}

function engine(now) {
  const r = rates("self", now.doing), t = now.timeline, all = now.doing;
  sums([["requests running", count(now.running)], ["waiting", count(now.waiting)], ["tokens a second", count(r.tokens ?? 0)],
    ["prompt tokens a second, computed", count(r.prompts ?? 0)], ["of prompts found in KV", percent(all.prompt_tokens ? all.cached_tokens / all.prompt_tokens : 0)],
    ["transfer time hidden", t.moving_ms > 0 ? percent(t.hidden) : "–"], ["answers finished", count(now.requests.finished)]]);
  at("workers-title").textContent = "Engine";
  show("workers", element("article", { "data-role": now.role },
    element("h3", {}, now.role === "both" ? "This server" : `This worker: ${now.role}`),
    facts([["KV blocks in use", `${count(now.blocks_in_use)} of ${count(now.blocks)}`], ["cached", count(now.blocks_cached)],
      ["prompt tokens to compute", count(now.prompt_tokens_left)], ["steps", count(all.steps)],
      ...(now.role === "prefill" ? [["KV sent to other workers", bytes(all.sent_bytes)]] : []),
      ...(now.role === "decode" ? [["keeps copies for others", bytes(all.kept_bytes)]] : [])]),
    bar(now.blocks_in_use, now.blocks, "KV blocks in use")));
  show("timeline", timeline(t));
  at("timeline-note").textContent = `KV to other workers, and to and from tiers behind the device, beside the model's layers. In these ${Math.round(t.window_ms / 1000)} seconds ` +
    `KV moved for ${Math.round(t.moving_ms)} ms` + (t.moving_ms > 0 ? `, ${percent(t.hidden)} of them hidden behind computing.` : ".");
  tiersOf([{ short: "this server", doing: all, rates: r, blocks: now.blocks, blocks_free: now.blocks_free }]);
  eventsOf(now.events, (url) => url);
}

function draw(now) {
  const routes = now.role === "router";
  at("what").textContent = `${now.model} · ${now.role === "both" ? "one server" : now.role}`;
  document.title = `cokv ${now.model}`;
  for (const part of ["flow-part", "sequences-part", "events-part"]) at(part).hidden = !routes;
  at("all").hidden = false;
  (routes ? router : engine)(now);
}

// ---- the stream
function state(kind, words) {
  if (at("state").dataset.state === kind && at("state").textContent === words) return;
  at("state").dataset.state = kind;
  at("state").textContent = words;
}

// Until it ends. Returns whether a key is needed.
async function read() {
  const key = sessionStorage.getItem("cokv-key"), stop = new AbortController();
  let silence;
  const heard = () => { clearTimeout(silence); silence = setTimeout(() => stop.abort(), 5000); };
  heard();
  try {
    const answer = await fetch("/v1/status/stream", { headers: key ? { Authorization: "Bearer " + key } : {}, signal: stop.signal, cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) return answer.status;
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return 0;
      heard();
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const e of events) if (e.startsWith("data: ")) draw(JSON.parse(e.slice(6)));
      state("live", "live");
    }
  } finally {
    clearTimeout(silence);
    stop.abort();
  }
}

function ask(why) {
  state("waits", "waits for a key");
  at("all").hidden = true;
  at("ask").hidden = false;
  at("refused").textContent = sessionStorage.getItem("cokv-key") === null ? "" : why === 403 ? "This key has no right admin." : "This key is not known here.";
  at("key").focus();
  return new Promise((given) => {
    at("ask").onsubmit = (event) => {
      event.preventDefault();
      if (!/^[\x21-\x7e]+$/.test(at("key").value)) return void (at("refused").textContent = "A key has letters, digits and signs of ASCII only.");
      sessionStorage.setItem("cokv-key", at("key").value);
      at("key").value = "";
      at("ask").hidden = true;
      given();
    };
  });
}

for (let tries = 0; ;) {
  try {
    const why = await read();
    if (why) { await ask(why); tries = 0; continue; }
    tries = 0;
  } catch (error) {
    console.warn(error);
    ++tries;
  }
  state("lost", "not heard of; trying again");
  await new Promise((later) => setTimeout(later, Math.min(8000, 500 * 2 ** tries)));
}
