/**
 * A transport of the Vercel AI SDK over a tidelog channel: a chat is a channel, an answer is a run.
 *
 * What `useChat` sends is an `ai-input`; what an agent writes comes back as a stream of chunks. The
 * answer is in the channel, not in this page: a reload or another device goes on with it, and
 * `stop` reaches the agent wherever it runs.
 */
export class TidelogTransport {
  resumeStreamIsReplay = true; // resuming gives the answer from its beginning
  #tide;

  constructor(tide) {
    this.#tide = tide;
  }

  /** What `useChat` begins with: the chat so far, without an answer that is being written. */
  async history(chatId) {
    const channel = await this.#channel(chatId).ready;
    const running = new Set(channel.runs.filter(({ status }) => status === "running").map(({ id }) => id));
    const messages = [];
    for (const message of channel.messages) {
      if (message.name === "ai-input") messages.push(JSON.parse(message.text));
      if (!isText(message) || running.has(message.runId)) continue;
      const part = { type: "text", text: message.text };
      const last = messages.at(-1);
      if (last?.id === message.runId) last.parts.push(part);
      else messages.push({ id: message.runId, role: "assistant", parts: [part] });
    }
    return messages;
  }

  async sendMessages({ chatId, messages, abortSignal }) {
    const channel = await this.#channel(chatId).ready;
    const runId = crypto.randomUUID();
    const stream = this.#answer(channel, runId, abortSignal);
    const transport = { "run-id": runId, role: "user" };
    await channel.publish("ai-input", messages.at(-1), { extras: { ai: { transport } } });
    return stream;
  }

  async reconnectToStream({ chatId }) {
    const channel = await this.#channel(chatId).ready;
    const run = channel.runs.findLast(({ status }) => status === "running");
    return run ? this.#answer(channel, run.id) : null;
  }

  #channel(chatId) {
    return this.#tide.channel(chatId) ?? this.#tide.subscribe(chatId, { rewind: 100 });
  }

  /** The chunks of a run: what it has written already, and then what it writes, until it ends. */
  #answer(channel, runId, signal) {
    const written = new Map();
    let stop;
    const start = (controller) => {
      const say = (type, chunk) => controller.enqueue({ type, ...chunk });
      const text = ({ serial: id, text: whole, streaming }) => {
        const known = written.get(id);
        if (known === undefined) say("text-start", { id });
        if (whole.length > (known ?? 0)) say("text-delta", { id, delta: whole.slice(known ?? 0) });
        if (!streaming && known !== Infinity) say("text-end", { id });
        written.set(id, streaming ? whole.length : Infinity);
      };
      const tool = (message) => {
        const { toolName, toolCallId } = message.extras.ai.codec;
        const { arguments: input, result: output } = message.json();
        const call = { toolCallId, toolName, dynamic: true };
        if (!written.has(message.serial)) say("tool-input-available", { ...call, input });
        if (!message.streaming && written.get(message.serial) !== Infinity) {
          say("tool-output-available", { toolCallId, output, dynamic: true });
        }
        written.set(message.serial, message.streaming ? 0 : Infinity);
      };
      const look = () => {
        const run = channel.runs.find(({ id }) => id === runId);
        for (const message of run?.messages ?? []) {
          if (isText(message)) text(message);
          else if (message.transport.role === "tool") tool(message);
        }
        if (!run || run.status === "running" || run.status === "suspended") return;
        if (run.status === "error") say("error", { errorText: run.errorCode ?? "the agent failed" });
        say("finish");
        stop();
        controller.close();
      };
      stop = channel.onChange(look);
      signal?.addEventListener("abort", () => {
        stop();
        channel.cancel({ runId }).catch((error) => console.error(error));
        controller.close();
      });
      say("start", { messageId: runId });
      look();
    };
    return new ReadableStream({ start, cancel: () => stop() });
  }
}

/** What an agent wrote for people; `role` is `tool` or `agent` where it is something else. */
const isText = ({ name, transport: { role } }) => name === "ai-output" && role !== "tool" && role !== "agent";
