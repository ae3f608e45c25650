// Evaluates functions as a page does: a line of JSON on standard input for each, with an argument,
// and a line on standard output with its value. Standard error is for people.
//   node host.mjs, with ws in ./node_modules of the working directory

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

globalThis.WebSocketClass = createRequire(`${process.cwd()}/`)("ws").WebSocket;

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const { id, source, argument } = JSON.parse(line);
    try {
      say({ id, value: await (0, eval)(`(${source})`)(argument) });
    } catch (error) {
      say({ id, error: String(error?.stack ?? error) });
    }
  })
  .on("close", () => process.exit(0));
