// How things are said and drawn: numbers in words, elements without HTML text, pictures. What comes from the network becomes
// text nodes and attribute values only.

export function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000) return (n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)) + " " + unit;
    n /= 1000;
  }
  return n.toFixed(1) + " TB";
}
export const count = (n) => n < 100 && n % 1 ? n.toFixed(1) : Math.round(n).toLocaleString("en");
export const percent = (f) => Math.round(100 * f) + " %";

const svgSpace = "http://www.w3.org/2000/svg";
function filled(e, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) e.setAttribute(name, value);
  e.append(...children.flat().map((c) => c instanceof Node ? c : String(c)));
  return e;
}
export const element = (name, attributes = {}, ...children) =>
  filled(document.createElement(name), attributes, children);
export const shape = (name, attributes = {}, ...children) =>
  filled(document.createElementNS(svgSpace, name), attributes, children);

export function table(head, rows) {
  const kind = head.map((h) => h.number ? { class: "number" } : {});
  return element("table", {},
    element("thead", {}, element("tr", {}, head.map((h, i) => element("th", { scope: "col", ...kind[i] }, h.name)))),
    element("tbody", {}, rows.map((r) => element("tr", {}, r.map((c, i) => element("td", kind[i], c))))));
}
export const facts = (pairs) =>
  element("dl", {}, pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
export const bar = (value, most, label) =>
  element("progress", { value: Math.min(value, most), max: Math.max(most, 1), "aria-label": label });

// A fraction over time: the newest sample is at the right edge.
export function spark(samples, most, label) {
  const width = 300, height = 26, step = width / most, first = most - samples.length;
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    shape("rect", { class: "track", x: 0, y: 0, width, height }),
    samples.map((f, i) => shape("rect", {
      class: "fill-compute", x: ((first + i) * step).toFixed(1), y: (height * (1 - f)).toFixed(1),
      width: (step * .85).toFixed(1), height: (height * f).toFixed(1),
    })));
}

// The rows of a timeline, pieces in milliseconds since the window began.
export function timeline(t) {
  const left = 74, width = 360, right = left + width, rows = [["computing", "compute"], ["KV out", "out"], ["KV in", "in"]];
  const x = (ms) => left + Math.max(0, Math.min(1, ms / t.window_ms)) * width;
  const seconds = Math.round(t.window_ms / 1000);
  return shape("svg", {
    viewBox: `0 0 ${right + 6} 106`, role: "img",
    "aria-label": `The last ${seconds} seconds: KV moved for ${Math.round(t.moving_ms)} ms, of which ${percent(t.hidden)} while computing`,
  },
  rows.map(([name, key], i) => {
    const y = 6 + 28 * i;
    return [shape("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, name),
      shape("rect", { class: "track", x: left, y, width, height: 20 }),
      t[key].map(([from, to]) => shape("rect", {
        class: "fill-" + key, x: x(from).toFixed(1), y, width: Math.max(.8, x(to) - x(from)).toFixed(1), height: 20,
      }))];
  }).flat(2),
  shape("text", { class: "soft", x: left, y: 102 }, `${seconds} s ago`),
  shape("text", { class: "soft", x: right, y: 102, "text-anchor": "end" }, "now"));
}

// Who computes at the left, who decodes at the right, links between them, copies beside the right column.
export function flow(workers, links, label) {
  const left = workers.filter((w) => w.role === "prefill"), right = workers.filter((w) => w.role !== "prefill");
  const row = 62, high = 40, wide = 152, rows = Math.max(left.length, right.length, 1);
  const place = new Map();
  for (const [column, x] of [[left, 4], [right, 244]])
    column.forEach((w, i) => place.set(w.url, { x, y: 8 + row * (i + (rows - column.length) / 2), worker: w }));
  const out = shape("svg", { viewBox: `0 0 440 ${rows * row}`, role: "img", "aria-label": label },
    shape("defs", {}, shape("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      shape("path", { class: "tip", d: "M0 0L8 4L0 8z" }))));
  links.forEach((l) => {
    const a = place.get(l.from), b = place.get(l.to);
    if (!a || !b) return;
    const x1 = a.x + wide, y1 = a.y + high / 2, y2 = b.y + high / 2, middle = (x1 + b.x) / 2;
    out.append(shape("path", {
      class: l.rate > 0 ? "link" : "link idle", "stroke-width": (1 + 2 * Math.log10(1 + l.rate / 1e5)).toFixed(1),
      d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${b.x} ${y2}`,
    }));
  });
  right.forEach((w, i) => (w.keepers || []).forEach((k, rank) => {
    const a = place.get(w.url), b = place.get(k);
    if (!a || !b || w.state !== "here") return;
    const x = a.x + wide, down = b.y > a.y ? 8 : -8, bend = 26 + 16 * rank + 6 * (i % 3);
    const y1 = a.y + high / 2 + down, y2 = b.y + high / 2 + down;
    out.append(shape("path", { class: "copy", "marker-end": "url(#tip)", d: `M${x} ${y1}C${x + bend} ${y1} ${x + bend} ${y2} ${x + 2} ${y2}` }));
  }));
  for (const { x, y, worker } of place.values()) {
    const gone = worker.state === "here" ? "" : " gone";
    out.append(shape("rect", { class: `box ${worker.role}${gone}`, x, y, width: wide, height: high, rx: 6 }),
      shape("text", { x: x + 9, y: y + 17 }, worker.short),
      shape("text", { class: "soft", x: x + 9, y: y + 32 }, worker.line));
  }
  return out;
}
