/** Runs the bridge to Redis in a process of its own, so it takes no time from the event loop that makes the load. */
import { fork } from "node:child_process";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { startBridge, type Bridge } from "../scripts/upstash-bridge.ts";

/** A bridge in another process. */
export interface DistantBridge extends Pick<Bridge, "url" | "token"> {
  /** How many commands of callers were passed on to Redis. */
  commands(): Promise<number>;
  stop(): Promise<void>;
}

/** A message from the bridge's process. */
type Message = { readonly url: string } | { readonly commands: number };

/** @param distanceMs how long a message takes from the bridge to Redis and back, in milliseconds */
export async function startDistantBridge(
  redisPort: number,
  token: string,
  distanceMs: number,
): Promise<DistantBridge> {
  const child = fork(import.meta.filename, [String(redisPort), token, String(distanceMs)]);
  const exited = new Promise<void>((done) => child.once("exit", () => done()));
  const hear = () =>
    Promise.race([
      new Promise<Message>((done) => child.once("message", (said) => done(said as Message))),
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

/** What the bridge's process runs. */
async function main(redisPort: number, token: string, distanceMs: number): Promise<void> {
  const port = distanceMs === 0 ? redisPort : await distantPort(redisPort, distanceMs / 2);
  const bridge = await startBridge({ redisUrl: `redis://127.0.0.1:${port}`, token });
  process.on("message", () => process.send?.({ commands: bridge.commands() } satisfies Message));
  process.on("disconnect", () => process.exit());
  process.send?.({ url: bridge.url } satisfies Message);
}

/** A port that passes everything on to another port, `delayMs` later, in both directions. */
async function distantPort(port: number, delayMs: number): Promise<number> {
  const passOn = (from: Socket, to: Socket) =>
    from.on("data", (data) => setTimeout(() => to.write(data), delayMs)).on("close", () => to.destroy());
  const server = createServer((near) => {
    const far = connect(port, "127.0.0.1");
    for (const socket of [near, far]) socket.setNoDelay(true).on("error", () => socket.destroy());
    passOn(near, far);
    passOn(far, near);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return (server.address() as AddressInfo).port;
}

if (process.argv[1] === import.meta.filename) {
  const [redisPort, token = "", distanceMs] = process.argv.slice(2);
  await main(Number(redisPort), token, Number(distanceMs));
}
