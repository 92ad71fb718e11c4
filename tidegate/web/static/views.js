// The tabs of a job: each makes elements out of what the REST calls say.

import { badge, bytes, cards, chain, clock, duration, el, number, rate, svg, table, time, watermark } from "./dom.js";
import { drawCheckpoints, drawGraph, shareBar } from "./graph.js";

export function jobsView(jobs) {
  return [
    el("h1", {}, "Jobs"),
    table([
      ["Name", (j) => el("a", { href: `#/job/${encodeURIComponent(j.job_id)}`, "data-key": `job-${j.job_id}` }, j.job_name), "long"],
      ["Status", (j) => badge(j.status)],
      ["Mode", (j) => j.mode],
      ["Started", (j) => time(j.started_ms)],
      ["Duration", (j) => duration(j.duration_ms), "n"],
      ["Restarts", (j) => number(j.attempt), "n"],
      ["Last checkpoint", (j) => (j.last_checkpoint ? `${j.last_checkpoint} (${clock(j.last_checkpoint_ms)})` : "–"), "n"],
      ["In", (j) => rate(j.records_in_per_second), "n"],
      ["Out", (j) => rate(j.records_out_per_second), "n"],
    ], jobs),
  ];
}

export function overview(job, vertex, choose) {
  const steps = job.mode === "MICRO_BATCH" ? "Batches" : "Checkpoints";
  return [
    cards([
      ["Running for", duration(job.duration_ms)], ["Restarts", number(job.attempt), job.attempt ? "warn" : ""], ["Downtime", duration(job.downtime_ms)],
      ["Records in", rate(job.records_in_per_second)], ["Records out", rate(job.records_out_per_second)],
      [steps, `${number(job.checkpoints_completed)} done`], job.checkpoints_failed > 0 && [steps, `${number(job.checkpoints_failed)} failed`, "bad"],
      ["Workers", number(job.workers)],
      job.lag && ["Behind", job.lag.measure === "pendingRecords" ? `${number(job.lag.value)} records` : lag(job.lag.value)],
    ]),
    el("div", { class: "legend" }, el("span", {}, el("i", { class: "b" }), "busy"), el("span", {}, el("i", { class: "p" }), "back-pressured"),
      el("span", {}, el("i", { class: "i" }), "idle"), el("span", {}, "click a box for its subtasks")),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "graph of the job" }, drawGraph(job, vertex?.vertex, choose)),
    vertex && vertexPanel(vertex),
    job.stages.length ? [el("h2", {}, "Spark's stages"), stages(job.stages)] : null,
    el("h2", {}, "Status"),
    table([["Status", (c) => badge(c.status)], ["At", (c) => time(c.at_ms)], ["Attempt", (c) => c.attempt, "n"]], job.status_history.slice(-20).reverse()),
  ];
}

function stages(found) {
  return table([
    ["Stage", (s) => s.stage, "n"], ["Name", (s) => s.name, "long"],
    ["Progress", (s) => el("progress", { max: s.tasks || 1, value: s.completed, "aria-label": `${s.completed} of ${s.tasks} tasks` })],
    ["Tasks", (s) => `${s.completed} of ${s.tasks}`, "n"], ["Active", (s) => s.active, "n"], ["Failed", (s) => s.failed, "n"],
  ], found);
}

// Event time of a test may begin at 0: such a distance to the clock tells nothing.
const lag = (ms) => (ms === undefined || ms === null || ms > 3.15e11 ? "–" : duration(Math.max(0, ms)));
const behind = (m) => (m.pendingRecords !== undefined ? `${number(m.pendingRecords)} records` : lag(m.watermarkLag));

function vertexPanel(v) {
  const uids = v.operators.map((o) => o.uid).filter(Boolean);
  const own = v.subtasks.flatMap((s) => Object.entries(s.operator_metrics).map(([name, value]) => ({ subtask: s.subtask, name, value })));
  return el("section", { class: "panel", "aria-label": "subtasks" },
    el("h2", {}, chain(v.name)),
    el("p", { class: "soft" }, `vertex ${v.vertex}, parallelism ${v.parallelism} of at most ${v.max_parallelism}`, uids.length ? `; uid ${uids.join(", ")}` : "; no operator has a uid"),
    table([
      ["Subtask", (s) => s.subtask, "n"],
      ["Busy", (s) => { const bar = shareBar(s.metrics); return bar ? svg("svg", { class: "share", viewBox: "0 0 90 10" }, bar) : "–"; }],
      ["Records in", (s) => number(s.metrics.numRecordsIn), "n"], ["In", (s) => rate(s.metrics.numRecordsInPerSecond), "n"],
      ["Records out", (s) => number(s.metrics.numRecordsOut), "n"], ["Out", (s) => rate(s.metrics.numRecordsOutPerSecond), "n"],
      ["Bytes in / out", (s) => `${bytes(s.metrics.numBytesIn)} / ${bytes(s.metrics.numBytesOut)}`, "n"],
      ["Queued in / out", (s) => `${number(s.metrics.inputQueueLength)} / ${number(s.metrics.outputQueueLength)}`, "n"],
      ["Watermark", (s) => watermark(s.metrics.currentInputWatermark), "n"],
      ...(v.subtasks.some((s) => behind(s.metrics) !== "–") ? [["Behind", (s) => behind(s.metrics), "n"]] : []),
      ["State", (s) => bytes(s.state_bytes), "n"],
      ["Worker", (s) => (s.pid ? `${s.host}:${s.pid}` : "–")],
    ], v.subtasks),
    own.length ? [el("h2", {}, "Metrics of the functions"), table([["Subtask", (m) => m.subtask, "n"], ["Name", (m) => m.name, "long"], ["Value", (m) => m.value.toLocaleString("en"), "n"]], own)] : null);
}

export function checkpointsView(answer, detail, choose) {
  const { counts, summary } = answer;
  const names = { duration_ms: ["Duration", duration], state_bytes: ["Written", bytes], full_bytes: ["Full size", bytes], alignment_ms: ["Alignment", duration], sync_ms: ["Sync", duration], async_ms: ["Async", duration], inflight_bytes: ["In flight", bytes] };
  const most = (figure) => Math.max(0, ...answer.checkpoints.slice(0, 200).map((c) => c[figure] ?? 0));
  const spreads = Object.entries(names).filter(([n]) => summary[n]).map(([n, [title, text]]) => ({ title, text, ...summary[n] }));
  return [
    cards([["Completed", number(counts.completed), "good"], ["Failed", number(counts.failed), counts.failed ? "bad" : ""], ["In progress", number(counts.in_progress)], ["Restored", number(counts.restored)],
      ...Object.entries(answer.failures_by_reason).map(([reason, n]) => [reason.toLowerCase().replaceAll("_", " "), number(n), "bad"])]),
    el("div", { class: "panel" }, el("div", { class: "legend" }, el("span", {}, `line: end-to-end duration, up to ${duration(most("duration_ms"))}`), el("span", {}, `bars: bytes written, up to ${bytes(most("state_bytes"))}; red: failed`)),
      drawCheckpoints(answer.checkpoints) ?? el("p", { class: "soft" }, "A plot needs two checkpoints.")),
    detail && checkpointPanel(detail),
    el("h2", {}, "History"),
    table([
      ["Id", (c) => el("button", { type: "button", "data-key": `cp-${c.id}`, "aria-expanded": String(detail?.id === c.id), onclick: () => choose(c.id) }, c.id)],
      ["Kind", (c) => c.kind], ["Status", (c) => badge(c.status)], ["Triggered", (c) => clock(c.triggered_ms)],
      ["Duration", (c) => duration(c.duration_ms), "n"], ["Acknowledged", (c) => `${c.acknowledged} of ${c.tasks}`, "n"],
      ["Written", (c) => bytes(c.state_bytes), "n"], ["Full", (c) => bytes(c.full_bytes), "n"], ["In flight", (c) => bytes(c.inflight_bytes), "n"],
      ["Start delay", (c) => duration(c.start_delay_ms), "n"], ["Alignment", (c) => duration(c.alignment_ms), "n"], ["Sync", (c) => duration(c.sync_ms), "n"], ["Async", (c) => duration(c.async_ms), "n"],
      ["Note", (c) => (c.reason ? `${c.reason.toLowerCase().replaceAll("_", " ")}: ${c.detail}` : c.unaligned ? "unaligned" : ""), "long"],
    ], answer.checkpoints.slice(0, 100), (c) => ({ class: detail?.id === c.id ? "chosen" : undefined })),
    el("h2", {}, "Over all completed"),
    table([["Figure", (s) => s.title], ["Minimum", (s) => s.text(s.minimum), "n"], ["Average", (s) => s.text(s.average), "n"], ["Maximum", (s) => s.text(s.maximum), "n"]], spreads),
    el("h2", {}, "Restores"),
    table([["Checkpoint", (r) => r.checkpoint_id, "n"], ["At", (r) => time(r.at_ms)],
      ["Note", (r) => (r.fell_back_from ? el("span", { class: "bad" }, `fell back: checkpoint ${r.fell_back_from} is damaged`) : ""), "long"]], answer.restores),
    el("h2", {}, "Configuration"),
    table([["Key", (s) => s.key, "long"], ["Value", (s) => s.value, "long"], ["From", (s) => s.source]], answer.configuration),
  ];
}

function checkpointPanel(c) {
  return el("section", { class: "panel", "aria-label": "checkpoint" },
    el("h2", {}, `Checkpoint ${c.id} `, badge(c.status)),
    c.reason ? el("p", { class: "bad" }, `${c.reason}: ${c.detail}`) : null,
    c.vertices.map((v) => {
      const spread = v.spread.end_to_end_ms;
      return [
        el("h2", {}, chain(v.name)),
        el("p", { class: "soft" }, `${v.acknowledged} acknowledged`, spread ? `; end to end ${duration(spread.minimum)} / ${duration(spread.median)} / ${duration(spread.maximum)} (min / median / max)` : ""),
        v.missing.length ? el("p", { class: "bad" }, `no answer from subtask ${v.missing.join(", ")}`) : null,
        table([
          ["Subtask", (s) => s.subtask, "n"], ["End to end", (s) => duration(s.end_to_end_ms), "n"], ["Start delay", (s) => duration(s.start_delay_ms), "n"],
          ["Alignment", (s) => duration(s.alignment_ms), "n"], ["Sync", (s) => duration(s.sync_ms), "n"], ["Async", (s) => duration(s.async_ms), "n"],
          ["Written", (s) => bytes(s.state_bytes), "n"], ["Full", (s) => bytes(s.full_bytes), "n"], ["In flight", (s) => bytes(s.inflight_bytes), "n"], ["Note", (s) => (s.unaligned ? "unaligned" : "")],
        ], v.subtasks),
      ];
    }));
}

function caughtUp(f) {
  if (f.downtime_ms === null) return "";
  if (f.caught_up === null) return " · its sources do not tell how far behind it is";
  return f.caught_up ? ` · caught up after ${duration(f.catch_up_ms)} more` : " · catching up";
}

export function failuresView(answer) {
  if (!answer.failures.length) return [el("p", { class: "soft" }, "No failure so far.")];
  return answer.failures.map((f) => el("section", { class: "panel" },
    el("p", {}, el("strong", { class: "bad" }, `attempt ${f.attempt}`), ` ${time(f.at_ms)} · `,
      f.operator ? `${f.operator}, subtask ${f.subtask} · ` : "", f.downtime_ms === null ? "not running again" : `down for ${duration(f.downtime_ms)}`, caughtUp(f)),
    f.verdict ? el("p", { class: "soft" }, "Restart strategy: ", el("strong", {}, f.verdict)) : null,
    el("p", {}, f.summary), f.traceback ? el("pre", { tabindex: 0 }, f.traceback) : null));
}

export function configView(answer) {
  const sorted = [...answer.configuration].sort((a, b) => b.given - a.given || a.key.localeCompare(b.key));
  return [table([["Key", (s) => s.key, "long"], ["Value", (s) => s.value, "long"], ["From", (s) => s.source || (s.given ? "given" : "default"), ""]], sorted)];
}
