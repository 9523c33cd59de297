/** A form: what would be decided next, or would have come of the last days, if a queue were capped, nodes were added, or a job arrived. */

import { jobLink } from "./changes.js";
import { get } from "./connection.js";
import { h } from "./element.js";
import { amount, clock, duration, unit } from "./format.js";

const SINCE = [["", "now"], ["86400", "yesterday"], ["259200", "three days ago"], ["604800", "a week ago"]];

export class WhatIfView {
  constructor(draw) {
    this.draw = draw;
    this.found = null;
    this.trouble = null;
    this.working = false;
    this.since = "";
  }

  async ask(event) {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    if (this.working) return;
    const asked = { nodes: given.get("nodes") || 0 };
    if (given.get("since") !== "") Object.assign(asked, { since: given.get("since"), hours: given.get("hours") || 1 });
    if (given.get("capability") !== "") Object.assign(asked, { queue: given.get("queue"), capability: given.get("capability") });
    if (given.get("min") !== "") Object.assign(asked, { into: given.get("into"), min: given.get("min"), max: given.get("max") || given.get("min"), each: given.get("each") });
    this.working = true;
    this.draw();
    try {
      this.found = await get("what-if", asked);
      this.trouble = null;
    } catch (error) {
      if (error.status !== 400) throw error;
      this.trouble = error.message;
    } finally {
      this.working = false;
    }
    this.draw();
  }

  view(overview) {
    const queues = (name) => h("select", { name, "aria-label": "queue" }, overview.queues.filter((one) => one.name).map((one) => h("option", { value: one.name }, one.name)));
    const number = (name, label, least = 0) => h("label", null, `${label} `, h("input", { name, type: "number", min: least, max: 1000000, inputmode: "numeric" }));
    return [
      h("h2", null, "What if"),
      h("p", { class: "soft" }, "Fill in what would be otherwise; nothing is changed. From now: the planner's next decisions. From the past: the jobs on record since then are simulated twice, as they came and with your change."),
      h("form", { onsubmit: (event) => this.ask(event) },
        h("div", { class: "row" }, h("label", null, "from ", h("select", { name: "since", onchange: (event) => this.from(event) }, SINCE.map(([value, name]) => h("option", { value }, name))))),
        h("div", { class: "row" }, "cap queue ", queues("queue"), number("capability", "at"), unit(overview.resource)),
        h("div", { class: "row" }, number("nodes", "add nodes, each like the largest:")),
        h("div", { class: "row" }, "a job arrives in ", queues("into"), number("min", "min workers", 1), number("max", "max", 1), number("each", `${unit(overview.resource)} each`, 1), this.since ? number("hours", "for hours, at its minimum:", 1) : null),
        h("div", { class: "row" }, h("button", null, "Ask the planner"))),
      h("section", { "aria-live": "polite" }, this.working ? h("p", { class: "soft" }, "Working it out…")
        : this.trouble ? h("p", { class: "bad" }, this.trouble)
        : !this.found ? null
        : "observed" in this.found ? replayed(this.found, unit(overview.resource)) : answer(this.found)),
    ];
  }

  from(event) {
    this.since = event.currentTarget.value;
    this.draw();
  }
}

function answer(found) {
  const link = (job) => h("a", { href: jobLink(job) }, job);
  const list = (title, rows) => (rows.length ? [h("h3", null, title), h("ul", null, rows.map((row) => h("li", null, row)))] : null);
  const nothing = !found.newcomer && ["decisions", "undone", "start", "blocked"].every((name) => !found[name].length);
  return [
    found.newcomer ? h("p", { class: found.newcomer.starts ? "" : "bad" }, found.newcomer.starts
      ? `The job would start with ${found.newcomer.size} workers${found.newcomer.afterOthersLeft ? ", once those below have left" : ""}.`
      : `The job could not start: ${found.newcomer.why}`) : null,
    nothing ? h("p", null, "Nothing would be decided otherwise.") : null,
    list("Sizes that would change", found.decisions.map((one) => [link(one.job), ` ${one.from} → ${one.to}: ${one.message}`])),
    found.more ? h("p", { class: "soft" }, `and ${found.more} more`) : null,
    list("Changes that would not be made", found.undone.map(link)),
    list("Jobs that could start", found.start.map((job) => job)),
    list("Jobs that could not start", found.blocked.map((one) => [link(one.job), `: ${one.why}`])),
  ];
}

/** What the same days would have brought. */
function replayed(found, resource) {
  const hoursOf = `${resource.replace(/s$/, "")}-hours`;
  const hours = (seconds) => (seconds === null || seconds === undefined ? "—" : duration(seconds * 1000));
  const row = (name, one) => h("tr", null,
    h("td", { class: "name" }, name),
    h("td", { class: "number", "data-label": "jobs" }, one.jobs[0] === one.jobs[1] ? one.jobs[0] : one.jobs.join(" → ")),
    h("td", { class: "number", "data-label": "mean wait" }, one.wait.map(hours).join(" → ")),
    h("td", { class: "number", "data-label": "mean time to the end" }, one.end.map(hours).join(" → ")),
    h("td", { class: "number", "data-label": `${hoursOf} held` }, one.held.map(amount).join(" → ")));
  const idle = found.all.idleWanted;
  return [
    h("p", null, `${found.jobs} jobs since ${clock(found.begin, false)}, on ${found.capacity[0] === found.capacity[1] ? found.capacity[0] : found.capacity.join(" → ")} ${resource}, with today's queues and policies. As it came → with your change:`),
    newcomer(found.newcomer),
    h("div", { class: "scroll" }, h("table", { class: "stack" },
      h("thead", null, h("tr", null, ["queue", "jobs", "mean wait", "mean time to the end", `${hoursOf} held`].map((name, i) => h("th", { class: i ? "number" : null }, name)))),
      h("tbody", null, row("all", found.all), found.queues.map((one) => row(one.name, one))))),
    h("p", null, `${hoursOf} idle though wanted, until all have ended: ${amount(idle[0])} → ${amount(idle[1])}`),
    found.never.length ? [h("h3", null, "Jobs that would never have started"), h("ul", null, found.never.map((job) => h("li", null, job)))] : null,
    found.moved.length ? [h("h3", null, "Starts that would move most"), h("ul", null, found.moved.map((one) => h("li", null, h("a", { href: jobLink(one.job) }, one.job), ` waits ${hours(one.wait[0])} → ${hours(one.wait[1])}`)))] : null,
    h("p", { class: "soft" }, `How far to trust it: these jobs waited ${hours(found.recordedWait)} in truth, and ${hours(found.all.wait[0])} in the simulation of what was. A page looked for ${Math.round(found.observed * 100)} % of that time. `
      + `${found.leftOut ? `Of ${found.leftOut} more jobs it isn't known how long they take: they never started, or need no ${resource}.` : ""}`),
  ];
}

function newcomer(job) {
  if (!job) return null;
  return h("p", { class: job.starts ? "" : "bad" }, job.starts
    ? `The job would have started after ${duration(job.wait * 1000)} and ended after ${duration(job.end * 1000)}.`
    : "The job could not have started: its minimum is beyond the cap or the cluster.");
}
