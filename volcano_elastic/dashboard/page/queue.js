/** One queue: its GPUs beside what it is entitled to, and its jobs with what they wait for. */

import { h } from "./element.js";
import { amount } from "./format.js";
import { JobList } from "./jobs.js";
import { notes } from "./queues.js";
import { Timeline } from "./timeline.js";

export class QueueView {
  constructor(name, draw) {
    this.name = name;
    this.timeline = new Timeline(name, draw);
    this.list = new JobList({ queue: name }, draw);
  }

  refresh() {
    return Promise.all([this.timeline.refresh(), this.list.refresh()]);
  }

  view(overview, width) {
    const row = overview.queues.find((one) => one.name === this.name);
    return [
      h("h2", null, this.name ? `Queue ${this.name}` : "In no queue"),
      row ? facts(row) : null,
      this.timeline.view(overview, width, family(overview.queues, this.name)),
      h("h2", null, "Its jobs"),
      this.list.view(),
    ];
  }
}

/** Returns the names of the queue and of all below it. */
function family(queues, name) {
  const at = queues.findIndex((one) => one.name === name);
  if (at < 0) return [name];
  const below = queues.slice(at + 1);
  const end = below.findIndex((one) => one.depth <= queues[at].depth);
  return [name, ...below.slice(0, end < 0 ? undefined : end).map((one) => one.name)];
}

function facts(row) {
  const said = [
    ["parent", row.parent],
    ["held", `${amount(row.held)}, running ${amount(row.running)}`],
    ["deserved", amount(row.deserved)], ["guaranteed", amount(row.guarantee)], ["at most", amount(row.capability)], ["weight", row.weight],
    ["may still take", amount(row.free)], ["borrowed", amount(row.borrowed)],
    ["wanted", amount(row.wanted)], ["idle though wanted", amount(row.idleWanted)],
    ["policy", row.policy ? `${row.policy}, mode ${row.mode}` : null],
  ];
  return [notes(row), h("dl", null, said.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]))];
}
