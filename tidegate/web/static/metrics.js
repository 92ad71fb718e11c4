// All metrics and all settings of a job, to be searched.

import { el, table } from "./dom.js";
import { number } from "./figures.js";

const SHOWN = 500;

const plain = (n) => (n === null || n === undefined ? "–" : Number.isInteger(n) ? number(n) : n.toLocaleString("en", { maximumSignificantDigits: 6 }));

function value(v) {
  if (v.type === "counter") return plain(v.count);
  if (v.type === "gauge") return plain(v.value);
  if (v.type === "meter") return `${plain(v.rate)}/s (${plain(v.count)})`;
  return `${plain(v.count)} of ${plain(v.minimum)} to ${plain(v.maximum)}, sum ${plain(v.total)}`;
}

function search(label, text, choose) {
  return el("label", { class: "search" }, label, el("input", { type: "search", id: "filter", "data-key": "filter", autocomplete: "off", value: text, oninput: (event) => choose(event.target.value) }));
}

const wordsIn = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

export function metricsView(answer, job, filter, choose) {
  const names = new Map(job.vertices.map((v) => [v.vertex, v.name]));
  const rows = answer.metrics.map((m) => ({ ...m, of: m.operator ? m.scope[0] : names.get(m.vertex) ?? "", label: [...m.scope.slice(2), m.name].join(".") }));
  const words = wordsIn(filter);
  const found = rows.filter((m) => words.every((word) => `${m.of} ${m.subtask} ${m.label}`.toLowerCase().includes(word)));
  return [
    search("Search by operator, subtask or name ", filter, choose),
    el("p", { class: "soft", role: "status" }, `${number(found.length)} of ${number(rows.length)} metrics${found.length > SHOWN ? `, the first ${SHOWN} are shown` : ""}`),
    table([
      ["Metric", (m) => m.label, "long"], ["Of", (m) => m.of, "long"], ["Subtask", (m) => m.subtask, "n"], ["Type", (m) => m.value.type], ["Value", (m) => value(m.value), "n"],
    ], found.slice(0, SHOWN), { attributes: (m) => ({ key: `${m.vertex} ${m.subtask} ${m.operator} ${m.label}` }) }),
  ];
}

// chosen: {filter, given}: the words, and whether only what was given is shown.
export function configView(answer, chosen, choose) {
  const words = wordsIn(chosen.filter);
  const sorted = [...answer.configuration].sort((a, b) => b.given - a.given || a.key.localeCompare(b.key));
  const found = sorted.filter((s) => (s.given || !chosen.given) && words.every((word) => `${s.key} ${s.value} ${s.source}`.toLowerCase().includes(word)));
  return [
    el("div", { class: "fields" }, search("Search by key, value or origin ", chosen.filter, (filter) => choose({ ...chosen, filter })),
      el("label", { class: "check" }, el("input", { type: "checkbox", id: "given", "data-key": "given", checked: chosen.given, onchange: (event) => choose({ ...chosen, given: event.target.checked }) }), " only those that were set")),
    el("p", { class: "soft", role: "status" }, `${number(found.length)} of ${number(sorted.length)} settings`),
    table([["Key", (s) => s.key, "long"], ["Value", (s) => s.value, "long"], ["From", (s) => s.source || (s.given ? "given" : "default"), ""]], found, { attributes: (s) => ({ key: s.key }) }),
  ];
}
