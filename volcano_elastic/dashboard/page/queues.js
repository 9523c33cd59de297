/** All queues: GPUs over time, the tree, who waits, and nodes that are out. */

import { jobLink } from "./changes.js";
import { h, s } from "./element.js";
import { ago, amount, unit } from "./format.js";
import { Timeline } from "./timeline.js";

export class QueuesView {
  constructor(draw) {
    this.timeline = new Timeline(null, draw);
  }

  refresh() {
    return this.timeline.refresh();
  }

  view(overview, width) {
    return [
      h("h2", null, `${unit(overview.resource)} by queue`),
      tiles(overview),
      this.timeline.view(overview, width),
      h("h2", null, "Queues"),
      tree(overview),
      h("h2", null, "Who waits"),
      waiting(overview),
      overview.out.length ? [h("h2", null, "Nodes that are out"), out(overview)] : null,
    ];
  }
}

function tiles(overview) {
  const of = unit(overview.resource);
  const tile = (value, label, warn = false) => h("div", { class: warn ? "tile warn" : "tile" }, h("b", null, value), label);
  return h("div", { class: "tiles" },
    tile(amount(overview.capacity), of),
    tile(amount(overview.held), "held"),
    tile(amount(overview.running), "running"),
    tile(amount(overview.idle), "idle"),
    tile(amount(overview.idleWanted), "idle though wanted", overview.idleWanted > 0),
    tile(overview.waitingJobs, `of ${overview.jobs} jobs wait`, overview.waitingJobs > 0),
    tile(overview.nodesOut, `of ${overview.nodes} nodes are out`, overview.nodesOut > 0));
}

/** Returns the link to a queue's view. */
export function queueLink(name) {
  return h("a", { href: `#/queue/${encodeURIComponent(name)}` }, name || "in no queue");
}

/** Numbers of a queue: heading, field of the overview, and `wide` where a narrow screen leaves it out. */
const COLUMNS = [
  ["held", "held"], ["running", "running", "wide"], ["deserved", "deserved"], ["guaranteed", "guarantee"],
  ["borrowed", "borrowed", "wide"], ["may still take", "free"], ["wanted", "wanted"],
  ["idle though wanted", "idleWanted"], ["jobs", "jobs"], ["waiting", "waiting"],
];

function tree(overview) {
  const most = Math.max(1, ...overview.queues.map((one) => Math.max(one.held, one.deserved ?? 0, one.guarantee ?? 0)));
  const number = (one, [label, field, style = ""]) => h("td",
    { class: `number ${field === "idleWanted" && one[field] ? "bad" : style}`, "data-label": label }, amount(one[field]));
  return h("div", { class: "scroll" }, h("table", { class: "stack" },
    h("thead", null, h("tr", null, h("th", null, "queue"), h("th", null, "held, deserved ┃, guaranteed ┊"),
      COLUMNS.map(([label, , style = ""]) => h("th", { class: `number ${style}` }, label)))),
    h("tbody", null, overview.queues.map((one) => h("tr", null,
      h("td", { class: `name d${Math.min(4, one.depth)}` }, queueLink(one.name), notes(one)),
      h("td", null, bar(one, most)),
      COLUMNS.map((column) => number(one, column)))))),
  overview.moreQueues ? h("p", { class: "soft" }, `and ${overview.moreQueues} more`) : null);
}

/** Returns what is unusual about a queue, in words. */
export function notes(one) {
  const said = [];
  if (one.open === false) said.push("closed");
  if (one.missing) said.push("does not exist");
  if (one.mode && one.mode !== "Active") said.push(`mode ${one.mode}`);
  if (one.problem) said.push(one.problem);
  return said.length ? h("div", { class: "bad" }, said.join("; ")) : null;
}

function bar(one, most) {
  const x = (value) => 1 + (value / most) * 198;
  const { held } = one;
  return s("svg", { class: "bar", viewBox: "0 0 200 18", preserveAspectRatio: "none", role: "img",
    "aria-label": `holds ${amount(held)}, deserves ${amount(one.deserved) || "not stated"}, guaranteed ${amount(one.guarantee) || "not stated"}` },
  s("rect", { class: "back", x: 0, y: 3, width: 200, height: 12 }),
  s("rect", { class: "q0", x: 1, y: 5, width: x(held) - 1, height: 8 }),
  one.idleWanted ? s("rect", { class: "stripe-back", x: x(held), y: 5, width: Math.max(2, x(one.idleWanted) - 1), height: 8 }) : null,
  one.deserved === null || one.deserved === undefined ? null : s("line", { class: "mark", x1: x(one.deserved), x2: x(one.deserved), y1: 1, y2: 17 }),
  one.guarantee === null || one.guarantee === undefined ? null : s("line", { class: "mark dotted", x1: x(one.guarantee), x2: x(one.guarantee), y1: 1, y2: 17 }));
}

function waiting(overview) {
  if (!overview.waiting.length) return h("p", { class: "soft" }, "Nobody waits for a minimum.");
  return [
    h("div", { class: "scroll" }, h("table", { class: "stack" },
      h("thead", null, h("tr", null, ["job", "queue", "since", "lacks", "why"].map((name) => h("th", null, name)))),
      h("tbody", null, overview.waiting.map((one) => h("tr", null,
        h("td", { class: "name" }, one.gang ? one.job : h("a", { href: jobLink(one.job) }, one.job)), h("td", null, queueLink(one.queue)),
        h("td", { class: "short" }, ago(one.created)), h("td", { "data-label": "lacks" }, amount(one.wanted)), h("td", { class: "why" }, one.why)))))),
    overview.waitingJobs > overview.waiting.length
      ? h("p", null, h("a", { href: "#/jobs" }, `All ${overview.waitingJobs} that wait`)) : null,
  ];
}

function out(overview) {
  return [
    h("ul", null, overview.out.map((one) => h("li", null, h("b", null, one.name), `: ${one.out.join("; ")}; ${amount(one.free)} of ${amount(one.offered)} free`))),
    overview.nodesOut > overview.out.length ? h("p", null, h("a", { href: "#/nodes" }, `All ${overview.nodesOut}`)) : null,
  ];
}
