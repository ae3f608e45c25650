// Questions to the server that made this page.

async function ask(path, options) {
  let response;
  try {
    response = await fetch(`/playground/${path}`, options);
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Error(body.error ?? `The server returned ${response.status}.`);
  }
  return body;
}

export function get(path) {
  return ask(path);
}

// A header that no form of another site can send.
const OURS = { "x-tidelog-dashboard": "1", "content-type": "application/json" };

export function change(path, body = {}) {
  return ask(path, { method: "POST", headers: OURS, body: JSON.stringify(body) });
}
