/** Nodes: what is free there, and what keeps pods out. */

import { get } from "./connection.js";
import { h } from "./element.js";
import { amount } from "./format.js";

export class NodesView {
  constructor(draw) {
    this.draw = draw;
    this.choice = { text: "", page: 1 };
    this.found = null;
  }

  async refresh() {
    const asked = this.choice;
    const found = await get("nodes", asked);
    if (asked !== this.choice) return;
    this.found = found;
    this.draw();
  }

  choose(change) {
    this.choice = { ...this.choice, page: 1, ...change };
    this.refresh();
  }

  view() {
    const head = [h("h2", null, "Nodes"), h("div", { class: "row" },
      h("label", null, "name has ", h("input", { name: "text", type: "search", maxlength: 100, oninput: (event) => this.choose({ text: event.target.value }) })))];
    if (!this.found) return [...head, h("p", null, "Loading…")];
    const { rows, total, page, pages } = this.found;
    const button = (to, label) => h("button", { type: "button", disabled: to < 1 || to > pages, onclick: () => this.choose({ page: to }) }, label);
    return [...head,
      h("div", { class: "scroll" }, h("table", { class: "stack" },
        h("thead", null, h("tr", null, ["node", "offers", "held", "free", "what keeps pods out"].map((name) => h("th", null, name)))),
        h("tbody", null, rows.map((one) => h("tr", null,
          h("td", { class: "name" }, one.name), h("td", { "data-label": "offers" }, amount(one.offered)), h("td", { "data-label": "held" }, amount(one.held)), h("td", { "data-label": "free" }, amount(one.free)),
          h("td", { class: "why" }, one.out.map((why) => h("div", { class: one.takesPods ? "" : "bad" }, why)),
            one.avoidedBy ? h("div", { class: "bad" }, `${one.avoidedBy} jobs keep away: its hardware failed them`) : null)))))),
      h("div", { class: "row" }, `${total} ${total === 1 ? "node" : "nodes"}`, pages > 1 ? [button(page - 1, "Previous"), `page ${page} of ${pages}`, button(page + 1, "Next")] : null)];
  }
}
