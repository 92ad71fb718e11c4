// The tabs of a job: each makes elements out of what the REST calls say.

import { badge, cards, el, svg, table } from "./dom.js";
import { bytes, chain, clock, duration, number, rate, time, watermark } from "./figures.js";
import { drawGraph, shareBar, shares } from "./graph.js";

export function jobsView(jobs) {
  return [
    el("h1", {}, "Jobs"),
    table([
      ["Name", (j) => el("a", { href: `#/job/${encodeURIComponent(j.job_id)}`, "data-key": `job-${j.job_id}` }, j.job_name), "long"],
      ["Status", (j) => (j.error ? el("span", { class: "bad" }, j.error) : badge(j.status))],
      ["Mode", (j) => j.mode],
      ["Started", (j) => time(j.started_ms)],
      ["Duration", (j) => duration(j.duration_ms), "n"],
      ["Restarts", (j) => number(j.attempt), "n"],
      ["Last checkpoint", (j) => (j.last_checkpoint ? `${j.last_checkpoint} (${clock(j.last_checkpoint_ms)})` : "–"), "n"],
      ["In", (j) => rate(j.records_in_per_second), "n"],
      ["Out", (j) => rate(j.records_out_per_second), "n"],
    ], jobs, { attributes: (j) => ({ key: j.job_id }) }),
  ];
}

const given = (figure) => figure !== null && figure !== undefined;

function counted(job) {
  const failed = job.checkpoints_failed > 0 && el("span", { class: "bad" }, `${number(job.checkpoints_failed)} failed`);
  return [`${number(job.checkpoints_completed)} done`, failed && [", ", failed]];
}

export function overview(job, vertex, choose) {
  const ended = job.ended_ms !== null && job.ended_ms !== undefined;
  return [
    el("div", { class: "graph-first" },
      cards([
        !ended && ["Running for", given(job.uptime_ms) ? duration(job.uptime_ms) : "–"], ["Duration", duration(job.duration_ms)], ended && ["Ended", time(job.ended_ms)],
        ["Restarts", number(job.attempt), job.attempt ? "warn" : ""], ["Downtime", duration(job.downtime_ms)],
        given(job.records_in_per_second) && ["Records in", rate(job.records_in_per_second)], given(job.records_out_per_second) && ["Records out", rate(job.records_out_per_second)],
        job.mode !== "BATCH" && [job.mode === "MICRO_BATCH" ? "Batches" : "Checkpoints", counted(job)],
        job.mode !== "BATCH" && ["Workers", number(job.workers)],
        job.lag && ["Behind", job.lag.measure === "pendingRecords" ? `${number(job.lag.value)} records` : lag(job.lag.value)],
      ]),
      el("div", { class: "graph-box" },
        el("div", { class: "legend" }, job.mode !== "BATCH" && [el("span", {}, el("i", { class: "b" }), "busy"), el("span", {}, el("i", { class: "p" }), "back-pressured"),
          el("span", {}, el("i", { class: "i" }), "idle")], el("span", {}, "click a box for its subtasks")),
        el("div", { class: "scroll wide", tabindex: 0, role: "region", "aria-label": "graph of the job" }, drawGraph(job, vertex?.vertex, choose)))),
    vertex && vertexPanel(vertex, job),
    job.stages.length ? [el("h2", { key: "stages" }, "Spark's stages"), stages(job.stages)] : null,
    el("h2", { key: "status" }, "Status"),
    table([["Status", (c) => badge(c.status)], ["At", (c) => time(c.at_ms)], ["Attempt", (c) => c.attempt, "n"]], job.status_history.slice(-20).reverse(), { attributes: (c) => ({ key: `${c.at_ms} ${c.status}` }) }),
  ];
}

function stages(found) {
  return table([
    ["Stage", (s) => s.stage, "n"], ["Name", (s) => chain(s.name).replace(/ at \/\S*\//, " at "), "long"],
    ["Progress", (s) => el("progress", { max: s.tasks || 1, value: s.completed, "aria-label": `${s.completed} of ${s.tasks} tasks` })],
    ["Tasks", (s) => `${s.completed} of ${s.tasks}`, "n"], ["Active", (s) => s.active, "n"], ["Failed", (s) => s.failed, "n"],
  ], found);
}

// Event time of a test may begin at 0: such a distance to the clock tells nothing.
const lag = (ms) => (ms === undefined || ms === null || ms > 3.15e11 ? "–" : duration(Math.max(0, ms)));
const behind = (m) => (m.pendingRecords !== undefined ? `${number(m.pendingRecords)} records` : lag(m.watermarkLag));

// By how much event time of each subtask is behind that of the sources: what is between them holds it up.
function behindSources(v, job) {
  if (!job.edges.some((e) => e.target === v.vertex)) return () => null;
  const upstream = new Set([v.vertex]);
  for (let before = 0; before !== upstream.size;) {
    before = upstream.size;
    for (const e of job.edges) if (upstream.has(e.target)) upstream.add(e.source);
  }
  const sources = job.vertices.filter((s) => upstream.has(s.vertex) && !job.edges.some((e) => e.target === s.vertex));
  const marks = sources.map((s) => s.metrics.currentInputWatermark);
  if (marks.some((mark) => !known(mark))) return () => null;
  const mark = Math.min(...marks);
  return (m) => (known(m.currentInputWatermark) && mark < END_OF_TIME ? Math.max(0, mark - m.currentInputWatermark) : null);
}

const END_OF_TIME = 8.64e15;
const known = (mark) => given(mark) && mark > -END_OF_TIME;

function spent(metrics) {
  const bar = shareBar(metrics), { busy, blocked, idle } = shares(metrics);
  return bar ? el("span", { class: "spent" }, svg("svg", { class: "share", viewBox: "0 0 90 10", preserveAspectRatio: "none" }, bar),
    el("span", { class: "figures" }, [busy, blocked, idle].map((share) => Math.round(share * 100)).join(" / "), " %")) : "–";
}

function vertexPanel(v, job) {
  const uids = v.operators.map((o) => o.uid).filter(Boolean);
  const sends = job.edges.some((e) => e.source === v.vertex), sent = (text) => (sends ? text : "–");
  const late = behindSources(v, job), isLate = v.subtasks.some((s) => late(s.metrics) !== null);
  const own = functionMetrics(v);
  return el("section", { class: "panel", "aria-label": "subtasks", key: `vertex-${v.vertex}` },
    el("h2", {}, chain(v.name)),
    el("p", { class: "soft" }, `vertex ${v.vertex}, parallelism ${v.parallelism} of at most ${v.max_parallelism}`, uids.length ? `; uid ${uids.join(", ")}` : "; no operator has a uid"),
    table([
      ["Subtask", (s) => s.subtask],
      ["Busy / blocked / idle", (s) => spent(s.metrics)],
      ["Records in", (s) => number(s.metrics.numRecordsIn), "n"], ["In", (s) => rate(s.metrics.numRecordsInPerSecond), "n"],
      ...(sends ? [["Records out", (s) => number(s.metrics.numRecordsOut), "n"], ["Out", (s) => rate(s.metrics.numRecordsOutPerSecond), "n"]] : []),
      ["Bytes in / out", (s) => `${bytes(s.metrics.numBytesIn)} / ${sent(bytes(s.metrics.numBytesOut))}`, "n"],
      ["Queued in / out", (s) => `${number(s.metrics.inputQueueLength)} / ${sent(number(s.metrics.outputQueueLength))}`, "n"],
      ["Watermark", (s) => watermark(s.metrics.currentInputWatermark), "n"],
      ...(isLate ? [["Behind source", (s) => lag(late(s.metrics)), "n"]] : []),
      ...(v.subtasks.some((s) => behind(s.metrics) !== "–") ? [["Behind", (s) => behind(s.metrics), "n"]] : []),
      ["State", (s) => bytes(s.state_bytes), "n"],
      ["Worker", (s) => (s.pid ? `${s.host}:${s.pid}` : "–")],
    ], v.subtasks),
    own.length ? [el("h2", {}, "Metrics of the functions"),
      table([["Operator", (m) => m.operator, "long"], ["Metric", (m) => m.name], ["Subtask", (m) => m.subtask], ["Value", (m) => m.value.toLocaleString("en"), "n"]], own)] : null);
}

// Their names are operator.subtask.groups.name, and the name of an operator may have dots.
function functionMetrics(v) {
  return v.subtasks.flatMap((s) => Object.entries(s.operator_metrics).map(([full, value]) => {
    const of = v.operators.map((o) => o.name).filter((name) => full.startsWith(`${name}.${s.subtask}.`)).sort((a, b) => b.length - a.length)[0];
    return { operator: of ?? "", name: of === undefined ? full : full.slice(`${of}.${s.subtask}.`.length), subtask: s.subtask, value };
  })).sort((a, b) => a.operator.localeCompare(b.operator) || a.name.localeCompare(b.name) || a.subtask - b.subtask);
}

function caughtUp(f, over) {
  if (f.downtime_ms === null) return "";
  if (f.caught_up === null) return " · its sources do not tell how far behind it is";
  if (f.caught_up) return ` · caught up after ${duration(f.catch_up_ms)} more`;
  return over ? " · had not caught up when the job ended" : " · catching up";
}

export function failuresView(answer, over) {
  return [failureSections(answer, over), warningsSection(answer.warnings)];
}

function warningsSection(warnings) {
  if (!warnings.length) return null;
  return el("section", { class: "panel", key: "warnings" }, el("h2", {}, "Warnings"),
    table([["Latest", (w) => time(w.latest_ms)], ["Times", (w) => number(w.times), "n"], ["Warning", (w) => w.text]], warnings, { attributes: (w) => ({ key: `${w.first_ms} ${w.text.replace(/\d+/g, "0")}` }) }));
}

function failureSections(answer, over) {
  if (!answer.failures.length) return [el("p", { class: "soft" }, "No failure so far.")];
  const all = Math.max(answer.failures.length, answer.restarts + (over && answer.failures[0].downtime_ms === null ? 1 : 0));
  const down = (f) => (f.downtime_ms !== null ? `down for ${duration(f.downtime_ms)}` : over ? "not running again" : "restarting");
  return [
    all > answer.failures.length ? el("p", { class: "soft", key: "total" }, `${number(answer.failures.length)} of ${number(all)} failures are kept: the first and the latest.`) : null,
    answer.failures.map((f) => el("section", { class: "panel", key: `${f.attempt} ${f.at_ms}` },
      el("p", {}, el("strong", { class: "bad" }, `attempt ${f.attempt}`), ` ${time(f.at_ms)} · `,
        f.operator ? `${f.operator}, subtask ${f.subtask} · ` : "", down(f), caughtUp(f, over)),
      f.verdict ? el("p", { class: "soft" }, "Restart strategy: ", el("strong", {}, f.verdict)) : null,
      el("p", {}, f.summary), f.traceback ? el("pre", { tabindex: 0 }, f.traceback) : null)),
  ];
}
