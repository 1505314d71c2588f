/** Calls a served limiter over open connections, and records when each call was sent and answered. */
import { Agent, request } from "node:http";
import { TOKENS } from "./fixtures.ts";

export interface TimedAnswer {
  readonly sentAtMs: number;
  readonly receivedAtMs: number;
  readonly status: number;
  readonly body: Record<string, unknown>;
}

export class HttpClient {
  readonly #url: string;
  readonly #agent: Agent;
  readonly #headers: Readonly<Record<string, string>>;

  /** @param headers of every call. Without an `authorization` the calls are those of the token "full" */
  constructor(url: string, connections: number, headers: Readonly<Record<string, string>> = {}) {
    this.#url = url;
    this.#headers = headers;
    this.#agent = new Agent({ keepAlive: true, maxSockets: connections });
  }

  /** Rejects when there is no answer: the connection broke, or was refused. */
  call(method: string, path: string, body?: unknown): Promise<TimedAnswer> {
    const text = body === undefined ? "" : JSON.stringify(body);
    return new Promise((resolve, reject) => {
      const headers = {
        authorization: `Bearer ${TOKENS.full}`,
        ...this.#headers,
        ...(text !== "" && { "content-type": "application/json", "content-length": Buffer.byteLength(text) }),
      };
      let sentAtMs = Date.now();
      const sent = request(`${this.#url}${path}`, { method, agent: this.#agent, headers }, (response) => {
        let received = "";
        response.setEncoding("utf8");
        response.on("data", (chunk: string) => (received += chunk));
        response.on("error", reject);
        response.on("end", () => {
          const answer = received === "" ? {} : (JSON.parse(received) as Record<string, unknown>);
          resolve({ sentAtMs, receivedAtMs: Date.now(), status: response.statusCode ?? 0, body: answer });
        });
      });
      sent.on("error", reject);
      // A call may wait for a connection. It is sent only once it has one.
      sent.on("socket", () => (sentAtMs = Date.now()));
      sent.end(text);
    });
  }

  limit(policy: string, key: string, fields: Record<string, unknown> = {}): Promise<TimedAnswer> {
    return this.call("POST", "/v1/limit", { policy, key, ...fields });
  }

  peek(policy: string, key: string): Promise<TimedAnswer> {
    return this.call("GET", `/v1/policies/${policy}/keys/${encodeURIComponent(key)}`);
  }

  close(): void {
    this.#agent.destroy();
  }
}
