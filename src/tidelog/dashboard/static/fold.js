// A channel's messages as they look now, kept up to date from the versions that the feed brings.
// The rule is the server's: an append adds its fragment, anything else says all of it or keeps it.

const MAX_TEXT = 65_536; // as much as the server sends of one message

const isStreaming = (body) => body.extras?.ai?.transport?.status === "streaming";

function textOf(data) {
  if (data === undefined) {
    return null;
  }
  return typeof data === "string" ? data : JSON.stringify(data);
}

export class Messages {
  constructor(messages) {
    // Newest first, as history has them.
    this.bySerial = new Map(messages.map((message) => [message.message, message]));
  }

  // Answers the message that changed, and whether it is new; null if it is none of these.
  apply(version) {
    const { body } = version;
    if (body === null) {
      return null; // pruned before it was shown
    }
    const known = this.bySerial.get(version.entity);
    if (known && version.id <= known.id) {
      return null; // read already
    }
    if (!known && version.kind !== "message.create" && version.kind !== "event") {
      return null; // older than what is shown
    }
    const added = textOf(body.data);
    const isAppend = version.kind === "message.append";
    const isKept = !isAppend && Boolean(body.data_of);
    const text = isAppend ? (known.text ?? "") + (added ?? "") : isKept ? known.text : added;
    const message = {
      message: version.entity,
      id: version.id,
      at: version.at,
      kind: version.kind,
      name: body.name ?? null,
      client: body.client_id ?? null,
      description: body.description ?? null,
      text: text === null ? null : text.slice(-MAX_TEXT),
      is_cut: ((isAppend || isKept) && known.is_cut) || (text ?? "").length > MAX_TEXT,
      is_text: typeof body.data === "string" || ((isAppend || isKept) && known.is_text),
      bytes: body.data_bytes ?? 0,
      is_open: isStreaming(body),
      history_serial: body.history_serial,
      published_at: known?.published_at ?? version.at,
      versions: (known?.versions ?? 0) + 1,
      appends: (known?.appends ?? 0) + (isAppend ? 1 : 0),
    };
    this.bySerial.set(version.entity, message);
    return { message, isNew: !known, version: isKept ? message : { ...message, text: added, is_cut: false } };
  }
}
