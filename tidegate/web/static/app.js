// What is shown follows the address (#/ or #/job/ID/TAB); a job's page is brought up to date by server-sent events.

import { badge, el, show } from "./dom.js";
import { metricsView } from "./metrics.js";
import { stateView } from "./state.js";
import { checkpointsView, configView, failuresView, jobsView, overview } from "./views.js";

const TABS = [["", "Overview"], ["checkpoints", "Checkpoints"], ["failures", "Failures"], ["state", "State"], ["metrics", "Metrics"], ["config", "Configuration"]];
const ENDED = ["FINISHED", "CANCELED", "FAILED", "SUSPENDED"];
const main = document.getElementById("main"), live = document.getElementById("live"), message = document.getElementById("message");
const state = { access: null, job: null, vertex: null, checkpoint: null, filter: "", events: null, timer: null, drawing: 0 };

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

async function call(method, path, body) {
  const headers = method === "POST" ? { "X-Tidegate-Request": "1", "Content-Type": "application/json" } : {};
  const response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Refused(response.status, answer.error ?? response.statusText);
  return answer;
}

// A job's own port closes soon after its end: what was last seen of the job stays then.
const seen = new Map();  // path -> answer, of the job that is shown
const over = () => ENDED.includes(state.job?.status);

async function look(path) {
  try {
    const answer = await call("GET", path);
    seen.set(path, answer);
    return answer;
  } catch (error) {
    if (error instanceof Refused || !over() || !seen.has(path)) throw error;
    return seen.get(path);
  }
}

function say(text, bad = false) {
  message.textContent = text;
  message.className = bad ? "bad" : "";
  message.hidden = !text;
}

// ---------------------------------------------------------------- who is there

async function begin() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", location.pathname + "#/");
    try { await call("POST", "/v1/login", { token: given }); } catch (error) { say(error.message, true); }
  }
  try {
    state.access = (await call("GET", "/v1/session")).access;
  } catch (error) {
    login();
    return;
  }
  document.getElementById("logout").hidden = false;
  route();
}

function login() {
  leave();
  const token = el("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const enter = async (event) => {
    event.preventDefault();
    try {
      await call("POST", "/v1/login", { token: token.value.trim() });
      say("");
      begin();
    } catch (error) { say(error.message, true); }
  };
  document.getElementById("logout").hidden = true;
  show(main, el("form", { class: "panel login", onsubmit: enter }, el("h1", {}, "Log in"),
    el("p", { class: "soft" }, "The command ", el("code", {}, "tidegate ui"), " opens this page with its token; that of a single job is in its file below ~/.local/state/tidegate/jobs."),
    el("label", {}, "Token", token), el("button", { type: "submit" }, "Log in")));
  token.focus();
}

document.getElementById("logout").addEventListener("click", async () => {
  await call("POST", "/v1/logout", {});
  login();
});

// ---------------------------------------------------------------- addresses

function leave() {
  state.events?.close();
  clearInterval(state.timer);
  Object.assign(state, { events: null, timer: null, job: null, vertex: null, checkpoint: null });
  seen.clear();
  live.textContent = "";
}

function where() {
  const [, kind, id, tab] = location.hash.split("/");
  return kind === "job" && id ? { id: decodeURIComponent(id), tab: TABS.some(([t]) => t === tab) ? tab : "" } : { id: null, tab: "" };
}

function route() {
  const { id } = where();
  if (id === null) {
    leave();
    document.title = "Tidegate";
    listJobs();
    state.timer = setInterval(listJobs, 2000);
  } else if (state.job?.job_id !== id) {
    leave();
    listen(id);
  }
  draw();
}

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) login();
    else if (error instanceof Refused) say(error.message, true);
    else if (over()) {
      live.textContent = "the job has ended";
      say("The job has ended, and its port is closed. The command tidegate ui shows all of it.", true);
    } else live.textContent = "not connected";
  }
}

function listJobs() {
  return guarded(async () => {
    const { jobs } = await call("GET", "/v1/jobs");
    if (where().id === null) { show(main, jobsView(jobs)); live.textContent = `${jobs.length} ${jobs.length === 1 ? "job" : "jobs"}`; }
  });
}

function listen(id) {
  guarded(async () => { state.job = await call("GET", `/v1/jobs/${encodeURIComponent(id)}`); await draw(); });
  const events = new EventSource(`/v1/jobs/${encodeURIComponent(id)}/events`);
  state.events = events;
  events.addEventListener("job", (event) => { state.job = JSON.parse(event.data); live.textContent = "live"; draw(); });
  events.addEventListener("end", () => { events.close(); live.textContent = "the job has ended"; });
  events.onerror = () => { if (events.readyState !== EventSource.CLOSED) live.textContent = "not connected"; };
}

// ---------------------------------------------------------------- a job

function draw() {
  const { id, tab } = where();
  const job = state.job;
  if (!job || job.job_id !== id) return Promise.resolve();
  const turn = ++state.drawing;  // a slow answer must not replace a newer one
  return guarded(async () => {
    const base = `/v1/jobs/${encodeURIComponent(id)}`;
    let content;
    if (tab === "checkpoints") {
      const answer = await look(`${base}/checkpoints`);
      const known = answer.checkpoints.some((c) => c.id === state.checkpoint);
      const detail = known ? await look(`${base}/checkpoints/${state.checkpoint}`) : null;
      content = checkpointsView(answer, detail, (n) => { state.checkpoint = state.checkpoint === n ? null : n; draw(); });
    } else if (tab === "failures") content = failuresView(await look(`${base}/exceptions`));
    else if (tab === "metrics") content = metricsView(await look(`${base}/metrics`), job, state.filter, (text) => { state.filter = text; draw(); });
    else if (tab === "state") content = stateView(await look(`${base}/state`), job, call);
    else if (tab === "config") content = configView(await look(`${base}/config`));
    else {
      const vertex = state.vertex === null ? null : await look(`${base}/vertices/${state.vertex}`);
      content = overview(job, vertex, (n) => { state.vertex = state.vertex === n ? null : n; draw(); });
    }
    if (turn !== state.drawing || where().id !== id) return;
    document.title = `${job.job_name} – Tidegate`;
    show(main, head(job), tabs(job, tab), content);
  });
}

function head(job) {
  const running = !ENDED.includes(job.status);
  const buttons = running && state.access === "full" ? el("div", { class: "buttons" },
    job.mode !== "BATCH" && el("button", { type: "button", "data-key": "savepoint", onclick: () => askSavepoint(job) }, "Savepoint"),
    job.mode !== "BATCH" && el("button", { type: "button", "data-key": "stop", onclick: () => askStop(job) }, "Stop"),
    el("button", { type: "button", class: "danger", "data-key": "cancel", onclick: () => askCancel(job) }, "Cancel")) : null;
  return el("div", { class: "head" }, el("h1", {}, job.job_name), badge(job.status), el("span", { class: "soft" }, `${job.mode} · ${job.job_id}`), buttons);
}

function tabs(job, current) {
  return el("nav", { class: "tabs", "aria-label": "views of the job" }, TABS.map(([tab, title]) =>
    el("a", { href: `#/job/${encodeURIComponent(job.job_id)}${tab ? `/${tab}` : ""}`, "aria-current": tab === current ? "page" : undefined, "data-key": `tab-${tab}` },
      tab === "checkpoints" && job.mode === "MICRO_BATCH" ? "Batches" : title)));
}

// ---------------------------------------------------------------- changes, after a question

function ask(title, content, yes, work) {
  const dialog = document.getElementById("question"), go = document.getElementById("question-yes");
  document.getElementById("question-title").textContent = title;
  show(document.getElementById("question-body"), content);
  go.textContent = yes;
  go.onclick = () => {
    dialog.close();
    say("Under way …");
    guarded(async () => say(await work()));
  };
  document.getElementById("question-no").onclick = () => dialog.close();
  dialog.showModal();
}

function folderInput() {
  const input = el("input", { type: "text", id: "folder", placeholder: "the job's own setting" });
  return [input, el("label", {}, "Folder for the savepoint", input)];
}

function askSavepoint(job) {
  const [folder, label] = folderInput();
  ask(`Take a savepoint of ${job.job_name}?`, label, "Take it", async () => {
    const { path } = await call("POST", `/v1/jobs/${encodeURIComponent(job.job_id)}/savepoint`, { directory: folder.value || null });
    return `Savepoint ${path}`;
  });
}

function askStop(job) {
  const [folder, label] = folderInput();
  const drain = el("input", { type: "checkbox", id: "drain" });
  ask(`Stop ${job.job_name} with a savepoint?`, [label, el("label", {}, drain, " bring event time to its end first (drain)")], "Stop it", async () => {
    const { path } = await call("POST", `/v1/jobs/${encodeURIComponent(job.job_id)}/stop`, { directory: folder.value || null, drain: drain.checked });
    return `Stopped. Savepoint ${path}`;
  });
}

function askCancel(job) {
  ask(`Cancel ${job.job_name}?`, el("p", {}, "The job ends at once, without a savepoint."), "Cancel the job", async () => {
    const { status } = await call("POST", `/v1/jobs/${encodeURIComponent(job.job_id)}/cancel`, {});
    return `The job is ${status}.`;
  });
}

document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
message.addEventListener("click", () => say(""));
addEventListener("hashchange", () => { say(""); if (state.access) route(); });
begin();
