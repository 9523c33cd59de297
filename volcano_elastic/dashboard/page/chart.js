/** The picture of GPUs over time: stacked by queue, or one queue beside what it is entitled to. */

import { s, h } from "./element.js";
import { amount, clock } from "./format.js";

const LEFT = 44, RIGHT = 8, TOP = 8, AXIS = 22, LANE = 34;
const COLUMNS = 500;
const PALETTE = 7;
const [HELD, RUNNING, WANTED, IDLE_WANTED, DESERVED, GUARANTEE] = [0, 1, 2, 3, 4, 5];

/** Returns the buckets joined so that at most `COLUMNS` are left; each with begin and end. */
export function columns(buckets, length, begin, end) {
  const step = Math.max(1, Math.ceil((end - begin) / length / COLUMNS)) * length;
  const found = [];
  for (const bucket of buckets) {
    const at = bucket.t - (bucket.t % step);
    const last = found.at(-1);
    if (last && last.at === at) last.parts.push(bucket);
    else found.push({ at, parts: [bucket] });
  }
  return found
    .map(({ at, parts }) => ({ ...joined(parts), begin: Math.max(at, begin), end: Math.min(at + step, end) }))
    .filter((one) => one.end > one.begin);
}

function joined(parts) {
  if (parts.length === 1) return parts[0];
  const whole = parts.reduce((sum, one) => sum + one.ms, 0);
  const mean = (value) => parts.reduce((sum, one) => sum + value(one) * one.ms, 0) / whole;
  const names = new Set(parts.flatMap((one) => Object.keys(one.queues)));
  const queues = {};
  for (const name of names) {
    const latest = parts.findLast((one) => one.queues[name]).queues[name];
    queues[name] = [HELD, RUNNING, WANTED, IDLE_WANTED].map((i) => mean((one) => one.queues[name]?.[i] ?? 0));
    queues[name].push(latest[DESERVED], latest[GUARANTEE]);
  }
  const cluster = {};
  for (const key of ["capacity", "idle", "keptOut", "idleWanted"]) cluster[key] = mean((one) => one[key]);
  return { ...cluster, queues };
}

/** Returns the queues by what they held in all, the largest with a colour each, the rest together. */
export function coloured(found, chosen) {
  const held = new Map();
  for (const column of found) {
    for (const [name, values] of Object.entries(column.queues)) {
      held.set(name, (held.get(name) ?? 0) + values[HELD] * (column.end - column.begin));
    }
  }
  if (chosen !== null) return [{ names: chosen, label: chosen[0], style: "q0" }];
  const largest = [...held].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const shown = largest.slice(0, PALETTE).sort();
  const groups = shown.map((name, i) => ({ names: [name], label: name || "in no queue", style: `q${i}` }));
  const rest = largest.slice(PALETTE);
  if (rest.length) groups.push({ names: rest, label: `${rest.length} other queues`, style: "others" });
  return groups;
}

/** Returns the chart.
 *
 * `view`: {columns, begin, end, chosen: a queue and those below it, or null, unit, width, at: time of the cursor or null,
 * counts: [part, kind, direction, count], parts, part: the chosen one or null}
 * `act`: {cursor(time or null), part(index)}
 */
export function chart(view, act) {
  const { width, end, chosen } = view;
  const begin = seenFrom(view);
  const height = width < 600 ? 190 : 260;
  const groups = coloured(view.columns, chosen);
  const most = Math.max(1, ...view.columns.map((one) => top(one, chosen))) * (chosen === null ? 1 : 1.08);
  const x = (time) => LEFT + ((time - begin) / (end - begin)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / most) * (height - TOP);
  const layers = chosen === null ? stacked(view.columns, groups, x, y) : single(view.columns, chosen, x, y);
  const picture = s("svg", {
    viewBox: `0 0 ${width} ${height + AXIS + LANE}`, height: height + AXIS + LANE,
    role: "img", "aria-label": summary(view, groups),
  },
  definitions(), axes({ ...view, begin }, x, y, most, height), layers,
  view.at === null ? null : s("line", { class: "cursor", x1: x(view.at), x2: x(view.at), y1: TOP, y2: height }),
  s("rect", {
    x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: height - TOP, fill: "transparent",
    onpointermove: (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      act.cursor(begin + ((event.clientX - box.left) / box.width) * (end - begin));
    },
    onpointerleave: () => act.cursor(null),
  }),
  lane(view, x, height + AXIS, act));
  return h("div", { class: "chart" }, picture, legend(groups, chosen), readout(view, groups));
}

/** Returns when the picture begins: what nobody has seen is not shown at its full length. */
function seenFrom({ begin, end, columns: found, counts, parts }) {
  const part = Math.min(parts, ...counts.map(([one]) => one));
  const first = Math.min(found[0]?.begin ?? end, begin + (part / parts) * (end - begin));
  return Math.max(begin, Math.min(first, end - (end - begin) / 10));
}

function top(column, chosen) {
  if (chosen === null) return column.capacity;
  const entitled = column.queues[chosen[0]] ?? [];
  return Math.max(sum(column, chosen, HELD) + sum(column, chosen, IDLE_WANTED), entitled[DESERVED] ?? 0, entitled[GUARANTEE] ?? 0);
}

function sum(column, names, i) {
  return names.reduce((total, name) => total + (column.queues[name]?.[i] ?? 0), 0);
}

function stacked(found, groups, x, y) {
  const level = found.map(() => 0);
  const layers = groups.map((group) => {
    const low = [...level];
    found.forEach((column, i) => {
      level[i] += sum(column, group.names, HELD);
    });
    return s("path", { class: group.style, d: area(found, low, level, x, y) });
  });
  const idle = level.map((low, i) => low + found[i].idleWanted);
  layers.push(...red(found, level, idle, x, y));
  const capacity = found.map((one) => one.capacity);
  const out = found.map((one) => one.capacity - one.keptOut);
  layers.push(s("path", { fill: "url(#out)", d: area(found, out, capacity, x, y) }));
  layers.push(s("path", { class: "capacity", d: line(found, capacity, x, y) }));
  return layers;
}

function single(found, chosen, x, y) {
  const of = (i) => found.map((one) => sum(one, chosen, i));
  const held = of(HELD), zero = held.map(() => 0);
  const idle = of(IDLE_WANTED).map((value, i) => value + held[i]);
  const stated = (i) => found.map((one) => one.queues[chosen[0]]?.[i] ?? null);
  return [
    s("path", { class: "q0 light", d: area(found, zero, held, x, y) }),
    s("path", { class: "q0", d: area(found, zero, of(RUNNING), x, y) }),
    ...red(found, held, idle, x, y),
    s("path", { class: "deserved", d: line(found, stated(DESERVED), x, y) }),
    s("path", { class: "guarantee", d: line(found, stated(GUARANTEE), x, y) }),
  ];
}

function red(found, low, high, x, y) {
  const d = area(found, low, high, x, y);
  return [s("path", { class: "stripe-back", d }), s("path", { fill: "url(#idle)", d })];
}

/** Returns the path around what is between two steps; gaps in time are gaps in it. */
function area(found, low, high, x, y) {
  return runs(found).map((run) => {
    const up = run.map((i) => `L${px(x(found[i].begin))} ${px(y(high[i]))}L${px(x(found[i].end))} ${px(y(high[i]))}`);
    const down = run.toReversed().map((i) => `L${px(x(found[i].end))} ${px(y(low[i]))}L${px(x(found[i].begin))} ${px(y(low[i]))}`);
    return run.some((i) => high[i] > low[i]) ? `M${(up.join("") + down.join("")).slice(1)}Z` : "";
  }).join("");
}

function line(found, values, x, y) {
  return runs(found).map((run) => {
    const points = run.filter((i) => values[i] !== null)
      .map((i) => `L${px(x(found[i].begin))} ${px(y(values[i]))}L${px(x(found[i].end))} ${px(y(values[i]))}`);
    return points.length ? `M${points.join("").slice(1)}` : "";
  }).join("");
}

function runs(found) {
  const all = [];
  found.forEach((column, i) => {
    if (i > 0 && found[i - 1].end === column.begin) all.at(-1).push(i);
    else all.push([i]);
  });
  return all;
}

const px = (value) => Math.round(value * 10) / 10;

function definitions() {
  return s("defs", null,
    s("pattern", { id: "idle", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("line", { class: "stripe", x1: 0, x2: 0, y1: 0, y2: 8 })),
    s("pattern", { id: "out", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(-45)" },
      s("line", { class: "out-stripe", x1: 0, x2: 0, y1: 0, y2: 8 })));
}

function axes(view, x, y, most, height) {
  const parts = [];
  const step = nice(most / (height < 200 ? 3 : 5));
  for (let value = 0; value <= most + step / 1000; value += step) {
    parts.push(s("line", { class: "grid", x1: LEFT, x2: view.width - RIGHT, y1: px(y(value)), y2: px(y(value)) }));
    parts.push(s("text", { x: LEFT - 6, y: px(y(value)) + 4, "text-anchor": "end" }, amount(value)));
  }
  const ticks = view.width < 600 ? 3 : 6;
  for (let i = 0; i <= ticks; i++) {
    const time = view.begin + ((view.end - view.begin) * i) / ticks;
    const anchor = i === 0 ? "start" : i === ticks ? "end" : "middle";
    parts.push(s("text", { x: px(x(time)), y: height + 15, "text-anchor": anchor }, clock(time, view.end - view.begin < 3600e3)));
  }
  return s("g", { "aria-hidden": "true" }, parts);
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= step) ?? step;
}

/** Returns the changes under the picture, a mark for each part of the time that has any. */
function lane(view, x, y, act) {
  const parts = new Map();
  for (const [part, , direction, count] of view.counts) {
    const sums = parts.get(part) ?? { grown: 0, shrunk: 0, other: 0 };
    sums[direction > 0 ? "grown" : direction < 0 ? "shrunk" : "other"] += count;
    parts.set(part, sums);
  }
  const length = (view.end - view.begin) / view.parts;
  const order = [...parts.keys()];
  const reachable = parts.has(view.part) ? view.part : order.at(-1);
  return s("g", { role: "group", "aria-label": "Changes; arrow keys go from one to the next" },
    s("text", { x: LEFT - 6, y: y + 19, "text-anchor": "end" }, "why"),
    order.map((part) => {
      const sums = parts.get(part), middle = x(view.begin + (part + 0.5) * length);
      const said = [[sums.grown, "grew"], [sums.shrunk, "shrank"], [sums.other, "arrivals, ends and others"]]
        .filter(([count]) => count).map(([count, what]) => `${count} ${what}`).join(", ");
      return s("g", {
        class: "part", role: "button", tabindex: part === reachable ? 0 : -1, "data-part": part,
        "aria-label": `${clock(view.begin + part * length)}: ${said}`, "aria-pressed": part === view.part ? "true" : "false",
        onclick: () => act.part(part),
        onkeydown: (event) => move(event, order, part, act),
      },
      s("title", null, said),
      s("rect", { x: px(middle - 6), y, width: 12, height: LANE - 6, rx: 3 }),
      mark(sums.grown, "grown", middle, y + 7, (r) => `M0 ${-r}L${r} ${r}L${-r} ${r}Z`),
      mark(sums.shrunk, "shrunk", middle, y + 21, (r) => `M0 ${r}L${r} ${-r}L${-r} ${-r}Z`),
      mark(sums.other, "other", middle, y + 14, (r) => `M${-r / 2} 0a${r / 2} ${r / 2} 0 1 0 ${r} 0a${r / 2} ${r / 2} 0 1 0 ${-r} 0`));
    }));
}

function mark(count, style, x, y, shape) {
  if (!count) return null;
  const size = Math.min(6, 3.5 + Math.log10(count));
  return s("path", { class: style, transform: `translate(${px(x)} ${px(y)})`, d: shape(px(size)) });
}

function move(event, order, part, act) {
  const i = order.indexOf(part);
  const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: order.length - 1 }[event.key];
  if (event.key === "Enter" || event.key === " ") act.part(part);
  else if (to === undefined) return;
  else event.currentTarget.parentNode.querySelector(`[data-part="${order[Math.min(Math.max(0, to), order.length - 1)]}"]`).focus();
  event.preventDefault();
}

function swatch(content) {
  return s("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, content);
}

function legend(groups, chosen) {
  const box = { x: 0, y: 0, width: 14, height: 14 };
  const items = chosen === null
    ? groups.map((group) => [s("rect", { ...box, class: group.style }), group.label])
    : [
      [s("rect", { ...box, class: "q0" }), "running"],
      [s("rect", { ...box, class: "q0 light" }), "held, but starting or leaving"],
      [s("line", { class: "deserved", x1: 0, x2: 14, y1: 7, y2: 7 }), "deserved"],
      [s("line", { class: "guarantee", x1: 0, x2: 14, y1: 7, y2: 7 }), "guaranteed"],
    ];
  items.push([[s("rect", { ...box, class: "stripe-back" }), s("rect", { ...box, fill: "url(#idle)" })], "idle though wanted"]);
  if (chosen === null) items.push([s("rect", { ...box, fill: "url(#out)" }), "free on nodes that take no pods"]);
  return h("ul", { class: "legend" }, items.map(([content, label]) => h("li", null, swatch(content), label)));
}

function readout(view, groups) {
  const column = view.at === null ? view.columns.at(-1) : view.columns.find((one) => view.at < one.end);
  if (!column) return h("p", { class: "readout" }, view.loading ? "Loading…" : "Nothing has been seen yet.");
  const parts = view.chosen === null
    ? groups.map((group) => [group.label, sum(column, group.names, HELD)])
    : [["held", sum(column, view.chosen, HELD)], ["running", sum(column, view.chosen, RUNNING)]];
  const idle = view.chosen === null ? column.idleWanted : sum(column, view.chosen, IDLE_WANTED);
  const said = [...parts, ["idle though wanted", idle]].map(([label, value]) => `${label} ${amount(value)}`);
  return h("p", { class: "readout" }, `${view.at === null ? "Now" : clock(column.begin)}: ${said.join(" · ")}`);
}

function summary(view, groups) {
  const last = view.columns.at(-1);
  if (!last) return "GPUs over time: nothing has been seen yet";
  const held = sum(last, Object.keys(last.queues), HELD);
  const of = view.chosen === null ? `${amount(held)} of ${amount(last.capacity)} ${view.unit} held by ${groups.length} queues`
    : `queue ${view.chosen[0]} holds ${amount(sum(last, view.chosen, HELD))} ${view.unit}`;
  return `${view.unit} from ${clock(view.begin)} to ${clock(view.end)}; at the end ${of}`;
}
