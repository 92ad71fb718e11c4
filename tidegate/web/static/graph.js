// The job graph, drawn in columns from the sources to the sinks, and the plots of checkpoints.

import { duration, bytes, number, rate, svg } from "./dom.js";

const WIDTH = 230, GAP_X = 110, GAP_Y = 28, LINE = 17;

export function shares(metrics) {
  const busy = metrics.busyTimeMsPerSecond ?? 0, blocked = metrics.backPressuredTimeMsPerSecond ?? 0;
  return { busy: busy / 1000, blocked: blocked / 1000, known: metrics.busyTimeMsPerSecond !== undefined };
}

export function mood(metrics) {
  const { busy, blocked, known } = shares(metrics);
  return !known ? "calm" : blocked >= 0.5 ? "blocked" : busy >= 0.5 ? "busy" : "calm";
}

export function shareBar(metrics, x = 0, y = 0, width = 90, height = 10) {
  const { busy, blocked, known } = shares(metrics);
  if (!known) return null;
  const percent = (n) => `${Math.round(n * 100)} %`;
  return svg("g", { role: "img", "aria-label": `busy ${percent(busy)}, back-pressured ${percent(blocked)}` },
    svg("title", {}, `busy ${percent(busy)}, back-pressured ${percent(blocked)}, idle ${percent(Math.max(0, 1 - busy - blocked))}`),
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

const shorten = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export function drawGraph(job, chosen, choose) {
  const rank = columns(job.vertices, job.edges), next = new Map(), place = new Map();
  let width = 0, height = 0;
  for (const v of job.vertices) {
    const column = rank.get(v.vertex), h = 62 + LINE * v.operators.length, y = next.get(column) ?? 14;
    const x = 14 + column * (WIDTH + GAP_X);
    place.set(v.vertex, { x, y, h });
    next.set(column, y + h + GAP_Y);
    width = Math.max(width, x + WIDTH + 14);
    height = Math.max(height, y + h + 14);
  }
  const lines = job.edges.map((e) => {
    const a = place.get(e.source), b = place.get(e.target);
    const x1 = a.x + WIDTH, y1 = a.y + a.h / 2, x2 = b.x - 6, y2 = b.y + b.h / 2, half = (x2 - x1) / 2;
    const label = e.side_output ? `${e.partitioning} (${e.side_output})` : e.partitioning;
    return svg("g", {}, svg("path", { class: "edge", d: `M${x1},${y1} C${x1 + half},${y1} ${x2 - half},${y2} ${x2},${y2}`, "marker-end": "url(#arrow)" }),
      svg("text", { class: "small", x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 6, "text-anchor": "middle" }, shorten(label, 18)));
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
    svg("text", { class: "small", x: x + 12, y: y + h - 34 }, `parallelism ${v.parallelism} · ${rate(m.numRecordsInPerSecond)} in`),
    svg("text", { class: "small", x: x + 12, y: y + h - 20 }, `${number(m.numRecordsIn)} records · state ${bytes(v.state_bytes)}`),
    shareBar(m, x + 12, y + h - 13, WIDTH - 24, 6));
  });
  return svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "job graph" },
    svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, svg("path", { d: "M0,0 L8,4 L0,8 z" }))),
    lines, boxes);
}

// Duration (line) and size (bars) of checkpoints, oldest at the left.
export function drawCheckpoints(checkpoints) {
  const ended = checkpoints.filter((c) => c.duration_ms !== null).slice(0, 200).reverse();
  if (ended.length < 2) return null;
  const W = 1000, H = 160, TOP = 22, step = W / ended.length;
  const longest = Math.max(...ended.map((c) => c.duration_ms), 1), largest = Math.max(...ended.map((c) => c.state_bytes), 1);
  const y = (ms) => H - (ms / longest) * (H - TOP);
  const bars = ended.map((c, i) => {
    const h = c.status === "FAILED" ? H - TOP : (c.state_bytes / largest) * (H - TOP);
    return svg("rect", { class: c.status === "FAILED" ? "failed" : "size", opacity: 0.45, x: i * step + step * 0.15, y: H - h, width: step * 0.7, height: h },
      svg("title", {}, `checkpoint ${c.id}: ${duration(c.duration_ms)}, ${bytes(c.state_bytes)}`));
  });
  const points = ended.map((c, i) => `${(i + 0.5) * step},${y(c.duration_ms)}`).join(" ");
  return svg("svg", { class: "plot", viewBox: `0 0 ${W} ${H + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": `duration up to ${duration(longest)}, size up to ${bytes(largest)}` },
    svg("line", { class: "axis", x1: 0, y1: H, x2: W, y2: H }), bars, svg("polyline", { class: "time", points, "vector-effect": "non-scaling-stroke" }));
}
