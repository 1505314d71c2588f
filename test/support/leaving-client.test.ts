/** The client's reading of a socket, however its bytes arrive. */
import { createServer, type AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { openSocket } from "./leaving-client.ts";

const HEAD = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";

function frame(text: string): Buffer {
  const { length } = text;
  const head = length < 126 ? [0x81, length] : [0x81, 126, length >> 8, length & 255];
  return Buffer.concat([Buffer.from(head), Buffer.from(text)]);
}

test.each([10, 300])(
  "the decision is read, whatever comes with it and wherever it is cut (%d characters more)",
  async (more) => {
    const decision = JSON.stringify({ success: true, lease: { id: "a" }, key: "k".repeat(more) });
    const bytes = Buffer.concat([
      Buffer.from(HEAD),
      frame(decision),
      frame('{"renewed":{"expiresAfterMs":1500}}'),
    ]);
    let cut = 0;
    const server = createServer((socket) => {
      socket.setNoDelay(true);
      socket.on("error", () => undefined);
      socket.write(bytes.subarray(0, cut));
      setTimeout(() => socket.write(bytes.subarray(cut)), 5);
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const { port } = server.address() as AddressInfo;
    for (cut of [
      0,
      HEAD.length,
      HEAD.length + 1,
      HEAD.length + 3,
      HEAD.length + 30,
      bytes.length - 40,
      bytes.length,
    ]) {
      const client = openSocket(`http://127.0.0.1:${port}`, "/");
      expect(await client.first).toBe(decision);
      client.leave();
    }
    await new Promise((done) => server.close(done));
  },
);
