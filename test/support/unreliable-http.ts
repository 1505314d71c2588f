/** An HTTP proxy with the faults of networks and services: delays, losses, wrong answers. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { seededRandom } from "./random.ts";

export type Fault =
  | { readonly kind: "pass" }
  /** The request waits this long before it is forwarded. */
  | { readonly kind: "delay-request"; readonly ms: number }
  /** The request is forwarded at once, and its reply waits this long. */
  | { readonly kind: "delay-reply"; readonly ms: number }
  /** Never forwarded; the connection is reset. */
  | { readonly kind: "lose-request" }
  /** Forwarded and executed; the connection is reset instead of a reply. */
  | { readonly kind: "lose-reply" }
  /** Never forwarded, never answered. */
  | { readonly kind: "hang" }
  /** Forwarded and executed, never answered. */
  | { readonly kind: "hang-reply" }
  /** Never forwarded; answered with this instead. */
  | { readonly kind: "answer"; readonly status: number; readonly body: string; readonly contentType?: string }
  /** Forwarded twice, one after the other; answered with the second reply. */
  | { readonly kind: "duplicate" };

export interface Unreliable {
  readonly url: string;
  /** From now on each request has this fault with this probability. Absent: all have it. */
  setFault(fault: Fault, probability?: number): void;
  requests(): number;
  /** A duplicate counts twice. */
  forwarded(): number;
  /** The most requests that waited for their answer at one time, without those kept back. */
  mostAtOnce(): number;
  /** The number of requests that arrived while the proxy had its most waiting for their answer. */
  keptBack(): number;
  stop(): Promise<void>;
}

/**
 * Starts a proxy in front of `targetUrl`, without faults. The seed repeats which requests are hit.
 * @param connections how many requests wait for their answer at a time. Others queue in order, as in a
 * runtime that bounds its connections
 */
export async function startUnreliable(
  targetUrl: string,
  seed = 1,
  connections = Infinity,
): Promise<Unreliable> {
  const random = seededRandom(seed);
  let fault: Fault = { kind: "pass" };
  let faultProbability = 1;
  const counts = { requests: 0, forwarded: 0 };
  const places = new Places(connections);
  const server = createServer((request, response) => {
    counts.requests += 1;
    // A number is drawn for every request, hit or not, so that only the seed decides which are hit.
    const isHit = random() < faultProbability;
    const forward = async (body: Buffer) => {
      counts.forwarded += 1;
      return await send(targetUrl, request, body);
    };
    places.take(response, () => {
      handle(isHit ? fault : { kind: "pass" }, request, response, forward).catch((error: unknown) => {
        // The caller may have left meanwhile.
        answer(response, { status: 502, contentType: "text/plain", body: Buffer.from(String(error)) });
      });
    });
  });
  server.keepAliveTimeout = 120_000;
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    setFault: (next, probability = 1) => {
      fault = next;
      faultProbability = probability;
    },
    requests: () => counts.requests,
    forwarded: () => counts.forwarded,
    mostAtOnce: () => places.mostTaken,
    keptBack: () => places.keptBack,
    stop: async () => {
      const closed = new Promise((done) => server.close(done));
      server.closeAllConnections();
      await closed;
    },
  };
}

/** Bounds the requests that wait for their answer, and queues the others in order. */
class Places {
  readonly #connections: number;
  readonly #taken = new Set<ServerResponse>();
  readonly #waiting = new Map<ServerResponse, () => void>();
  mostTaken = 0;
  keptBack = 0;

  constructor(connections: number) {
    this.#connections = connections;
  }

  /** Calls `begin` when there is a place, unless the caller has left by then. */
  take(response: ServerResponse, begin: () => void): void {
    // `prefinish`: before the caller can know that it is answered. `close`: the caller has left.
    for (const event of ["prefinish", "close"]) response.once(event, () => this.#leave(response));
    if (this.#taken.size >= this.#connections) this.keptBack += 1;
    this.#waiting.set(response, begin);
    this.#letIn();
  }

  #leave(response: ServerResponse): void {
    this.#waiting.delete(response);
    this.#taken.delete(response);
    this.#letIn();
  }

  #letIn(): void {
    for (const [response, begin] of this.#waiting) {
      if (this.#taken.size >= this.#connections) return;
      this.#waiting.delete(response);
      this.#taken.add(response);
      this.mostTaken = Math.max(this.mostTaken, this.#taken.size);
      begin();
    }
  }
}

interface Reply {
  readonly status: number;
  readonly contentType: string;
  readonly body: Buffer;
}

async function handle(
  fault: Fault,
  request: IncomingMessage,
  response: ServerResponse,
  forward: (body: Buffer) => Promise<Reply>,
): Promise<void> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const body = Buffer.concat(chunks);
  switch (fault.kind) {
    case "pass":
      return answer(response, await forward(body));
    case "delay-request":
      await delay(fault.ms);
      return answer(response, await forward(body));
    case "delay-reply": {
      const reply = await forward(body);
      await delay(fault.ms);
      return answer(response, reply);
    }
    case "lose-request":
      return reset(request);
    case "lose-reply":
      await forward(body);
      return reset(request);
    case "hang":
      return;
    case "hang-reply":
      await forward(body);
      return;
    case "answer": {
      const { status, contentType = "application/json" } = fault;
      return answer(response, { status, contentType, body: Buffer.from(fault.body) });
    }
    case "duplicate":
      await forward(body);
      return answer(response, await forward(body));
    default:
      return fault satisfies never;
  }
}

/** Forwards a request, with only the headers that the target reads. */
async function send(
  targetUrl: string,
  { method = "GET", url = "/", headers }: IncomingMessage,
  body: Buffer,
): Promise<Reply> {
  const passedOn: Record<string, string> = {};
  for (const name of ["authorization", "content-type", "upstash-encoding"]) {
    const value = headers[name];
    if (typeof value === "string") passedOn[name] = value;
  }
  const hasBody = method !== "GET" && method !== "HEAD";
  const reply = await fetch(targetUrl + url, { method, headers: passedOn, ...(hasBody && { body }) });
  return {
    status: reply.status,
    contentType: reply.headers.get("content-type") ?? "text/plain",
    body: Buffer.from(await reply.arrayBuffer()),
  };
}

function answer(response: ServerResponse, { status, contentType, body }: Reply): void {
  response.writeHead(status, { "Content-Type": contentType, "Content-Length": body.length });
  response.end(body);
}

function reset({ socket }: IncomingMessage): void {
  socket.resetAndDestroy();
}

function delay(ms: number): Promise<void> {
  return new Promise((done) => setTimeout(done, ms));
}
