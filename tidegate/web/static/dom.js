// Builds the page. Text only ever becomes text: there is no innerHTML anywhere, so names with markup are harmless.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) node.append(child);
  }
  return node;
}

// Replaces what an element holds. The element that has the keyboard keeps it, by its data-key, and what was scrolled stays so.
export function show(container, ...children) {
  const active = document.activeElement, key = active?.dataset?.key;
  const caret = active?.type === "search" ? active.selectionStart : null;
  const scrolled = () => [...container.querySelectorAll(".scroll, pre")];
  const places = scrolled().map((e) => [e.scrollLeft, e.scrollTop]);
  container.replaceChildren(...children.flat(Infinity).filter((c) => c));
  scrolled().forEach((e, i) => { if (places[i]) [e.scrollLeft, e.scrollTop] = places[i]; });
  const next = key && [...container.querySelectorAll("[data-key]")].find((e) => e.dataset.key === key);
  if (!next) return;
  next.focus({ preventScroll: true });
  if (caret !== null) next.setSelectionRange(caret, caret);
}

export function table(columns, rows, attributes = () => ({})) {
  const head = el("tr", {}, columns.map(([title, , kind]) => el("th", { scope: "col", class: kind }, title)));
  const body = rows.map((row) => el("tr", attributes(row), columns.map(([, cell, kind]) => el("td", { class: kind }, cell(row)))));
  if (!rows.length) body.push(el("tr", {}, el("td", { colspan: columns.length, class: "soft" }, "none")));
  // What may be wider than the screen can be scrolled by keyboard too.
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.map(([title]) => title).join(", ") }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

export function cards(pairs) {
  return el("div", { class: "cards" }, pairs.filter(Boolean).map(([name, value, kind]) => el("div", { class: "card" }, el("span", {}, name), el("b", { class: kind }, value))));
}

// ---------------------------------------------------------------- figures as people read them

export const number = (n) => (n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en"));

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  for (const [size, unit] of [[1 << 30, "GB"], [1 << 20, "MB"], [1 << 10, "KB"]]) if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
  return `${Math.round(n)} B`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms && ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${(s / 86400).toFixed(1)} d`;
}

export const rate = (n) => (n === null || n === undefined ? "–" : `${n && n < 100 ? n.toFixed(1) : number(n)}/s`);
export const chain = (name) => name.replaceAll(" -> ", " → ");  // of a vertex, as the graph has it
const unbroken = (text) => text.replace(/\s/g, "\u00a0");
export const time = (ms) => (ms ? unbroken(new Date(ms).toLocaleString()) : "–");
export const clock = (ms) => (ms ? unbroken(new Date(ms).toLocaleTimeString()) : "–");

export function watermark(ms) {
  if (ms === null || ms === undefined) return "–";
  return ms > 8.64e15 ? "end" : Math.abs(ms) < 1e11 ? number(ms) : time(ms);
}

export function statusKind(status) {
  if (["RUNNING", "FINISHED", "COMPLETED"].includes(status)) return "good";
  return ["FAILED", "FAILING"].includes(status) ? "bad" : "warn";
}

export const badge = (status) => el("span", { class: `badge ${statusKind(status)}` }, status.replaceAll("_", " "));
