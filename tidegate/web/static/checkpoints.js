// The checkpoints of a job, one of them in detail, and their plot.

import { badge, cards, el, table } from "./dom.js";
import { bytes, chain, clock, duration, number, time } from "./figures.js";
import { drawCheckpoints } from "./plot.js";

const SHOWN = 100, PLOTTED = 200;
const FIGURES = { duration_ms: ["Duration", duration], state_bytes: ["Written", bytes], full_bytes: ["Full size", bytes], alignment_ms: ["Alignment", duration], sync_ms: ["Sync", duration], async_ms: ["Async", duration], inflight_bytes: ["In flight", bytes] };

const words = (name) => name.toLowerCase().replaceAll("_", " ");

function median(values) {
  const sorted = values.filter((v) => v !== null && v !== undefined).sort((a, b) => a - b), half = sorted.length >> 1;
  return !sorted.length ? null : sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

export function checkpointsView(answer, detail, choose) {
  const { counts, summary } = answer;
  const kept = answer.checkpoints.filter((c) => c.status === "COMPLETED");
  const spreads = Object.entries(FIGURES).filter(([n]) => summary[n]).map(([n, [title, text]]) => ({ title, text, median: median(kept.map((c) => c[n])), ...summary[n] }));
  // What subtasks have not told yet is not zero.
  const told = (text, figure) => (c) => (c.status === "IN_PROGRESS" || !c.acknowledged ? "–" : text(c[figure]));
  return [
    cards([["Completed", number(counts.completed), "good"], ["Failed", number(counts.failed), counts.failed ? "bad" : ""], ["In progress", number(counts.in_progress)], ["Restored", number(counts.restored)],
      ...Object.entries(answer.failures_by_reason).map(([reason, n]) => [words(reason), number(n), "bad"])]),
    drawCheckpoints(answer.checkpoints.slice(0, PLOTTED)),
    detail && checkpointPanel(detail),
    el("h2", {}, "History"),
    table([
      ["Id", (c) => el("button", { type: "button", "data-key": `cp-${c.id}`, "aria-expanded": String(detail?.id === c.id), onclick: () => choose(c.id) }, c.id)],
      ["Kind", (c) => c.kind], ["Status", (c) => badge(c.status)], ["Triggered", (c) => clock(c.triggered_ms)],
      ["Duration", (c) => duration(c.duration_ms), "n"], ["Acknowledged", (c) => `${c.acknowledged} of ${c.tasks}`, "n"],
      ["Written", told(bytes, "state_bytes"), "n"], ["Full", told(bytes, "full_bytes"), "n"], ["In flight", told(bytes, "inflight_bytes"), "n"],
      ["Start delay", told(duration, "start_delay_ms"), "n"], ["Alignment", told(duration, "alignment_ms"), "n"], ["Sync", told(duration, "sync_ms"), "n"], ["Async", told(duration, "async_ms"), "n"],
      ["Note", (c) => (c.reason ? `${words(c.reason)}: ${c.detail}` : c.unaligned ? "unaligned" : ""), "long"],
    ], answer.checkpoints.slice(0, SHOWN), { attributes: (c) => ({ key: c.id, class: detail?.id === c.id ? "chosen" : undefined }) }),
    el("h2", {}, "Over all completed"),
    table([["Figure", (s) => s.title], ["Minimum", (s) => s.text(s.minimum), "n"], ["Average", (s) => s.text(s.average), "n"], ["Maximum", (s) => s.text(s.maximum), "n"],
      [`Median of the latest ${kept.length}`, (s) => s.text(s.median), "n"]], spreads),
    el("h2", {}, "Restores"),
    table([["Checkpoint", (r) => r.checkpoint_id, "n"], ["At", (r) => time(r.at_ms)],
      ["Note", (r) => (r.fell_back_from ? el("span", { class: "bad" }, `fell back: checkpoint ${r.fell_back_from} is damaged`) : ""), "long"]], answer.restores),
    el("h2", {}, "Configuration"),
    table([["Key", (s) => s.key, "long"], ["Value", (s) => s.value, "long"], ["From", (s) => s.source]], answer.configuration),
  ];
}

const OF_SUBTASKS = [["End to end", "end_to_end_ms", duration], ["Start delay", "start_delay_ms", duration], ["Alignment", "alignment_ms", duration], ["Sync", "sync_ms", duration],
  ["Async", "async_ms", duration], ["Written", "state_bytes", bytes], ["Full", "full_bytes", bytes], ["In flight", "inflight_bytes", bytes]];

function checkpointPanel(c) {
  return el("section", { class: "panel", "aria-label": "checkpoint", key: `detail-${c.id}` },
    el("h2", {}, `Checkpoint ${c.id} `, badge(c.status)),
    c.reason ? el("p", { class: "bad" }, `${words(c.reason)}: ${c.detail}`) : null,
    c.vertices.map((v) => el("div", { key: v.vertex },
      el("h2", {}, chain(v.name)),
      el("p", { class: "soft" }, `${v.acknowledged} acknowledged`),
      v.missing.length ? el("p", { class: "bad" }, `no answer from subtask ${v.missing.join(", ")}`) : null,
      v.subtasks.length > 0 && table([
        ["Subtask", (s) => s.subtask], ...OF_SUBTASKS.map(([title, name, text]) => [title, (s) => text(s[name]), "n"]), ["Note", (s) => (s.unaligned ? "unaligned" : "")],
      ], v.subtasks, { foot: Object.keys(v.spread).length ? ["minimum", "median", "maximum"].map((of) => [of, ...OF_SUBTASKS.map(([, name, text]) => text(v.spread[name]?.[of])), ""]) : [] }))));
}
