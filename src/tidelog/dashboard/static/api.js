// Questions to the server that made this page.

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(`/dashboard/${path}`, { credentials: "same-origin", ...options });
  } catch {
    throw new Refused(0, "The server does not answer.");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Refused(response.status, body.error ?? body.detail ?? `The server returned ${response.status}.`);
  }
  return body;
}

export function get(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return ask(`api/${path}${query ? `?${query}` : ""}`);
}

// A header that no form of another site can send.
const OURS = { "x-tidelog-dashboard": "1", "content-type": "application/json" };

export function change(path, body) {
  return ask(`api/${path}`, { method: "POST", headers: OURS, body: JSON.stringify(body) });
}

export function logOut() {
  return ask("logout", { method: "POST", headers: OURS, body: "{}" });
}
