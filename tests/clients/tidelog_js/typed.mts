// What TypeScript accepts of tidelog.js, and, each after its comment, what it refuses.
import { Tidelog, TidelogError, type Message, type Stop } from "tidelog";

const options = { key: "k", url: "https://host", token: async () => "t", authorize: "/auth" };
const tide = new Tidelog(options);
const room = tide.subscribe("room", { rewind: { seconds: 60 }, limit: 10 });
const stop: Stop = room.on("message", (message: Message) => console.log(message.text, message.status));
room.on("reset", ({ code, reason }) => console.log(code, reason));
room.on("presence", ({ type, id }) => console.log(type satisfies "join" | "leave" | "update", id));
room.cancel({ all: true }).catch((error: TidelogError) => console.log(error.code));
const end = tide.follow("room", undefined, (messages) => console.log(messages.length, room.runs[0]?.status));
const page = await room.history({ before: room.messages[0], limit: 5 });
console.log(page.hasMore, page.messages.map((each) => each.json<{ n: number }>().n), stop, end);

// @ts-expect-error
tide.subscribe(1);
// @ts-expect-error
room.messages.push(room.messages[0]!);
// @ts-expect-error
room.messages[0]!.text = 'x';
// @ts-expect-error
room.on('nothing', () => {});
// @ts-expect-error
room.cancel({});
// @ts-expect-error
new Tidelog({});
