/** Builds the bundle and serves it with plain workerd, to self-host it or to measure it. */
import { readStateDir, requireNoFlags, runCommand } from "./call.ts";
import { readConfiguration } from "./configuration.ts";
import { readPort } from "./listening.ts";
import { newKeysNote, objectBounds } from "./object-bounds.ts";
import { build, readDevVars, WRANGLER_TOML } from "./project.ts";
import { checkTokens } from "./tokens.ts";
import { serve, type Serving } from "./workerd.ts";

async function main(): Promise<void> {
  requireNoFlags("npm run serve");
  const { HOST: host = "127.0.0.1", POLICIES, REGIONS, NOTICES, API_TOKENS } = process.env;
  const { NOTICES_SECRET: secret } = { ...readDevVars(), ...process.env };
  const [port, stateDir] = [readPort(), readStateDir()];
  // The worker would refuse all of this too, but after the build and with a stack.
  const { given, policies } = readConfiguration({ POLICIES, REGIONS, NOTICES }, undefined, WRANGLER_TOML, {
    runsOn: "workerd",
    secret,
  });
  const names = [...policies.keys()];
  const apiTokens = API_TOKENS ?? readDevVars()["API_TOKENS"];
  if (apiTokens !== undefined) for (const note of checkTokens(apiTokens, policies)) console.warn(note);
  build();
  const stopping = new Stopping();
  const serving = await serve({
    host,
    port,
    stateDir,
    isApart: true,
    objectBounds: objectBounds(),
    policies: tables(given.policies),
    apiTokens,
    regions: tables(given.regions),
    pool: poolOf({ ...readDevVars(), ...process.env }),
    notices: { ...(given.notices !== undefined && { target: tables(given.notices) }), secret },
  });
  stopping.stops(serving);
  console.log(`Weir serves ${names.join(", ")} on ${serving.url}, storage in ${stateDir}`);
  const note = newKeysNote(policies);
  if (note !== undefined) console.log(note);
  if (apiTokens === undefined)
    console.log("API_TOKENS is not set: every call except /healthz answers 503 with how to set it.");
  const code = await serving.exited;
  if (!stopping.isAsked)
    throw new Error(`workerd ended unexpectedly (${code === null ? "killed" : `code ${code}`})`);
}

/** Handles signals during the start too, so that no server is left behind. */
class Stopping {
  isAsked = false;
  #serving: Serving | undefined;

  constructor() {
    for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => this.#ask());
  }

  stops(serving: Serving): void {
    this.#serving = serving;
    if (this.isAsked) void serving.rest().then(() => serving.stop());
  }

  #ask(): void {
    // A second signal ends it at once.
    if (this.isAsked) return void this.#serving?.stop("SIGKILL");
    this.isAsked = true;
    void this.#serving?.rest().then(() => this.#serving?.stop());
  }
}

function tables(given: unknown): unknown {
  return typeof given === "string" ? JSON.parse(given) : given;
}

/** The address and the token of the Redis with the pools. The worker reports what is missing. */
function poolOf({ UPSTASH_REDIS_REST_URL: url, UPSTASH_REDIS_REST_TOKEN: token }: NodeJS.Dict<string>) {
  return { ...(url !== undefined && { url }), ...(token !== undefined && { token }) };
}

await runCommand(main);
