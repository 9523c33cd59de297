/** The part of a view that has a chart: how much time it shows, what was chosen in it, and its data. */

import { h } from "./element.js";
import { chart, columns } from "./chart.js";
import { changes } from "./changes.js";
import { get } from "./connection.js";
import { clock, unit } from "./format.js";

const SPANS = [[600, "10 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"], [604800, "7 d"]];

/** A chart of one queue, or of all where `queue` is null; `draw` is called when it has changed. */
export class Timeline {
  constructor(queue, draw) {
    this.queue = queue;
    this.draw = draw;
    this.seconds = Number(sessionStorage.getItem("span")) || 600;
    this.part = null;
    this.at = null;
    // Until the first answer.
    const now = Date.now();
    this.loading = true;
    this.buckets = { bucketMs: 2000, buckets: [] };
    this.changes = { changes: [], counts: [], parts: 120, begin: now - this.seconds * 1000, end: now };
    this.chosen = null;
  }

  /** Asks for what is new. */
  async refresh() {
    const seconds = this.seconds;
    // Parts keep their places from one look to the next.
    const length = (seconds * 1000) / this.changes.parts;
    const end = Math.ceil((Date.now() + 1) / length) * length;
    const asked = { seconds, queue: this.queue, end: Math.round(end) };
    const [buckets, found] = await Promise.all([get("timeline", { seconds }), get("changes", asked)]);
    if (seconds !== this.seconds) return;
    if (this.part !== null) this.part -= Math.round((found.end - this.changes.end) / length);
    if (this.part !== null && this.part < 0) this.part = this.chosen = null;
    this.loading = false;
    this.buckets = buckets;
    this.changes = found;
    this.draw();
  }

  async choose(part) {
    if (part === this.part) {
      this.part = this.chosen = null;
      this.draw();
      return;
    }
    this.part = part;
    this.chosen = null;
    const asked = { seconds: this.seconds, queue: this.queue, end: this.changes.end, part };
    const { changes: list } = await get("changes", asked);
    if (this.part !== null) this.chosen = list;
    this.draw();
  }

  show(seconds) {
    this.seconds = seconds;
    sessionStorage.setItem("span", String(seconds));
    this.part = this.chosen = null;
    this.refresh();
    this.draw();
  }

  /** Returns it as it is now. */
  view(overview, width, chosen = null) {
    const { begin, end, parts, counts } = this.changes;
    const found = columns(this.buckets.buckets, this.buckets.bucketMs, begin, end);
    const length = (end - begin) / parts;
    return [
      h("div", { class: "row", role: "group", "aria-label": "How much time is shown" }, SPANS.map(([seconds, label]) =>
        h("button", { type: "button", "aria-pressed": seconds === this.seconds ? "true" : "false", onclick: () => this.show(seconds) }, label))),
      chart({
        columns: found, begin, end, parts, counts, part: this.part, at: this.at,
        chosen, unit: unit(overview.resource), width, loading: this.loading,
      }, { cursor: (time) => { this.at = time; this.draw(); }, part: (part) => this.choose(part) }),
      h("section", { "aria-live": "polite" },
        h("h3", null, this.part === null ? "Latest changes" : `Changes from ${clock(begin + this.part * length)} to ${clock(begin + (this.part + 1) * length)}`,
          " ", this.part === null ? null : h("button", { type: "button", onclick: () => this.choose(this.part) }, "Show the latest")),
        this.loading ? h("p", null, "Loading…") : changes(this.part === null ? this.changes.changes.slice(0, 12) : this.chosen ?? [])),
    ];
  }
}
