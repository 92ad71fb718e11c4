// What is shown follows the address (#/ or #/job/ID/TAB); a job's page is brought up to date by server-sent events.

import { checkpointsView } from "./checkpoints.js";
import { badge, el, show, tell } from "./dom.js";
import { configView, metricsView } from "./metrics.js";
import { stateView } from "./state.js";
import { failuresView, jobsView, overview } from "./views.js";

const TABS = [["", "Overview"], ["checkpoints", "Checkpoints"], ["failures", "Failures"], ["state", "State"], ["metrics", "Metrics"], ["config", "Configuration"]];
const ENDED = ["FINISHED", "CANCELED", "FAILED", "SUSPENDED"];
const LIST_MS = 2_000;  // between two looks at the list of jobs
const RETRY_MS = 5_000;  // after events were refused
const main = document.getElementById("main"), live = document.getElementById("live"), message = document.getElementById("message");
const state = { access: null, job: null, vertex: null, checkpoint: null, filter: "", settings: { filter: "", given: false }, events: null, timer: null, drawing: 0, trouble: false };  // trouble: the message is of something that may pass by itself

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
  tell(message, text);
  state.trouble = false;
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
  state.access = null;
  const token = el("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const enter = async (event) => {
    event.preventDefault();
    try {
      await call("POST", "/v1/login", { token: event.target.elements.token.value.trim() });
      say("");
      begin();
    } catch (error) { say(error.message, true); }
  };
  document.getElementById("logout").hidden = true;
  show(main, el("form", { class: "panel login", key: "login", onsubmit: enter }, el("h1", {}, "Log in"),
    el("p", { class: "soft" }, "The command ", el("code", {}, "tidegate ui"), " opens this page with its token; that of a single job is in its file below ~/.local/state/tidegate/jobs."),
    el("label", {}, "Token", token), el("button", { type: "submit" }, "Log in")));
  document.getElementById("token").focus();
}

// A server that is gone cannot be told. That of a job which has ended does not come back, and its token opens nothing:
// what is on the screen goes.
document.getElementById("logout").addEventListener("click", async () => {
  const ended = over();
  try {
    await call("POST", "/v1/logout", {});
    login();
  } catch (error) {
    if (error instanceof Refused && error.status !== 401) say(error.message, true);
    else if (error instanceof Refused) login();
    else if (ended) {
      login();
      say("The job has ended, and its port is closed: nobody can log in here any more.");
    } else say("Not logged out: the server does not answer. Try again when it does.", true);
  }
});

// ---------------------------------------------------------------- addresses

// Nothing is asked of the server any more, until `watch`.
function rest() {
  state.events?.close();
  clearTimeout(state.timer);
  Object.assign(state, { events: null, timer: null });
}

function leave() {
  rest();
  Object.assign(state, { job: null, vertex: null, checkpoint: null, filter: "" });
  seen.clear();
  tell(live, "");
}

function where() {
  const [, kind, id, tab] = location.hash.split("/");
  return kind === "job" && id ? { id: decodeURIComponent(id), tab: TABS.some(([t]) => t === tab) ? tab : "" } : { id: null, tab: "" };
}

function route() {
  const { id } = where();
  if (id === null || state.job?.job_id !== id) {
    leave();
    if (id === null) document.title = "Tidegate";
    watch();
  }
  draw();
}

// A browser has few connections to a host, for all its tabs together: a tab that nobody sees gives its own back.
function watch() {
  rest();
  if (document.hidden || !state.access || over()) return;
  const { id } = where();
  if (id === null) watchJobs();
  else listen(id);
}

document.addEventListener("visibilitychange", watch);

// passing: the work is done again by itself, and what it has to say goes when it succeeds.
async function guarded(work, passing = true) {
  try {
    await work();
    if (passing && state.trouble) say("");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) login();
    else if (error instanceof Refused) {
      say(error.message, true);
      state.trouble = passing;
    } else if (over()) {
      tell(live, "the job has ended");
      say("The job has ended, and its port is closed. The command tidegate ui shows all of it.", true);
    } else tell(live, "not connected");
  }
}

async function watchJobs() {
  await guarded(async () => {
    const { jobs } = await call("GET", "/v1/jobs");
    if (where().id === null) { show(main, el("div", { key: "jobs" }, jobsView(jobs))); tell(live, `${jobs.length} ${jobs.length === 1 ? "job" : "jobs"}`); }
  });
  if (where().id === null && state.access && !document.hidden) again(watchJobs, LIST_MS);
}

function again(work, ms) {
  clearTimeout(state.timer);
  state.timer = setTimeout(work, ms);
}

function listen(id) {
  lookAt(id);
  const events = new EventSource(`/v1/jobs/${encodeURIComponent(id)}/events`);
  state.events = events;
  const mine = (work) => (event) => { if (state.events === events) work(event); };
  events.addEventListener("job", mine((event) => { state.job = JSON.parse(event.data); tell(live, "live"); draw(); }));
  events.addEventListener("silent", mine(() => tell(live, "the job does not answer")));
  events.addEventListener("end", mine(() => {
    rest();
    tell(live, over() ? "the job has ended" : "not connected");
    if (!over()) again(() => listen(id), RETRY_MS);  // only the server has
  }));
  events.onerror = mine(() => {
    const refused = events.readyState === EventSource.CLOSED;  // otherwise the browser tries again by itself
    tell(live, refused ? "not live" : "not connected");
    if (refused) again(() => listen(id), RETRY_MS);
  });
}

// Without events: also finds out why they are refused.
function lookAt(id) {
  return guarded(async () => {
    const job = await call("GET", `/v1/jobs/${encodeURIComponent(id)}`);
    if (where().id !== id) return;
    state.job = job;
    await draw();
  });
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
    if (tab === "checkpoints" && hasCheckpoints(job)) {
      const answer = await look(`${base}/checkpoints`);
      const known = answer.checkpoints.some((c) => c.id === state.checkpoint);
      const detail = known ? await look(`${base}/checkpoints/${state.checkpoint}`) : null;
      content = checkpointsView(answer, detail, (n) => { state.checkpoint = state.checkpoint === n ? null : n; draw(); });
    } else if (tab === "failures") content = failuresView(await look(`${base}/exceptions`), over());
    else if (tab === "metrics") content = metricsView(await look(`${base}/metrics`), job, state.filter, (text) => { state.filter = text; draw(); });
    else if (tab === "state") content = stateView(await look(`${base}/state`), job, call, draw);
    else if (tab === "config") content = configView(await look(`${base}/config`), state.settings, (chosen) => { state.settings = chosen; draw(); });
    else {
      const vertex = state.vertex === null ? null : await look(`${base}/vertices/${state.vertex}`);
      content = overview(job, vertex, (n) => { state.vertex = state.vertex === n ? null : n; draw(); });
    }
    if (turn !== state.drawing || where().id !== id) return;
    document.title = `${job.job_name} – Tidegate`;
    show(main, head(job), tabs(job, tab), el("div", { class: `view ${tab || "overview"}`, key: `${id}/${tab}` }, content));
  });
}

function head(job) {
  const running = !ENDED.includes(job.status);
  const buttons = running && state.access === "full" ? el("div", { class: "buttons" },
    hasCheckpoints(job) && el("button", { type: "button", "data-key": "savepoint", onclick: () => askSavepoint(job) }, "Savepoint"),
    hasCheckpoints(job) && el("button", { type: "button", "data-key": "stop", onclick: () => askStop(job) }, "Stop"),
    el("button", { type: "button", class: "danger", "data-key": "cancel", onclick: () => askCancel(job) }, "Cancel")) : null;
  return el("div", { class: "head", key: "head" }, el("a", { class: "back", href: "#/" }, "← Jobs"), el("h1", {}, job.job_name), badge(job.status), el("span", { class: "soft" }, `${job.mode} · ${job.job_id}`), buttons);
}

// A BATCH job has no checkpoints.
const hasCheckpoints = (job) => job.mode !== "BATCH";

function tabs(job, current) {
  return el("nav", { class: "tabs", key: "tabs", "aria-label": "views of the job" }, TABS.filter(([tab]) => tab !== "checkpoints" || hasCheckpoints(job)).map(([tab, title]) =>
    el("a", { href: `#/job/${encodeURIComponent(job.job_id)}${tab ? `/${tab}` : ""}`, "aria-current": tab === current ? "page" : undefined, "data-key": `tab-${tab}` },
      tab === "checkpoints" && job.mode === "MICRO_BATCH" ? "Batches" : title)));
}

// ---------------------------------------------------------------- changes, after a question

function ask(title, content, yes, work) {
  const dialog = document.getElementById("question"), go = document.getElementById("question-yes");
  document.getElementById("question-title").textContent = title;
  document.getElementById("question-body").replaceChildren(...[content].flat());  // a new question has empty fields
  go.textContent = yes;
  go.onclick = () => {
    dialog.close();
    say("Under way …");
    guarded(async () => say(await work()), false);
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
