/** The channels of a tidelog server in a browser or in Node. See README.md and docs/howto/browser-client.md. */

/** Removes a listener, or ends what a function began. Calling it again does nothing. */
export type Stop = () => void;

/** What a socket must be able to do: the browser's `WebSocket`, Node's from 22 on, or that of the package `ws`. */
export type WebSocketConstructor = new (url: string) => {
  send(text: string): void;
  close(): void;
  // Listeners differ from library to library in their types, not in what they are given.
  onmessage: any;
  onclose: any;
  onerror: any;
};

/** What lets one socket subscribe to one private or presence channel. */
export interface Authorization {
  auth: string;
  /** Who subscribes, on presence channels: exactly the text that was signed. */
  channel_data?: string;
}

export interface TidelogOptions {
  /** Names the app; it is no secret. */
  key: string;
  /** The server; without it the one this module, or else the page, was loaded from. */
  url?: string;
  /** A capability token, or a function that fetches one: called for each connection and when one expires. */
  token?: string | (() => string | Promise<string>);
  /**
   * Asked before a private or presence channel is subscribed to, at every connection; or the
   * address of an endpoint written for Pusher's libraries.
   */
  authorize?: string | ((channel: string, socketId: string) => Authorization | Promise<Authorization>);
  /** Milliseconds before the first and at most before a later attempt to connect again. */
  retry?: { first?: number; most?: number };
  /**
   * Milliseconds for which the server may hold appends to a message to send them together: fewer
   * bytes for long streams of tokens. 0 unless given.
   */
  appendRollupWindow?: 0 | 20 | 40 | 100 | 500;
  /** Needed in Node before 22: the class of the package `ws`. */
  WebSocket?: WebSocketConstructor;
}

export interface SubscribeOptions {
  /** How much of the past to begin with: a number of messages, at most a page, or a time. */
  rewind?: number | { seconds: number };
  /** Messages to keep, 1000 unless given; the oldest are let go, and changes to them not shown. */
  limit?: number;
}

export type ClientState = "idle" | "connecting" | "connected" | "waiting" | "disconnected" | "failed" | "closed";
export type ChannelState = "subscribing" | "live" | "interrupted" | "failed" | "closed";
export type Action = "create" | "update" | "delete" | "append" | "event";
export type Status = "streaming" | "complete" | "cancelled";

/** One message after its latest known version. It never changes: a later version is another object. */
export class Message {
  private constructor();
  readonly channel: string;
  /** What the message is called for ever; of an event that cannot change, its `message_id`. */
  readonly serial: string;
  /** The event name it was published under. */
  readonly name: string | undefined;
  /** All of it: text, unless an update replaced it with another JSON value; undefined if cleared. */
  readonly data: unknown;
  /** The publisher's, without the server's own headers. */
  readonly extras: Readonly<Record<string, any>>;
  readonly tags: unknown;
  /** What made it so; `event` if it cannot change. */
  readonly action: Action;
  /** Serial of the latest version; later ones are greater as text. */
  readonly version: string | undefined;
  /** When the latest version was made, in Unix milliseconds. */
  readonly timestamp: number | undefined;
  /** Whom the latest version is attributed to. */
  readonly clientId: string | undefined;
  /** Its position among the messages of the channel; undefined for an event that is not kept. */
  readonly historySerial: number | undefined;
  /** Position of its latest version among all operations of the channel. */
  readonly deliverySerial: number | undefined;
  /** Whether text from before the subscription is missing; it is read from history, if it has it. */
  readonly partial: boolean;
  /** All of its data as text. */
  readonly text: string;
  /** `extras.ai.transport`: the headers of runs and streams. */
  readonly transport: Readonly<Record<string, string>>;
  /** Of a stream; undefined of another message. */
  readonly status: Status | undefined;
  readonly streaming: boolean;
  /** Whether the latest version is a delete; its data may still be there. */
  readonly deleted: boolean;
  readonly runId: string | undefined;
  /** The value that was published, where the data is the text of a JSON value. */
  json<T = unknown>(): T;
}

export interface Member {
  readonly id: string;
  readonly info: any;
}

export interface Run {
  readonly id: string;
  readonly status: "running" | "suspended" | "complete" | "cancelled" | "error";
  /** Whose run it is, if its start is among the messages kept. */
  readonly clientId: string | undefined;
  readonly errorCode: string | undefined;
  /** Its `ai-output` messages. */
  readonly messages: readonly Message[];
}

/** Continuity was lost: what was kept is gone, and what a rewind finds comes again. */
export interface Reset {
  /** `stream_reset`, `position_expired`, `continuity_unverifiable` or `persistence_unavailable`. */
  readonly code: string;
  readonly reason: string;
}

export interface ChannelEvents {
  /** A message is new or has changed. States, not operations: at most one call for each in 16 ms. */
  message: (message: Message) => void;
  /** Each single operation, as it arrives; `data` is what an append added. */
  version: (version: { action: Action; data: unknown; message: Message | undefined }) => void;
  /** Messages, members or state have changed. */
  change: (messages: readonly Message[]) => void;
  reset: (reset: Reset) => void;
  presence: (change: { type: "join" | "leave" | "update"; id: string; info: any }) => void;
  /** The subscription has failed for good. Without a listener it is written to the console. */
  error: (error: TidelogError) => void;
}

/** One channel, across all connections of its client. */
export class Channel {
  private constructor();
  readonly name: string;
  readonly state: ChannelState;
  /** The messages kept, in the order they were published; another array after every change. */
  readonly messages: readonly Message[];
  /** Who is on a presence channel; another array after every change. */
  readonly members: readonly Member[];
  /** Runs, as far as the kept messages show them; the same array until these change. */
  readonly runs: readonly Run[];
  /** Resolves when the subscription stands and its rewind is complete; rejects if it is refused. */
  readonly ready: Promise<Channel>;
  on<Event extends keyof ChannelEvents>(event: Event, listener: ChannelEvents[Event]): Stop;
  /** `on("change", ...)`. */
  onChange(listener: (messages: readonly Message[]) => void): Stop;
  /** The message of a serial, if it is kept. */
  get(serial: string): Message | undefined;
  /** A page of the past, oldest first: the newest, or those next to a message or history serial. */
  history(page?: {
    limit?: number;
    before?: Message | number;
    after?: Message | number;
  }): Promise<{ messages: readonly Message[]; hasMore: boolean }>;
  /**
   * Publish an `ai-` event, durably: resolves when the server has it, with the message unless it
   * was there already when a lost connection came back. Under the same `id` it is published once.
   * A `client-` event is sent once, now or not at all.
   */
  publish(
    name: string,
    data: unknown,
    options?: { extras?: Record<string, unknown>; id?: string },
  ): Promise<Message | undefined>;
  /** Ask agents to stop runs: one, one's own, those of a client, or all. */
  cancel(what: { runId: string } | { own: true } | { clientId: string } | { all: true }): Promise<Message | undefined>;
  /** Change what others see of oneself on a presence channel. */
  updatePresence(info: unknown): void;
  /** End one use of the channel; with the last one the subscription ends. */
  unsubscribe(): void;
}

export interface TidelogEvents {
  state: (state: ClientState) => void;
  /** What the application may want to know or must decide. Without a listener it is written to the console. */
  error: (error: TidelogError) => void;
}

/** A client of one app: its connection, and the channels it follows over it. */
export class Tidelog {
  constructor(options: TidelogOptions);
  readonly state: ClientState;
  /** Of the present connection: what `authorize` signs. */
  readonly socketId: string | undefined;
  on<Event extends keyof TidelogEvents>(event: Event, listener: TidelogEvents[Event]): Stop;
  /** Follow a channel; one that is followed already is used once more. */
  subscribe(name: string, options?: SubscribeOptions): Channel;
  /** The channel of a name, if it is followed. */
  channel(name: string): Channel | undefined;
  /** The messages of a channel that is followed, else none; the same array until one changes. */
  messages(name: string): readonly Message[];
  /** Subscribe, and call a function with the messages now and after every change. */
  follow(
    name: string,
    options: SubscribeOptions | undefined,
    listener: (messages: readonly Message[]) => void,
  ): Stop;
  /** Connect now; the first subscribe does, and every lost connection by itself after a wait. */
  connect(): void;
  /** Close the connection and keep the subscriptions; `connect` continues where they were. */
  disconnect(): void;
  /** End everything. */
  close(): void;
}

/** What went wrong and what to do. */
export class TidelogError extends Error {
  /** A number of the server's (channels 1.5), or a word of this module's own. */
  readonly code: number | string;
  /** Of a refused `ai-` event: the class of the refusal, such as `ai_event_not_permitted`. */
  readonly reason?: string;
  /** Of a refused `ai-` event. */
  readonly aiCode?: number;
}
