// The login form works without this; it only says why one is here again.

import { applyTheme } from "./theme.js";

applyTheme();
if (location.search === "?wrong") {
  document.getElementById("wrong").hidden = false;
}
