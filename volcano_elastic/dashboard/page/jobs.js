/** Jobs: chosen by name and state, ordered, a page at a time. */

import { jobLink } from "./changes.js";
import { get } from "./connection.js";
import { h } from "./element.js";
import { ago, amount } from "./format.js";
import { queueLink } from "./queues.js";

const STATES = ["", "Waiting", "Growing", "Shrinking", "Running"];
const SORTS = [["waiting", "who waits first"], ["wanted", "what they lack"], ["held", "what they hold"], ["newest", "newest first"], ["name", "name"]];

/** The list itself, which a queue's view has too. */
export class JobList {
  constructor(choice, draw) {
    this.choice = { sort: "waiting", state: "", text: "", page: 1, ...choice };
    this.draw = draw;
    this.found = null;
  }

  async refresh() {
    const asked = this.choice;
    const found = await get("jobs", asked);
    if (asked !== this.choice) return;
    this.found = found;
    this.draw();
  }

  choose(change) {
    this.choice = { ...this.choice, page: 1, ...change };
    this.refresh();
  }

  view() {
    const { choice, found } = this;
    const select = (name, label, options) => h("label", null, `${label} `,
      h("select", { name, onchange: (event) => this.choose({ [name]: event.target.value }) },
        options.map(([value, text]) => h("option", { value, selected: value === choice[name] }, text))));
    return [
      h("div", { class: "row" },
        h("label", null, "name has ", h("input", { name: "text", type: "search", maxlength: 100, oninput: (event) => this.choose({ text: event.target.value }) })),
        select("state", "state", STATES.map((name) => [name, name || "any"])), select("sort", "order", SORTS)),
      found ? [table(found.rows, choice.queue === undefined), this.pages()] : h("p", null, "Loading…"),
    ];
  }

  pages() {
    const { total, page, pages } = this.found;
    const button = (to, label) => h("button", { type: "button", disabled: to < 1 || to > pages, onclick: () => this.choose({ page: to }) }, label);
    return h("div", { class: "row" }, `${total} ${total === 1 ? "job" : "jobs"}`, pages > 1 ? [button(page - 1, "Previous"), `page ${page} of ${pages}`, button(page + 1, "Next")] : null);
  }
}

export class JobsView {
  constructor(draw) {
    this.list = new JobList({}, draw);
  }

  refresh() {
    return this.list.refresh();
  }

  view() {
    return [h("h2", null, "Jobs"), this.list.view()];
  }
}

function table(rows, withQueue) {
  if (!rows.length) return h("p", { class: "soft" }, "There is no such job.");
  const heads = ["job", withQueue && "queue", "state", "workers", "min to max", "holds", "lacks", "age", "why not more"].filter(Boolean);
  return h("div", { class: "scroll" }, h("table", { class: "stack" },
    h("thead", null, h("tr", null, heads.map((name) => h("th", null, name)))),
    h("tbody", null, rows.map((one) => h("tr", null,
      h("td", { class: "name" }, one.gang ? one.job : h("a", { href: jobLink(one.job) }, one.job)),
      withQueue ? h("td", null, queueLink(one.queue)) : null,
      h("td", { class: one.state === "Waiting" ? "bad" : "" }, one.state),
      h("td", { class: "short" }, `${one.running} of ${one.size} run`), h("td", { class: "short", "data-label": "min to max" }, one.min === one.max ? one.min : `${one.min} to ${one.max}`),
      h("td", { "data-label": "holds" }, amount(one.held)), h("td", { "data-label": "lacks" }, amount(one.wanted)), h("td", { class: "short", "data-label": "age" }, ago(one.created).replace(" ago", "")),
      h("td", { class: "why" }, one.why))))));
}
