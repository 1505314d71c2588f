/** A client that may leave before it is answered, as a crashed machine does: with a TCP reset. */
import { connect, type Socket } from "node:net";
import { TOKENS } from "./fixtures.ts";

export interface LeavingClient {
  /** Everything that was received, once the connection has ended. */
  readonly received: Promise<string>;
  /** Everything that was received so far, one character for each byte. */
  text(): string;
  leave(): void;
}

/** Sends a request; the answer ends with the connection. */
export function send(url: string, path: string, body: object): LeavingClient {
  const text = JSON.stringify(body);
  return open(url, [
    `POST ${path} HTTP/1.1`,
    "Content-Type: application/json",
    `Content-Length: ${Buffer.byteLength(text)}`,
    "Connection: close",
    "",
    text,
  ]);
}

export interface SocketClient extends LeavingClient {
  /** The decision. */
  readonly first: Promise<string>;
  /** Sends the message `ping`. */
  ping(times?: number): void;
  /** Sends a close frame with this code. Absent: without one. */
  close(code?: number): void;
  /** Ends the connection in an orderly way, without a close frame. */
  end(): void;
}

/** The message `ping` in one frame, masked with zeros: RFC 6455, section 5.2. */
const PING = Buffer.from([0x81, 0x84, 0, 0, 0, 0, ...Buffer.from("ping")]);

/** A close frame, masked with zeros: RFC 6455, section 5.5.1. */
function closeFrame(code?: number): Buffer {
  const payload = Buffer.alloc(code === undefined ? 0 : 2);
  if (code !== undefined) payload.writeUInt16BE(code);
  return Buffer.concat([Buffer.from([0x88, 0x80 | payload.length, 0, 0, 0, 0]), payload]);
}

/** The first complete frame's payload after the 101: RFC 6455, section 5.2. @param received as bytes */
function firstMessage(received: string): string | undefined {
  const end = received.indexOf("\r\n\r\n");
  if (!received.startsWith("HTTP/1.1 101") || end === -1) return undefined;
  const frame = Buffer.from(received.slice(end + 4), "latin1");
  const isLong = frame.length >= 4 && frame[1] === 126;
  const begin = isLong ? 4 : 2;
  const length = isLong ? frame.readUInt16BE(2) : (frame[1] ?? Infinity);
  return frame.length < begin + length ? undefined : frame.toString("utf8", begin, begin + length);
}

/** Opens a WebSocket and reads its frames as text. */
export function openSocket(url: string, path: string): SocketClient {
  let tell: (text: string) => void = () => undefined;
  const first = new Promise<string>((resolve) => (tell = resolve));
  const client = open(
    url,
    [
      `GET ${path} HTTP/1.1`,
      "Upgrade: websocket",
      "Connection: Upgrade",
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
      "Sec-WebSocket-Version: 13",
      "",
      "",
    ],
    (received) => {
      const message = firstMessage(received);
      if (message?.startsWith('{"success"') === true) tell(message);
    },
  );
  return {
    ...client,
    first,
    ping: (times = 1) => client.write(Buffer.concat(Array.from({ length: times }, () => PING))),
    close: (code) => client.write(closeFrame(code)),
  };
}

function open(
  url: string,
  [requestLine = "", ...lines]: readonly string[],
  onData: (received: string) => void = () => undefined,
): LeavingClient & { write(data: Buffer): void; end(): void } {
  const { hostname, port } = new URL(url);
  const socket: Socket = connect(Number(port), hostname);
  socket.setNoDelay(true);
  let text = "";
  const received = new Promise<string>((resolve) => {
    socket.on("data", (data: Buffer) => {
      text += data.toString("latin1");
      onData(text);
    });
    socket.on("error", () => undefined);
    socket.on("close", () => resolve(text));
  });
  socket.write(
    [requestLine, "Host: weir.test", `Authorization: Bearer ${TOKENS.full}`, ...lines].join("\r\n"),
  );
  const write = (data: Buffer) => void socket.write(data);
  const end = () => void socket.end();
  return { received, text: () => text, leave: () => socket.resetAndDestroy(), write, end };
}
