/** Connections with unknown ends: bytes that are no HTTP, and misused WebSockets. */
import { connect } from "node:net";
import { pick, whole } from "../random.ts";

type Random = () => number;

/** A connection that the server keeps this long after its client has left counts as a hang, in ms. */
const HANG_MS = 30_000;

/** Sends bytes, ends the sending side, and returns everything received. */
export function lastWords(port: number, bytes: Buffer): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = "";
    const socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    const timer = setTimeout(() => {
      socket.destroy();
      reject(new Error(`it hangs: the connection stays open after ${JSON.stringify(text)}`));
    }, HANG_MS);
    socket.on("data", (data: Buffer) => {
      text += data.toString("latin1");
      // A WebSocket stays open.
      if (text.startsWith("HTTP/1.1 101")) socket.destroy();
    });
    socket.on("end", () => socket.destroy());
    socket.on("error", () => undefined);
    socket.on("close", () => {
      clearTimeout(timer);
      resolve(text);
    });
    socket.end(bytes);
  });
}

/** Frames of a client: proper ones, and those that break RFC 6455. */
export function oddFrames(random: Random): Buffer {
  return Buffer.concat(Array.from({ length: whole(random, 4) }, () => oddFrame(random)));
}

function oddFrame(random: Random): Buffer {
  const payload = pick(random, [
    Buffer.alloc(0),
    Buffer.from("hello"),
    Buffer.from('{"renew":true}'),
    Buffer.from([0xff, 0xfe, 0xc0]),
    Buffer.alloc(125, "a"),
    Buffer.from([0x03, 0xe8]),
    Buffer.from([0x00, 0x01]),
    Buffer.from([0x03]),
    Buffer.from([0x0f, 0xa0, 0xff, 0xff]),
  ]);
  const opcode =
    random() < 0.8 ? pick(random, [0x81, 0x82, 0x88, 0x89, 0x8a, 0x01, 0x80]) : whole(random, 256);
  const isMasked = random() < 0.9;
  const length =
    random() < 0.9 ? [payload.length] : [127, ...Array.from({ length: 8 }, () => whole(random, 256))];
  const [first = 0, ...rest] = length;
  const mask = isMasked ? [1, 2, 3, 4] : [];
  const masked = payload.map((byte: number, at: number) => byte ^ (mask[at % 4] ?? 0));
  return Buffer.concat([Buffer.from([opcode, first | (isMasked ? 0x80 : 0), ...rest, ...mask]), masked]);
}
