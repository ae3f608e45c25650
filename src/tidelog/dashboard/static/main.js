// Which view is visible, and what the frame around it shows.

import { get, logOut } from "./api.js";
import { fill, h, notice } from "./dom.js";
import { Feed } from "./feed.js";
import { count } from "./format.js";
import { bindThemeSwitch } from "./theme.js";
import { channelsView } from "./view_channels.js";
import { logView } from "./view_log.js";
import { meshView } from "./view_mesh.js";
import { outboxView } from "./view_outbox.js";
import { overviewView } from "./view_overview.js";
import { pipelineView } from "./view_pipeline.js";
import { searchView } from "./view_search.js";
import { syncView } from "./view_sync.js";

// A view is a function: given its root and a context it fills the root, and returns how to leave.
const VIEWS = {
  overview: ["Overview", overviewView],
  log: ["Log", logView],
  channels: ["Channels", channelsView],
  sync: ["Sync", syncView],
  mesh: ["Mesh", meshView],
  outbox: ["Outbox", outboxView],
  pipeline: ["Pipeline", pipelineView],
  search: ["Search", searchView],
};

const STATES = {
  live: "Live",
  waiting: "Not connected. Trying again …",
  ended: "The session is over.",
};

const main = document.getElementById("main");
const nav = document.getElementById("views");
const linkState = document.getElementById("link-state");
const head = document.getElementById("head");

let leave = () => {};
let visible = "";

const feed = new Feed((state) => {
  linkState.dataset.state = state;
  if (state === "ended") {
    fill(linkState, `${STATES[state]} `, h("a", { href: "/dashboard/login" }, "Log in"));
  } else {
    fill(linkState, STATES[state]);
  }
});
feed.on("any", () => {
  head.value = count(feed.position);
});

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = path in VIEWS ? path : "overview";
  return { name, parameters: new URLSearchParams(query ?? "") };
}

function link(name, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  return `#/${name}${query ? `?${query}` : ""}`;
}

function show() {
  if (location.hash && !location.hash.startsWith("#/")) {
    return; // the target of the skip link, not a view
  }
  const { name, parameters } = place();
  const [title, view] = VIEWS[name];
  const isOther = name !== visible;
  leave();
  visible = name;
  document.title = `${title} · tidelog`;
  for (const anchor of nav.querySelectorAll("a")) {
    if (anchor.dataset.view === name) {
      anchor.setAttribute("aria-current", "page");
      anchor.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else {
      anchor.removeAttribute("aria-current");
    }
  }
  feed.wish("show", () => ({ type: "show", view: name }));
  const root = h("div", { class: `view view-${name}` });
  fill(main, root);
  leave = view(root, { feed, parameters, link }) ?? (() => {});
  if (isOther) {
    window.scrollTo(0, 0);
  }
}

fill(
  nav,
  Object.entries(VIEWS).map(([name, [title]]) => h("a", { href: link(name), data: { view: name } }, title)),
);
nav.addEventListener("click", (event) => {
  // The same view again: start it over.
  if (event.target.hash === location.hash) {
    show();
  }
});
window.addEventListener("hashchange", show);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
bindThemeSwitch(document.getElementById("theme"));
const logout = document.getElementById("logout");
logout.addEventListener("click", async () => {
  try {
    await logOut();
    location.assign("/dashboard/login");
  } catch (error) {
    notice(error.message, "bad");
  }
});
get("state").then(
  (state) => {
    logout.hidden = state.is_open;
  },
  () => {},
);
show();
