/** One job: its size over time and why, rounds and pauses, speeds, failures. */

import { changes } from "./changes.js";
import { get } from "./connection.js";
import { h, s } from "./element.js";
import { ago, amount, clock } from "./format.js";
import { queueLink } from "./queues.js";

export class JobView {
  constructor(key, draw) {
    this.key = key;
    this.draw = draw;
    this.found = null;
    this.missing = null;
  }

  async refresh() {
    try {
      this.found = await get("job", { job: this.key });
    } catch (error) {
      if (error.status !== 404) throw error;
      this.missing = error.message;
    }
    this.draw();
  }

  view(overview, width) {
    const { found } = this;
    if (this.missing && !found) return [h("h2", null, this.key), h("p", null, this.missing)];
    if (!found) return h("p", null, "Loading…");
    const told = found.description;
    return [
      h("h2", null, `Job ${this.key}`),
      now(found),
      h("h3", null, "Size over time"), sizes(found, width),
      changes(found.changes, { of: false }),
      found.goodput ? [h("h3", null, "What its time was used for"), goodput(found.goodput, width)] : null,
      h("h3", null, "Speed by size"), speeds(found.curve, width),
      told ? [h("h3", null, "Training"), training(told), tables(told), rounds(told), failures(told), pods(told)] : null,
      h("h3", null, "Events"), events(found.events),
    ];
  }
}

function now(found) {
  const { row, stay, description } = found;
  const elastic = description?.elastic ?? {};
  const said = [
    ["state", row ? `${row.state}${row.gang ? "" : `, ${row.running} of ${row.size} workers run, min ${row.min}, max ${row.max}`}`
      : found.deleted ? "deleted" : description?.condition ?? "not active"],
    ["queue", row ? queueLink(row.queue) : null],
    ["cannot start", found.blocked],
    ["why", row && !found.blocked && (row.state === "Waiting" || !stay) ? row.why : null],
    ["why not more", stay?.whyNotMore], ["why not less", stay?.whyNotLess],
    ["gives way for it", found.giveWay.map((one) => `${one.job} (${one.from} → ${one.to})`).join("; ")],
    ["holds", row ? `${amount(row.held)}, lacks ${amount(row.wanted)}` : null],
    ["a resize pauses it for", found.pauseSeconds === null ? null : `${amount(found.pauseSeconds)} s`],
    ["GPU hours", amount(found.gpuHours)], ["restarts", elastic.restarts || null],
    ["keeps away from", (elastic.excludedNodes ?? []).map((one) => `${one.node} until ${clock(one.until)}: ${one.reason}`).join("; ")],
  ];
  return h("dl", null, said.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

/** Returns a step line of the sizes that its changes tell. */
function sizes(found, width) {
  const points = found.changes.toReversed().filter((one) => one.to !== null && ["Resized", "Sized"].includes(one.kind))
    .map((one) => [Date.parse(one.time), one.to]);
  const first = found.changes.at(-1);
  if (!points.length || !first) return h("p", { class: "soft" }, "No change of its size has been seen.");
  const ended = found.changes.find((one) => ["Succeeded", "Failed", "Deleted"].includes(one.kind));
  const begin = Date.parse(first.time), end = Math.max(ended ? Date.parse(ended.time) : Date.now(), begin + 1000);
  const height = 120, left = 30;
  const most = Math.max(found.row?.max ?? 0, ...points.map(([, size]) => size));
  const x = (time) => left + ((Math.min(time, end) - begin) / (end - begin)) * (width - left - 4);
  const y = (size) => 6 + (1 - size / most) * (height - 28);
  const before = found.changes.toReversed().find((one) => one.kind === "Resized")?.from ?? null;
  if (before !== null && points[0][0] > begin) points.unshift([begin, before]);
  const steps = points.map(([time, size]) => `H${x(time)}V${y(size)}`).join("");
  const d = `M${x(points[0][0])} ${y(points[0][1])}${steps}H${x(end)}`;
  const label = (value) => s("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, value);
  return h("div", { class: "chart" }, s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `sizes: ${points.map(([, size]) => size).join(", ")}` },
    [0, most].map((value) => s("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) })), label(0), label(most),
    s("text", { x: left, y: height - 4 }, clock(begin)), s("text", { x: width - 4, y: height - 4, "text-anchor": "end" }, ended ? clock(end) : "now"),
    s("path", { class: "capacity", d })));
}

const USES = ["productive_training", "wasted_progress_from_disruption", "elastic_reinitialization", "program_startup",
  "unproductive_checkpoint_save", "data_loading_sync", "node_check", "elastic_wait", "pod_startup"];

/** Returns a bar of all its processes' time, and what each part of it is. */
function goodput({ share, uses, granted }, width) {
  const whole = uses.reduce((sum, one) => sum + one.milliseconds, 0);
  const part = (one) => `${Math.round((1000 * one.milliseconds) / whole) / 10} %`;
  const style = (one) => (one.use === "hang" ? "stripe-back" : USES.indexOf(one.use) < 7 ? `q${Math.max(0, USES.indexOf(one.use))}` : "others");
  let x = 0;
  const box = { x: 0, y: 0, width: 14, height: 14 };
  return [
    h("p", null, `Goodput ${part({ milliseconds: share * whole })} of ${amount(whole / 3.6e6)} process hours`,
      granted === null ? "" : `; ${Math.round(granted * 100)} % of the workers that max allows were there`),
    h("div", { class: "chart" }, s("svg", { viewBox: `0 0 ${width} 18`, height: 18, role: "img", "aria-label": uses.map((one) => `${one.words} ${part(one)}`).join(", ") },
      uses.map((one) => {
        const from = x;
        x += (one.milliseconds / whole) * width;
        return s("rect", { class: style(one), x: from, y: 0, width: x - from, height: 18 }, s("title", null, `${one.words}: ${part(one)}`));
      })),
    h("ul", { class: "legend" }, uses.map((one) => h("li", null, s("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, s("rect", { ...box, class: style(one) })), `${one.words} ${part(one)}`)))),
  ];
}

function speeds(curve, width) {
  if (curve.length < 2) return h("p", { class: "soft" }, "It has one size only.");
  const measured = curve.filter((one) => one.measured !== null);
  const height = 170, left = 52, most = Math.max(...curve.map((one) => Math.max(one.modelled, one.measured ?? 0))), last = curve.at(-1).size;
  const wide = Math.min(width, 640);
  const x = (size) => left + (size / last) * (wide - left - 8), y = (speed) => 8 + (1 - speed / most) * (height - 36);
  const unit = measured.length ? "samples a second" : "times one worker's speed (nothing is measured yet)";
  return [
    h("div", { class: "chart" }, s("svg", { viewBox: `0 0 ${wide} ${height}`, height, style: null, role: "img", "aria-label": "measured and modelled speed by number of workers" },
      [0, most].map((value) => [s("line", { class: "grid", x1: left, x2: wide, y1: y(value), y2: y(value) }), s("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, amount(value))]),
      s("text", { x: wide - 8, y: height - 6, "text-anchor": "end" }, `${last} workers`), s("text", { x: left, y: height - 6 }, "0"),
      s("path", { class: "deserved", d: `M${curve.map((one) => `${x(one.size)} ${y(one.modelled)}`).join("L")}` }),
      measured.map((one) => s("path", { class: "q1", transform: `translate(${x(one.size)} ${y(one.measured)})`, d: "M-5 0L0 -5L5 0L0 5Z" },
        s("title", null, `${one.size} workers: ${amount(one.measured)}`))))),
    h("p", { class: "soft" }, `Dashed: as the planner reckons; diamonds: measured at ${measured.map((one) => `${one.size} (${amount(one.measured)})`).join(", ") || "no size"}; in ${unit}.`),
  ];
}

function training(told) {
  const one = told.coordinator;
  if (!one) return h("p", { class: "soft" }, `Not known: ${told.coordinatorSilent}`);
  return h("p", null, `${one.phase}, round ${one.round} of ${one.world} nodes, step ${one.step} (${amount(one.stepsPerSecond)} a second), committed: ${one.committedStep}`,
    one.progress ? `; ${Math.floor(100 * one.progress.samples / one.progress.total)} % of ${amount(one.progress.total)} samples` : null,
    Object.keys(one.metrics ?? {}).length ? `; ${Object.entries(one.metrics).sort().map(([name, value]) => `${name} ${value}`).join(", ")}` : null,
    one.verdict ? h("span", { class: "bad" }, `; given up: ${one.verdict}`) : null);
}

/** Returns what workers hold of embedding tables. */
function tables(told) {
  const held = told.coordinator?.tables ?? [];
  if (!held.length) return null;
  return [
    h("h3", null, "Embedding tables"),
    h("div", { class: "scroll" }, h("table", { class: "stack" },
      h("thead", null, h("tr", null, ["table", "rows", "MB", "admitted", "evicted", "updates a second", "skew", "hottest ids"].map((name) => h("th", null, name)))),
      h("tbody", null, held.map((one) => h("tr", null,
        h("td", null, one.name), h("td", { "data-label": "rows" }, one.rows.toLocaleString("en")), h("td", { "data-label": "MB" }, amount(one.bytes / 1e6)),
        h("td", { "data-label": "admitted" }, one.admitted.toLocaleString("en")), h("td", { "data-label": "evicted" }, one.evicted.toLocaleString("en")),
        h("td", { "data-label": "updates a second" }, amount(one.updatedPerSecond)), h("td", { "data-label": "skew" }, `${amount(one.skew)} on ${one.holders}`),
        h("td", { class: "why" }, one.hot.slice(0, 3).map((hot) => `${hot.id} ${amount(100 * hot.share)} %`).join(", "))))))),
    h("p", { class: "soft" }, "Skew: rows that the busiest of so many workers updates in a second, in means of all. Ids: with their part of the table's samples."),
  ];
}

function rounds(told) {
  if (!told.rounds.length) return null;
  return h("div", { class: "scroll" }, h("table", { class: "stack" },
    h("thead", null, h("tr", null, ["round", "since", "nodes", "pause", "steps", "because"].map((name) => h("th", null, name)))),
    h("tbody", null, told.rounds.toReversed().map((one) => h("tr", null,
      h("td", { "data-label": "round" }, one.round), h("td", null, one.time ? clock(one.time * 1000) : ""), h("td", { "data-label": "nodes" }, one.world),
      h("td", { "data-label": "pause" }, one.pauseSeconds === null ? "" : `${one.pauseSeconds.toFixed(3)} s`),
      h("td", { "data-label": "steps" }, one.firstStep === null ? "" : `${one.firstStep} to ${one.lastStep}`), h("td", { class: "why" }, one.reason))))));
}

function failures(told) {
  return [
    h("h3", null, "Failures of all ranks, first one first"),
    told.failures.length ? told.failures.map((one) => h("details", null,
      h("summary", null, `${clock(one.time * 1000)} round ${one.round}, rank ${one.rank} (worker ${one.worker}): ${one.signal ?? `exit code ${one.exitCode}`}: ${one.message}`),
      one.stack ? h("pre", null, one.stack) : null)) : h("p", { class: "soft" }, "None is known."),
    told.hangs.map((one) => h("details", null,
      h("summary", { class: "bad" }, `${clock(one.time * 1000)} round ${one.round}: no step for ${Math.round(one.seconds)} s: ${one.words}; ${one.broken ? "it was ended" : "it goes on"}`),
      one.stacks.map((group) => [h("p", null, `ranks ${group.ranks.join(", ")}`), h("pre", null, group.stack)]))),
    told.excluded.length ? h("p", { class: "bad" }, `In no further round: ${told.excluded.map((one) => `${one.node}: ${one.reason}`).join("; ")}`) : null,
  ];
}

function pods(told) {
  return [
    h("h3", null, "Pods"),
    h("ul", null, told.pods.map((pod) => h("li", null, `${pod.name}: ${pod.phase}${pod.node ? ` on ${pod.node}` : ""}${pod.restarts ? `, ${pod.restarts} restarts` : ""}`,
      pod.lastWords ? h("pre", null, pod.lastWords) : null))),
    h("p", { class: "soft" }, "Look at: ", told.look.map((command) => h("div", null, h("code", null, command)))),
  ];
}

function events(list) {
  if (!list.length) return h("p", { class: "soft" }, "There are none, or they may not be read.");
  return h("div", { class: "scroll" }, h("table", { class: "stack" }, h("tbody", null, list.map((one) => h("tr", null,
    h("td", { class: "short" }, ago(one.time)), h("td", { class: one.type === "Warning" ? "bad" : "" }, one.reason), h("td", { class: "why" }, one.message))))));
}
