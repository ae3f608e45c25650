// Each component of the how-to in a framework of its own, mounted and unmounted by the test.

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { mount, unmount } from "svelte";
import { createApp } from "vue";

import SvelteChat from "./Chat.svelte";
import { Chat as ReactChat } from "./react.jsx";
import { tide } from "./tide.js";
import { Chat as VueChat } from "./vue.js";

const place = (id) => {
  const element = document.createElement("section");
  element.id = id;
  document.body.append(element);
  return element;
};

globalThis.tide = tide;
globalThis.start = (channel) => {
  const react = createRoot(place("react"));
  react.render(
    <StrictMode>
      <ReactChat channel={channel} />
    </StrictMode>,
  );
  const vue = createApp(VueChat, { channel });
  vue.mount(place("vue"));
  const svelte = mount(SvelteChat, { target: place("svelte"), props: { channel } });
  globalThis.end = {
    react: () => react.unmount(),
    vue: () => vue.unmount(),
    svelte: () => unmount(svelte),
  };
};
