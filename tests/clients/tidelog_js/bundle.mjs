// Bundles a page of the documentation as its reader would: JSX, and components of Svelte.
//   node bundle.mjs ENTRY OUT TIDELOG_JS, with esbuild, react, vue and svelte in ./node_modules

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { build } = require("esbuild");
const { compile } = require("svelte/compiler");
const [entry, outfile, tidelog] = process.argv.slice(2);

const svelte = {
  name: "svelte",
  setup(builder) {
    builder.onLoad({ filter: /\.svelte$/ }, async ({ path }) => {
      const { js } = compile(await readFile(path, "utf-8"), { filename: path });
      return { contents: js.code, loader: "js" };
    });
  },
};

await build({
  entryPoints: [entry],
  outfile,
  bundle: true,
  format: "esm",
  jsx: "automatic",
  conditions: ["browser"],
  define: { "process.env.NODE_ENV": '"development"' },
  alias: { tidelog },
  nodePaths: [`${process.cwd()}/node_modules`],
  plugins: [svelte],
  logLevel: "error",
});
