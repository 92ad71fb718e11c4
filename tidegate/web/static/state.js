// The keyed states of a job, and a box to look keys up in one of them. What was asked and found stays until another job
// is looked at.

import { el, table } from "./dom.js";
import { bytes, number, watermark } from "./figures.js";

const asked = { job: null, choice: null, key: "", level: "live", turn: 0, found: null };  // found: what the box shows below

export function stateView(answer, job, call, redraw) {
  const { states } = answer;
  if (asked.job !== job.job_id) Object.assign(asked, { job: job.job_id, choice: null, key: "", level: "live", turn: asked.turn + 1, found: null });
  return [
    table([
      ["Operator", (s) => s.operator, "long"], ["State", (s) => s.state, "long"],
      ["Kind", (s) => (s.per_window ? `${s.kind} per window` : s.kind)],
      ["Type", (s) => s.type || "–"],
      ["Keys", (s) => (s.hidden ? "hidden" : s.key_type || s.key_types.join(" or ") || "–")],
      ["Entries", (s) => (s.exact ? number(s.entries) : `about ${number(s.entries)}`), "n"],
      ["Bytes", (s) => `about ${bytes(s.bytes)}`, "n"],
    ], states, { attributes: (s) => ({ key: `${s.operator_id} ${s.state}` }) }),
    states.length ? lookUp(job, states.filter((s) => !s.hidden), call, redraw)
      : el("p", { class: "soft" }, job.mode === "BATCH" ? "A BATCH job keeps no state that could be looked at." : "No keyed state so far: what there is comes with the workers' heartbeats."),
  ];
}

function lookUp(job, states, call, redraw) {
  const options = states.map((s) => [JSON.stringify([s.operator_id, s.state]), `${s.operator} / ${s.state}`]);
  const keep = (field) => (event) => { asked[field] = event.target.value; };
  const option = (field, value, text) => el("option", { key: value, value, selected: asked[field] === value }, text);
  const look = async (event) => {
    event.preventDefault();
    const form = event.currentTarget, turn = ++asked.turn;
    if (!form.elements.choice.value) return;
    const [operator, state] = JSON.parse(form.elements.choice.value);
    const query = new URLSearchParams({ level: form.elements.level.value, limit: 50 });
    if (form.elements.key.value !== "") query.append("key", form.elements.key.value);
    const path = `/v1/jobs/${encodeURIComponent(job.job_id)}/state/${encodeURIComponent(operator)}/${encodeURIComponent(state)}?${query}`;
    asked.found = () => el("p", { class: "soft" }, "Looking …");
    redraw();
    let found;
    try {
      const { answers } = await call("GET", path);
      found = () => answersTable(answers);
    } catch (error) { found = () => el("p", { class: "bad" }, error.message); }
    if (turn !== asked.turn) return;  // another one was asked meanwhile
    asked.found = found;
    redraw();
  };
  return el("form", { class: "panel look", onsubmit: look }, el("h2", {}, "Look up a key"),
    el("div", { class: "fields" },
      el("label", {}, "State", el("select", { id: "state-choice", name: "choice", "data-key": "state-choice", onchange: keep("choice") }, options.map(([value, text]) => option("choice", value, text)))),
      el("label", {}, "Key", el("input", { type: "text", id: "state-key", name: "key", "data-key": "state-key", autocomplete: "off", placeholder: "empty: some entries", value: asked.key, oninput: keep("key") })),
      el("label", {}, "As of", el("select", { id: "state-level", name: "level", "data-key": "state-level", onchange: keep("level") },
        option("level", "live", "live: what the operator sees now"), option("level", "committed", "committed: as of the last checkpoint"))),
      el("button", { type: "submit", "data-key": "state-look" }, "Look")),
    el("div", { id: "state-found", role: "status", "aria-live": "polite" }, asked.found?.()));
}

function answersTable(answers) {
  const rows = answers.flatMap((a) => (a.windows ?? [a]).map((part) => ({ ...a, ...part, key: a.key })));
  const columns = [
    ["Key", (r) => r.key.text, "long"],
    ...(rows.some((r) => r.window) ? [["Window", (r) => r.window?.text ?? "–"]] : []),
    ["Value", (r) => (r.found ? r.text : el("span", { class: "soft" }, "nothing")), "long"],
    ["Type", (r) => (r.found ? r.type : "–")],
    ["As of", (r) => (r.checkpoint !== null ? `checkpoint ${r.checkpoint}` : r.watermark !== null ? `watermark ${watermark(r.watermark)}` : `attempt ${r.attempt}, now`)],
  ];
  return table(columns, rows);
}
