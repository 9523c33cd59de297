/** The page: which view is shown, and what it is told. */

import { follow, setToken, takeToken } from "./connection.js";
import { h, patchChildren } from "./element.js";
import { clock } from "./format.js";
import { JobView } from "./job.js";
import { JobsView } from "./jobs.js";
import { NodesView } from "./nodes.js";
import { QueueView } from "./queue.js";
import { QueuesView } from "./queues.js";
import { WhatIfView } from "./what_if.js";

const REFRESH_MS = 2000;
const main = document.getElementById("main");
const state = document.getElementById("state");

let overview = null;
let view = null;
let trouble = null;
let asking = false, again = false;
let due = 0;

const VIEWS = [
  [/^#\/queue\/(.*)$/, (name) => new QueueView(decodeURIComponent(name), draw)],
  [/^#\/job\/([^/]+\/[^/]+(?:\/[^/]+)?)$/, (key) => new JobView(key.split("/").map(decodeURIComponent).join("/"), draw)],
  [/^#\/jobs$/, () => new JobsView(draw)],
  [/^#\/nodes$/, () => new NodesView(draw)],
  [/^#\/what-if$/, () => new WhatIfView(draw)],
];

function route() {
  const found = VIEWS.map(([pattern, make]) => [pattern.exec(location.hash), make]).find(([match]) => match);
  view = found ? found[1](found[0][1]) : new QueuesView(draw);
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === (location.hash || "#/");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(h("p", null, "Loading…"));
  draw();
  refresh();
}

/** Asks for the view's lists; once more if it is told to meanwhile. */
async function refresh() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  due = Date.now() + REFRESH_MS;
  const asked = view;
  try {
    await asked.refresh?.();
    if (trouble && trouble.status !== 401) tell(null);
  } catch (error) {
    tell(error);
  }
  asking = false;
  if (again || asked !== view) {
    again = false;
    refresh();
  }
}

function draw() {
  if (!overview) return;
  const width = main.clientWidth - 2 * parseFloat(getComputedStyle(main).paddingLeft);
  patchChildren(main, [view.view(overview, Math.max(280, width))].flat(Infinity).filter(Boolean));
}

function tell(error) {
  trouble = error;
  state.className = error ? "bad" : "";
  state.textContent = error ? error.message || String(error) : overview ? `live, changed ${clock(overview.time)}` : "";
  if (error?.status === 401) askForToken(error.message);
}

function askForToken(why) {
  const field = h("input", { type: "password", name: "token", autocomplete: "off", "aria-label": "Token", required: true });
  main.replaceChildren(h("h2", null, "This page needs a token"), h("p", null, why),
    h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      setToken(field.value.trim());
      location.reload();
    } }, field, h("button", null, "Open")));
  overview = null;
}

takeToken();
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) takeToken(), location.reload();
  else route(), main.focus();
});
new ResizeObserver(draw).observe(main);
setInterval(() => {
  if (overview && !document.hidden && Date.now() >= due) refresh();
}, REFRESH_MS);
route();
follow((latest) => {
  overview = latest;
  document.title = `${latest.idleWanted ? "● " : ""}volcano-elastic`;
  tell(null);
  draw();
  if (!document.hidden && Date.now() >= due) refresh();
}, tell);
