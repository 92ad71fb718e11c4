// Figures as people read them.

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
// With the day unless it is today's.
export function clock(ms) {
  if (!ms) return "–";
  const then = new Date(ms), today = then.toDateString() === new Date().toDateString();
  return unbroken(today ? then.toLocaleTimeString() : then.toLocaleString(undefined, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit", second: "2-digit" }));
}

export function watermark(ms) {
  if (ms === null || ms === undefined) return "–";
  return ms > 8.64e15 ? "end" : Math.abs(ms) < 1e11 ? number(ms) : clock(ms);
}
