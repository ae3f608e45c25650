// The page: what the server says of itself, then a card for each thing to try.

import { fill } from "/dashboard/static/dom.js";
import { bindThemeSwitch } from "/dashboard/static/theme.js";
import { get } from "./asking.js";
import { channelsCard } from "./channels.js";
import { meshCard } from "./mesh.js";
import { tasksCard } from "./tasks.js";

bindThemeSwitch(document.getElementById("theme"));
const server = await get("server");
document.getElementById("where").textContent = server.url;
fill(document.getElementById("cards"), channelsCard(server), await tasksCard(server), meshCard(server));
