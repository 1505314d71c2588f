import { createServer } from "node:net";

/** A TCP port that was free a moment ago. Another program may take it before its caller does. */
export async function freePort(): Promise<number> {
  const server = createServer();
  const port = await new Promise<number>((done) => {
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      done(typeof address === "object" && address !== null ? address.port : 0);
    });
  });
  await new Promise((done) => server.close(done));
  return port;
}
