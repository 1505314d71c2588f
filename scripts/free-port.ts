import { createServer } from "node:net";

/**
 * Below the ports that systems give to connections (32768 and up on Linux, RFC 6335's 49152 and up elsewhere): until the
 * port is used, no connection of another process takes it.
 */
const [LEAST, MOST] = [20_000, 32_000];
/** Those that this process was given. Another process draws other ones, most likely. */
const given = new Set<number>();

/** A TCP port of 127.0.0.1 that nobody listens at. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = LEAST + Math.floor(Math.random() * (MOST - LEAST));
    if (given.has(port)) continue;
    given.add(port);
    if (await isFree(port)) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  const server = createServer();
  return new Promise((done) => {
    server.once("error", () => done(false));
    server.listen(port, "127.0.0.1", () => server.close(() => done(true)));
  });
}
