// Runs a script of this project on any machine with Node 20 and npm: installs packages that are missing or
// differ from the lock file, then runs the script with their Node. Plain JavaScript, which Node 20 can run.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { constants } from "node:os";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";
import { endWithNpm } from "./end-with-npm.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const modules = join(root, "node_modules");
const bin = join(modules, ".bin");
const stamp = join(modules, ".weir-lock");
const lock = readFileSync(join(root, "package-lock.json"), "utf8");

if (!existsSync(stamp) || readFileSync(stamp, "utf8") !== lock) {
  console.log("Installing packages (once) ...");
  const install = spawnSync("npm", ["ci", "--no-audit", "--no-fund", "--loglevel=error"], {
    cwd: root,
    stdio: ["ignore", "inherit", "inherit"],
    shell: process.platform === "win32",
  });
  if (install.status !== 0) fail('"npm ci" failed; see above.');
  writeFileSync(stamp, lock);
}

const node = findNode();
const [script = "", ...args] = process.argv.slice(2);
const child = spawn(node, [join(root, script), ...args], {
  stdio: "inherit",
  cwd: root,
  // Relative paths of the environment are the caller's, but npm runs scripts in the project.
  env: {
    ...process.env,
    PATH: `${bin}${delimiter}${process.env.PATH}`,
    WEIR_CALLED_IN: process.env.INIT_CWD ?? process.cwd(),
  },
});
// A terminal signals the complete process group. A signal to this process alone is meant for the child too.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
endWithNpm();
child.on("exit", (code, signal) =>
  process.exit(code ?? 128 + (constants.signals[signal ?? "SIGTERM"] ?? 15)),
);

/** The Node among the packages. Without npm's install scripts it is missing: then this Node, if recent. */
function findNode() {
  const packaged = join(bin, "node");
  if (spawnSync(packaged, ["--version"]).status === 0) return packaged;
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
  if (major > 22 || (major === 22 && minor >= 18)) return process.execPath;
  return fail(
    `The package "node" was not set up (does npm run with --ignore-scripts?), and Node ${process.versions.node} is ` +
      "too old to take its place: 22.18 or newer is needed.",
  );
}

function fail(message) {
  console.error(message);
  process.exit(1);
}
