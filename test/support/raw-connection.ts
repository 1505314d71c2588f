/** One HTTP/1.1 connection that sends bytes unchanged, and reads one answer at a time. */
import { connect, type Socket } from "node:net";

export interface RawAnswer {
  readonly status: number;
  readonly contentType: string;
  readonly body: string;
}

/** An answer that takes this long counts as a hang, in milliseconds. */
const HANG_MS = 30_000;

export class RawConnection {
  readonly #port: number;
  #socket: Socket | undefined;
  #received = Buffer.alloc(0);
  #wake: () => void = () => undefined;
  #isClosed = true;

  constructor(port: number) {
    this.#port = port;
  }

  /** Sends a complete request and reads its answer. Rejects when there is none. */
  async exchange(bytes: Buffer, { isHead = false } = {}): Promise<RawAnswer> {
    this.#open().write(bytes);
    return await this.#read(isHead);
  }

  /** Sends part of a request and closes the connection, possibly later. Answers are dropped. */
  async breakOff(bytes: Buffer, { afterMs = 0 } = {}): Promise<void> {
    const socket = this.#open();
    await new Promise((done) => socket.write(bytes, done));
    if (afterMs > 0) await new Promise((done) => setTimeout(done, afterMs));
    socket.destroy();
    this.#isClosed = true;
  }

  close(): void {
    this.#socket?.destroy();
  }

  #open(): Socket {
    if (this.#socket !== undefined && !this.#isClosed) return this.#socket;
    this.#received = Buffer.alloc(0);
    this.#isClosed = false;
    const socket = connect(this.#port, "127.0.0.1");
    socket.setNoDelay(true);
    socket.on("data", (data) => {
      this.#received = Buffer.concat([this.#received, data]);
      this.#wake();
    });
    const closed = () => {
      if (this.#socket === socket) this.#isClosed = true;
      this.#wake();
    };
    socket.on("close", closed).on("error", closed);
    this.#socket = socket;
    return socket;
  }

  async #read(isHead: boolean): Promise<RawAnswer> {
    const timer = setTimeout(() => this.#socket?.destroy(new Error("no answer: it hangs")), HANG_MS);
    try {
      for (;;) {
        const answer = this.#parse(isHead);
        if (answer !== undefined) return answer;
        if (this.#isClosed)
          throw new Error(`the connection ended without an answer: ${this.#received.toString()}`);
        await new Promise<void>((wake) => (this.#wake = wake));
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #parse(isHead: boolean): RawAnswer | undefined {
    const end = this.#received.indexOf("\r\n\r\n");
    if (end < 0) return undefined;
    const head = this.#received.subarray(0, end).toString("latin1");
    const status = Number(head.slice(9, 12));
    const field = (name: string) => new RegExp(`^${name}: *(.*)$`, "im").exec(head)?.[1] ?? "";
    const length = isHead || status === 204 ? 0 : Number(field("content-length"));
    if (/^transfer-encoding/im.test(head)) throw new Error("a chunked answer is not expected");
    if (this.#received.length < end + 4 + length) return undefined;
    const body = this.#received.subarray(end + 4, end + 4 + length).toString("utf8");
    this.#received = this.#received.subarray(end + 4 + length);
    if (/^connection: *close/im.test(head)) {
      this.#socket?.destroy();
      this.#isClosed = true;
    }
    return { status, contentType: field("content-type"), body };
  }
}
