/** The bridge to Redis in a process of its own, so that it takes no time from the event loop that makes the load. */
import { fork } from "node:child_process";
import { startBridge, type Bridge } from "../scripts/upstash-bridge.ts";

/** A bridge somewhere else, and how many commands went through it. */
export interface DistantBridge extends Pick<Bridge, "url" | "token"> {
  commands(): Promise<number>;
  stop(): Promise<void>;
}

type Said = { readonly url: string } | { readonly commands: number };

export async function startDistantBridge(redisUrl: string, token: string): Promise<DistantBridge> {
  const child = fork(import.meta.filename, [redisUrl, token]);
  const exited = new Promise<void>((done) => child.once("exit", () => done()));
  const hear = () =>
    Promise.race([
      new Promise<Said>((done) => child.once("message", (said) => done(said as Said))),
      exited.then((): never => {
        throw new Error("the bridge has ended");
      }),
    ]);
  const up = await hear();
  const commands = async () => {
    child.send("commands");
    const said = await hear();
    return "commands" in said ? said.commands : Number.NaN;
  };
  const stop = async () => {
    child.kill();
    await exited;
  };
  return { url: "url" in up ? up.url : "", token, commands, stop };
}

/** What runs over there. */
async function main(redisUrl = "", token = ""): Promise<void> {
  const bridge = await startBridge({ redisUrl, token });
  process.on("message", () => process.send?.({ commands: bridge.commands() } satisfies Said));
  process.on("disconnect", () => process.exit());
  process.send?.({ url: bridge.url } satisfies Said);
}

if (process.argv[1] === import.meta.filename) await main(...process.argv.slice(2));
