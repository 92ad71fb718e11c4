// All metrics of a job, to be searched.

import { el, number, table } from "./dom.js";

const SHOWN = 500;
const box = el("input", { type: "search", id: "filter", "data-key": "filter", autocomplete: "off" });
const search = el("label", { class: "search" }, "Search by operator, subtask or name ", box);  // one for ever: it is typed into

const plain = (n) => (n === null || n === undefined ? "–" : Number.isInteger(n) ? number(n) : n.toLocaleString("en", { maximumSignificantDigits: 6 }));

function value(v) {
  if (v.type === "counter") return plain(v.count);
  if (v.type === "gauge") return plain(v.value);
  if (v.type === "meter") return `${plain(v.rate)}/s (${plain(v.count)})`;
  return `${plain(v.count)} of ${plain(v.minimum)} to ${plain(v.maximum)}, sum ${plain(v.total)}`;
}

export function metricsView(answer, job, filter, choose) {
  const names = new Map(job.vertices.map((v) => [v.vertex, v.name]));
  const rows = answer.metrics.map((m) => ({ ...m, of: m.operator ? m.scope[0] : names.get(m.vertex) ?? "", label: [...m.scope.slice(2), m.name].join(".") }));
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = rows.filter((m) => words.every((word) => `${m.of} ${m.subtask} ${m.label}`.toLowerCase().includes(word)));
  box.oninput = () => choose(box.value);
  return [
    search,
    el("p", { class: "soft", role: "status" }, `${number(found.length)} of ${number(rows.length)} metrics${found.length > SHOWN ? `, the first ${SHOWN} are shown` : ""}`),
    table([
      ["Metric", (m) => m.label, "long"], ["Of", (m) => m.of, "long"], ["Subtask", (m) => m.subtask, "n"], ["Type", (m) => m.value.type], ["Value", (m) => value(m.value), "n"],
    ], found.slice(0, SHOWN)),
  ];
}
