// The keyed states of a job, and a box to look keys up in one of them. The box is made once for a job and put back at
// every drawing, so that what is typed, and what was found, stays.

import { bytes, el, number, show, table, watermark } from "./dom.js";

const box = { job: null, element: null, choice: null, key: null, level: null, found: null, names: "" };

export function stateView(answer, job, call) {
  const { states } = answer;
  if (box.job !== job.job_id) makeBox(job, call);
  offer(states.filter((s) => !s.hidden));
  return [
    table([
      ["Operator", (s) => s.operator, "long"], ["State", (s) => s.state, "long"],
      ["Kind", (s) => (s.per_window ? `${s.kind} per window` : s.kind)],
      ["Type", (s) => s.type || "–"],
      ["Keys", (s) => (s.hidden ? "hidden" : s.key_type || s.key_types.join(" or ") || "–")],
      ["Entries", (s) => (s.exact ? number(s.entries) : `about ${number(s.entries)}`), "n"],
      ["Bytes", (s) => `about ${bytes(s.bytes)}`, "n"],
    ], states),
    states.length ? box.element : el("p", { class: "soft" }, job.mode === "BATCH" ? "A BATCH job keeps no state that could be looked at." : "No keyed state so far: what there is comes with the workers' heartbeats."),
  ];
}

function makeBox(job, call) {
  const choice = el("select", { id: "state-choice", "data-key": "state-choice" });
  const key = el("input", { type: "text", id: "state-key", "data-key": "state-key", autocomplete: "off", placeholder: "empty: some entries" });
  const level = el("select", { id: "state-level", "data-key": "state-level" },
    el("option", { value: "live" }, "live: what the operator sees now"), el("option", { value: "committed" }, "committed: as of the last checkpoint"));
  const found = el("div", { id: "state-found", role: "status", "aria-live": "polite" });
  const look = async (event) => {
    event.preventDefault();
    const [operator, state] = JSON.parse(choice.value);
    const query = new URLSearchParams({ level: level.value, limit: 50 });
    if (key.value !== "") query.append("key", key.value);
    const path = `/v1/jobs/${encodeURIComponent(job.job_id)}/state/${encodeURIComponent(operator)}/${encodeURIComponent(state)}?${query}`;
    show(found, el("p", { class: "soft" }, "Looking …"));
    try { show(found, answers(await call("GET", path))); } catch (error) { show(found, el("p", { class: "bad" }, error.message)); }
  };
  const element = el("form", { class: "panel look", onsubmit: look }, el("h2", {}, "Look up a key"),
    el("div", { class: "fields" }, el("label", {}, "State", choice), el("label", {}, "Key", key), el("label", {}, "As of", level),
      el("button", { type: "submit", "data-key": "state-look" }, "Look")), found);
  Object.assign(box, { job: job.job_id, element, choice, key, level, found, names: "" });
}

function offer(states) {
  const names = JSON.stringify(states.map((s) => [s.operator_id, s.state]));
  if (names === box.names) return;
  const before = box.choice.value;
  show(box.choice, states.map((s) => el("option", { value: JSON.stringify([s.operator_id, s.state]) }, `${s.operator} / ${s.state}`)));
  if ([...box.choice.options].some((o) => o.value === before)) box.choice.value = before;
  box.names = names;
}

function answers(answer) {
  const rows = answer.answers.flatMap((a) => (a.windows ?? [a]).map((part) => ({ ...a, ...part, key: a.key })));
  const columns = [
    ["Key", (r) => r.key.text, "long"],
    ...(rows.some((r) => r.window) ? [["Window", (r) => r.window?.text ?? "–"]] : []),
    ["Value", (r) => (r.found ? r.text : el("span", { class: "soft" }, "nothing")), "long"],
    ["Type", (r) => (r.found ? r.type : "–")],
    ["As of", (r) => (r.checkpoint !== null ? `checkpoint ${r.checkpoint}` : r.watermark !== null ? `watermark ${watermark(r.watermark)}` : `attempt ${r.attempt}, now`)],
  ];
  return table(columns, rows);
}
