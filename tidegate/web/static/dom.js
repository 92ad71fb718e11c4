// Builds the page. Text only ever becomes text: there is no innerHTML anywhere, so names with markup are harmless.
//
// A view is built anew at each change of the job and then laid over what is there: elements stay those that they were, so
// what is selected, pressed, focused, typed, scrolled or read out goes on. Attributes of an element, for `el` and `svg`:
//   key       tells it from its siblings of the same kind, also when these come and go; data-key is one too
//   onclick…  what is called, at any time the latest

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
    if (name === "key") node.key = value;
    else if (name.startsWith("on")) listen(node, name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...given(children));
  return node;
}

const given = (children) => children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false);

function listen(node, type, handler) {
  node.handlers ??= {};
  if (!(type in node.handlers)) node.addEventListener(type, (event) => node.handlers[type]?.(event));
  node.handlers[type] = handler;
}

// Makes the content of an element be this.
export function show(container, ...children) {
  const wanted = document.createDocumentFragment();
  wanted.append(...given(children));
  morphChildren(container, wanted);
}

const kind = (node) => `${node.nodeName} ${node.key ?? node.dataset?.key ?? ""}`;

function morphChildren(parent, wanted) {
  const there = new Map();  // kind -> the children of that kind, in their order
  for (const child of parent.childNodes) {
    const found = there.get(kind(child));
    if (found) found.push(child);
    else there.set(kind(child), [child]);
  }
  const pairs = [...wanted.childNodes].map((next) => [there.get(kind(next))?.shift(), next]);
  for (const rest of there.values()) rest.forEach((child) => child.remove());
  let place = parent.firstChild;
  for (const [old, next] of pairs) {
    if (old) morph(old, next);
    const node = old ?? next;
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);  // what stays in its place is never moved: that would take its focus
  }
}

function morph(old, next) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const type of Object.keys(old.handlers ?? {})) old.handlers[type] = undefined;
  for (const [type, handler] of Object.entries(next.handlers ?? {})) listen(old, type, handler);
  morphChildren(old, next);
}

// Says it where it is read out, unless that says it already.
export function tell(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// columns: [title, what makes a cell of a row, kind of the column], foot: rows of texts below.
export function table(columns, rows, { attributes = () => ({}), foot = [] } = {}) {
  const head = el("tr", {}, columns.map(([title, , kind]) => el("th", { scope: "col", class: kind }, title)));
  const cell = (content, [title, , kind]) => el("td", { class: kind, "data-label": title }, content);
  const body = rows.map((row) => el("tr", attributes(row), columns.map((column) => cell(column[1](row), column))));
  if (!rows.length) body.push(el("tr", {}, el("td", { colspan: columns.length, class: "soft" }, "none")));
  const below = foot.length ? el("tfoot", {}, foot.map((texts) => el("tr", {}, texts.map((text, i) => cell(text, columns[i]))))) : null;
  // What may be wider than the screen can be scrolled by keyboard too.
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.map(([title]) => title).join(", ") },
    el("table", {}, el("thead", {}, head), el("tbody", {}, body), below));
}

export function cards(pairs) {
  return el("div", { class: "cards" }, pairs.filter(Boolean).map(([name, value, kind]) => el("div", { class: "card", key: name }, el("span", {}, name), el("b", { class: kind }, value))));
}

export function statusKind(status) {
  if (["RUNNING", "FINISHED", "COMPLETED"].includes(status)) return "good";
  return ["FAILED", "FAILING"].includes(status) ? "bad" : "warn";
}

export const badge = (status) => el("span", { class: `badge ${statusKind(status)}` }, status.replaceAll("_", " "));
