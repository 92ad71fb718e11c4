// The job graph, drawn in columns from the sources to the sinks, on a narrow screen in rows.

import { svg } from "./dom.js";
import { bytes, number, rate } from "./figures.js";

const WIDTH = 230, GAP_X = 110, GAP_Y = 28, LINE = 17, EDGE = 14, ARROW = 6;
const narrow = matchMedia("(max-width: 640px)");

export function shares(metrics) {
  const busy = metrics.busyTimeMsPerSecond ?? 0, blocked = metrics.backPressuredTimeMsPerSecond ?? 0;
  return { busy: busy / 1000, blocked: blocked / 1000, idle: Math.max(0, 1000 - busy - blocked) / 1000, known: metrics.busyTimeMsPerSecond !== undefined };
}

export function mood(metrics) {
  const { busy, blocked, known } = shares(metrics);
  return !known ? "calm" : blocked >= 0.5 ? "blocked" : busy >= 0.5 ? "busy" : "calm";
}

export const percent = (share) => `${Math.round(share * 100)} %`;

export function shareBar(metrics, x = 0, y = 0, width = 90, height = 10) {
  const { busy, blocked, idle, known } = shares(metrics);
  if (!known) return null;
  const text = `busy ${percent(busy)}, back-pressured ${percent(blocked)}, idle ${percent(idle)}`;
  return svg("g", { role: "img", "aria-label": text },
    svg("title", {}, text),
    svg("rect", { class: "idle-part", x, y, width, height }),
    svg("rect", { class: "busy-part", x, y, width: width * busy, height }),
    svg("rect", { class: "blocked-part", x: x + width * busy, y, width: width * Math.min(blocked, 1 - busy), height }));
}

function columns(vertices, edges) {
  const rank = new Map(vertices.map((v) => [v.vertex, 0]));
  for (let round = 0; round < vertices.length; round++) {
    let moved = false;
    for (const e of edges) {
      if (rank.get(e.target) <= rank.get(e.source)) { rank.set(e.target, rank.get(e.source) + 1); moved = true; }
    }
    if (!moved) break;
  }
  return rank;
}

const said = (figure, text) => figure !== undefined && figure !== null && text(figure);
const joined = (...texts) => texts.filter(Boolean).join(" · ");
const shorten = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// Where each vertex stands: {x, y, h}, and the size of it all.
function layout(job, down) {
  const rank = columns(job.vertices, job.edges), place = new Map(), ranks = new Map();
  for (const v of job.vertices) ranks.set(rank.get(v.vertex), [...(ranks.get(rank.get(v.vertex)) ?? []), v]);
  let width = 0, height = 0, top = EDGE;
  for (const [column, mine] of [...ranks].sort(([a], [b]) => a - b)) {
    let x = down ? EDGE : EDGE + column * (WIDTH + GAP_X), y = top, tallest = 0;
    for (const v of mine) {
      const h = 62 + LINE * v.operators.length;
      place.set(v.vertex, { x, y, h });
      tallest = Math.max(tallest, h);
      width = Math.max(width, x + WIDTH + EDGE);
      height = Math.max(height, y + h + EDGE);
      if (down) x += WIDTH + GAP_Y;
      else y += h + GAP_Y;
    }
    if (down) top += tallest + GAP_X / 2;
  }
  return { place, width, height };
}

export function drawGraph(job, chosen, choose) {
  const down = narrow.matches, { place, width, height } = layout(job, down);
  const readers = new Set(job.edges.map((e) => e.source));
  const lines = job.edges.map((e) => {
    const a = place.get(e.source), b = place.get(e.target);
    const [x1, y1] = down ? [a.x + WIDTH / 2, a.y + a.h] : [a.x + WIDTH, a.y + a.h / 2];
    const [x2, y2] = down ? [b.x + WIDTH / 2, b.y - ARROW] : [b.x - ARROW, b.y + b.h / 2];
    const bend = down ? `${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2}` : `${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2}`;
    const label = e.side_output ? `${e.partitioning} (${e.side_output})` : e.partitioning;
    return svg("g", {}, svg("path", { class: "edge", d: `M${x1},${y1} C${bend} ${x2},${y2}`, "marker-end": "url(#arrow)" }),
      svg("text", { class: "small", x: (x1 + x2) / 2 + (down ? 8 : 0), y: (y1 + y2) / 2 + (down ? 4 : -6), "text-anchor": down ? "start" : "middle" }, shorten(label, 18)));
  });
  const boxes = job.vertices.map((v) => {
    const { x, y, h } = place.get(v.vertex), m = v.metrics;
    const pick = () => choose(v.vertex);
    return svg("g", {
      class: `vertex ${mood(m)} ${v.vertex === chosen ? "chosen" : ""}`, tabindex: 0, role: "button", "data-key": `vertex-${v.vertex}`,
      "aria-pressed": String(v.vertex === chosen), "aria-label": `${v.name}, ${v.parallelism} subtasks`, onclick: pick,
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } },
    },
    svg("title", {}, v.name),
    svg("rect", { class: "box", x, y, width: WIDTH, height: h, rx: 8 }),
    v.operators.map((o, i) => svg("text", { x: x + 12, y: y + 20 + i * LINE }, shorten((i ? "→ " : "") + o.name, 30))),
    svg("text", { class: "small", x: x + 12, y: y + h - 34 }, joined(`parallelism ${v.parallelism}`, said(m.numRecordsInPerSecond, (n) => `${rate(n)} in`), readers.has(v.vertex) && said(m.numRecordsOutPerSecond, (n) => `${rate(n)} out`))),
    svg("text", { class: "small", x: x + 12, y: y + h - 20 }, joined(said(m.numRecordsIn, (n) => `${number(n)} records`), said(v.state_bytes, (n) => `state ${bytes(n)}`))),
    shareBar(m, x + 12, y + h - 13, WIDTH - 24, 6));
  });
  return svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "job graph" },
    svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, svg("path", { d: "M0,0 L8,4 L0,8 z" }))),
    lines, boxes);
}
