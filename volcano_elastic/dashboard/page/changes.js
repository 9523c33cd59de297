/** Changes of jobs, each with its reason. */

import { h } from "./element.js";
import { clock } from "./format.js";

/** Returns the address of a job's view. */
export function jobLink(job) {
  return `#/job/${job.split("/").map(encodeURIComponent).join("/")}`;
}

/** Returns a table of changes, newest first. */
export function changes(list, { of = true } = {}) {
  if (!list.length) return h("p", { class: "soft" }, "No job has changed in this time.");
  return h("div", { class: "scroll" }, h("table", { class: "stack" },
    h("thead", null, h("tr", null, h("th", null, "when"), of && h("th", null, "job"), h("th", null, "what"), h("th", null, "why"))),
    h("tbody", null, list.map((one) => h("tr", null,
      h("td", { class: "short" }, clock(one.time)),
      of && h("td", { class: "name" }, h("a", { href: jobLink(one.job) }, one.job)),
      h("td", { class: "short" }, what(one)),
      h("td", { class: "why" }, one.message || (one.reason && one.reason !== one.kind ? one.reason : ""), one.message && one.reason ? h("span", { class: "soft" }, ` (${one.reason})`) : null))))));
}

function what(one) {
  if (one.kind === "Resized") {
    const sign = one.from === null ? "" : one.to > one.from ? "▲ " : one.to < one.from ? "▼ " : "";
    return `${sign}${one.from ?? "?"} → ${one.to ?? "?"}`;
  }
  if (one.kind === "Sized") return `first size ${one.to}`;
  return one.kind;
}
