/** A receiver of notices over HTTP, which checks each signature, and behaves as badly as it is told. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Webhook } from "standardwebhooks";

export const NOTICES_SECRET = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;

export interface Received {
  readonly id: string;
  readonly type: string;
  readonly timestamp: string;
  readonly data: {
    readonly policy: string;
    readonly rule: string;
    readonly key: string;
    readonly threshold: number;
    readonly limit: number;
    readonly used: number;
    readonly resetAfterMs: number;
  };
}

/** `flood`: 10 MB in answer; `drip`: the same, without an end. */
export type Manner = "ok" | "fail" | "hang" | "redirect" | "flood" | "drip";

export class NoticeReceiver {
  manner: Manner = "ok";
  /** Every attempt, in the order in which they came. */
  readonly attempts: Received[] = [];
  /** Those that were answered with 200. */
  readonly accepted: Received[] = [];
  /** Requests that came where a redirect led. */
  elsewhere = 0;
  readonly #server = createServer((request, response) => void this.#answer(request, response));
  readonly #hanging: ServerResponse[] = [];

  async listen(): Promise<string> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    return `http://127.0.0.1:${this.port}/notices`;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  of(key: string): Received[] {
    return this.accepted.filter(({ data }) => data.key === key);
  }

  close(): void {
    for (const each of this.#hanging) each.destroy();
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let text = "";
    for await (const chunk of request) text += String(chunk);
    if (request.url !== "/notices") {
      this.elsewhere += 1;
      response.end();
      return;
    }
    const headers = request.headers as Record<string, string>;
    const body = new Webhook(NOTICES_SECRET).verify(text, headers) as Omit<Received, "id">;
    const received = { id: headers["webhook-id"] ?? "", ...body };
    this.attempts.push(received);
    this.#behave(received, response);
  }

  #behave(received: Received, response: ServerResponse): void {
    switch (this.manner) {
      case "ok":
        this.accepted.push(received);
        response.end("thanks");
        return;
      case "fail":
        response.writeHead(500).end("no");
        return;
      case "hang":
        this.#hanging.push(response);
        return;
      case "redirect":
        response.writeHead(307, { location: `http://127.0.0.1:${this.port}/elsewhere` }).end();
        return;
      case "flood":
        this.accepted.push(received);
        response.on("error", () => undefined);
        response.end(Buffer.alloc(10 * 2 ** 20));
        return;
      case "drip":
        this.accepted.push(received);
        response.on("error", () => undefined);
        response.write(Buffer.alloc(10 * 2 ** 20));
        this.#hanging.push(response);
    }
  }
}
