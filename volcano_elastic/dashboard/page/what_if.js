/** A form: what would be decided next if a queue were capped, nodes were added, or a job arrived. */

import { jobLink } from "./changes.js";
import { get } from "./connection.js";
import { h } from "./element.js";
import { unit } from "./format.js";

export class WhatIfView {
  constructor(draw) {
    this.draw = draw;
    this.found = null;
    this.trouble = null;
  }

  async ask(event) {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    const asked = { nodes: given.get("nodes") };
    if (given.get("capability") !== "") Object.assign(asked, { queue: given.get("queue"), capability: given.get("capability") });
    if (given.get("min") !== "") Object.assign(asked, { into: given.get("into"), min: given.get("min"), max: given.get("max") || given.get("min"), each: given.get("each") });
    try {
      this.found = await get("what-if", asked);
      this.trouble = null;
    } catch (error) {
      if (error.status !== 400) throw error;
      this.trouble = error.message;
    }
    this.draw();
  }

  view(overview) {
    const queues = (name) => h("select", { name, "aria-label": "queue" }, overview.queues.filter((one) => one.name).map((one) => h("option", { value: one.name }, one.name)));
    const number = (name, label, least = 0) => h("label", null, `${label} `, h("input", { name, type: "number", min: least, max: 1000000, inputmode: "numeric" }));
    return [
      h("h2", null, "What if"),
      h("p", { class: "soft" }, "The planner's next decisions, as of now; nothing is changed. Fill in what would be otherwise."),
      h("form", { onsubmit: (event) => this.ask(event) },
        h("div", { class: "row" }, "cap queue ", queues("queue"), number("capability", "at"), unit(overview.resource)),
        h("div", { class: "row" }, number("nodes", "add nodes, each like the largest:")),
        h("div", { class: "row" }, "a job arrives in ", queues("into"), number("min", "min workers", 1), number("max", "max", 1), number("each", `${unit(overview.resource)} each`, 1)),
        h("div", { class: "row" }, h("button", null, "Ask the planner"))),
      h("section", { "aria-live": "polite" }, this.trouble ? h("p", { class: "bad" }, this.trouble) : this.found ? answer(this.found) : null),
    ];
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
