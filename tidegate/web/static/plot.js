// Duration (line) and size (bars) of checkpoints over time, each with an axis of its own.

import { el, svg } from "./dom.js";
import { bytes, clock, duration } from "./figures.js";

const W = 1000, H = 160, TOP = 4, NARROW = 3;

// checkpoints: the newest first.
export function drawCheckpoints(checkpoints) {
  const ended = checkpoints.filter((c) => c.duration_ms !== null).reverse();
  if (ended.length < 2) return el("p", { class: "soft", key: "no-plot" }, "A plot over time needs two checkpoints that have ended.");
  const first = ended[0].triggered_ms, last = ended.at(-1).triggered_ms;
  const longest = Math.max(...ended.map((c) => c.duration_ms), 1), largest = Math.max(...ended.map((c) => c.state_bytes), 1);
  const width = Math.max(NARROW, (W / ended.length) * 0.6);
  const x = (c) => width / 2 + ((c.triggered_ms - first) / Math.max(1, last - first)) * (W - width);
  const y = (share) => H - share * (H - TOP);
  const failed = (c) => c.status === "FAILED";
  const bars = ended.map((c) => {
    const top = failed(c) ? TOP : y(c.state_bytes / largest);
    return svg("rect", { key: c.id, class: failed(c) ? "failed" : "size", x: x(c) - width / 2, y: top, width, height: H - top },
      svg("title", {}, `checkpoint ${c.id}, ${clock(c.triggered_ms)}: ${duration(c.duration_ms)}, ${failed(c) ? "failed" : bytes(c.state_bytes)}`));
  });
  const points = ended.filter((c) => !failed(c)).map((c) => `${x(c)},${y(c.duration_ms / longest)}`).join(" ");
  const lines = [1, 0.5, 0].map((share) => svg("line", { class: "axis", x1: 0, y1: y(share), x2: W, y2: y(share), "vector-effect": "non-scaling-stroke" }));
  const axis = (kind, text, most) => el("div", { class: `scale ${kind}` }, [1, 0.5, 0].map((share) => el("span", {}, share ? text(most * share) : "0")));
  return el("figure", { class: "panel plot", key: "plot", role: "group", "aria-label": "duration and size over time" },
    el("figcaption", { class: "legend" }, el("span", {}, el("i", { class: "t" }), "end-to-end duration (left)"), el("span", {}, el("i", { class: "s" }), "bytes written (right)"),
      ended.some(failed) ? el("span", {}, el("i", { class: "f" }), "failed") : null),
    el("div", { class: "axes" },
      axis("left", duration, longest),
      svg("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": `${ended.length} checkpoints, duration up to ${duration(longest)}, size up to ${bytes(largest)}` },
        lines, bars, svg("polyline", { class: "time", points, "vector-effect": "non-scaling-stroke" })),
      axis("right", bytes, largest),
      el("div", { class: "times" }, el("span", {}, clock(first)), el("span", {}, clock(last)))));
}
