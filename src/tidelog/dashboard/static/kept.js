// A part of a view that is read again when the server says that it is out of date.

import { fill, h } from "./dom.js";

// `read` returns what to show; it is called at once, whenever the feed says so, and after a reconnect.
// One question at a time: what changes meanwhile is asked for when the answer is there.
export function kept(feed, view, body, read) {
  let isReading = false;
  let isStale = false;
  let isGone = false;
  const again = async () => {
    if (isReading) {
      isStale = true;
      return;
    }
    isReading = true;
    try {
      const shown = await read();
      if (!isGone) {
        replace(body, shown);
      }
    } catch (error) {
      if (!isGone) {
        fill(body, h("p", { class: "problem" }, error.message));
      }
    }
    isReading = false;
    if (isStale && !isGone) {
      isStale = false;
      again();
    }
  };
  fill(body, h("p", { class: "muted" }, "Reading …"));
  again();
  const off = [
    feed.on("changed", (message) => message.view === view && again()),
    feed.on("hello", again),
  ];
  return Object.assign(
    () => {
      isGone = true;
      off.forEach((end) => end());
    },
    { again },
  );
}

// The focus stays where it was if there is still something of that name.
function replace(body, shown) {
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  fill(body, shown);
  if (focused) {
    body.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }
}
