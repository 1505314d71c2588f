/**
 * The load: connections that stay open, and send the next request as soon as the last one is answered.
 *
 * Other load generators build every request again for every connection when there are many bodies. With 10,000 keys
 * that takes longer than the measurement, and the server loses a core to it. Here the bytes of each request are made
 * once, and only the status and the length of an answer are read.
 */
import { connect } from "node:net";

export const CONNECTIONS = Number(process.env["CONNECTIONS"] ?? 32);
/** Requests per second of all connections together; Infinity: each as soon as the last is answered. */
const PER_SECOND = Number(process.env["PER_SECOND"] ?? Infinity);

/** What was measured. Latencies are those of single requests, or of pairs when there is a follow-up. */
export interface Load {
  readonly requestsPerSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** How many requests were answered. */
  readonly count: number;
}

/** Requests that are ready to be sent, and the port to send them to. */
export interface Requests {
  readonly port: number;
  readonly bytes: readonly Buffer[];
  /** Makes a second request from each answer. It is sent before the next request, and both count as one. */
  readonly followUp?: (answer: string) => Buffer;
}

/** A POST of each body to `url`. */
export function requestsFor(
  url: string,
  token: string,
  bodies: readonly string[],
  headers: Readonly<Record<string, string>> = {},
): Requests {
  const { pathname, search, host, port } = new URL(url);
  const further = Object.entries(headers).map(([name, value]) => `\r\n${name}: ${value}`);
  const made = new Map<string, Buffer>();
  const bytes = bodies.map((body) => {
    const head = `POST ${pathname}${search} HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${token}\r\nContent-Type: application/json${further.join("")}`;
    const request =
      made.get(body) ?? Buffer.from(`${head}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
    made.set(body, request);
    return request;
  });
  return { port: Number(port), bytes };
}

/** An acquire with each body, each followed by the release of its lease. */
export function leasesFor(url: string, token: string, bodies: readonly string[]): Requests {
  const followUp = endOf(url, token, (id) => `DELETE /v1/leases/${id}`);
  return { ...requestsFor(`${url}/v1/leases`, token, bodies), followUp };
}

/** A hold with each body, each followed by its settlement. */
export function holdsFor(url: string, token: string, bodies: readonly string[]): Requests {
  const followUp = endOf(url, token, (id) => `POST /v1/holds/${id}/settle`, '{"used":1}');
  return { ...requestsFor(`${url}/v1/holds`, token, bodies), followUp };
}

/** Makes the request that ends the claim in an answer. */
function endOf(url: string, token: string, lineOf: (id: string) => string, body?: string) {
  const { host } = new URL(url);
  const more =
    body === undefined ? "" : `\r\nContent-Type: application/json\r\nContent-Length: ${body.length}`;
  return (answer: string) => {
    const id = /"id":"([^"]+)"/.exec(answer)?.[1];
    if (id === undefined) throw new Error(`no claim: ${answer}`);
    const head = `${lineOf(id)} HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${token}${more}`;
    return Buffer.from(`${head}\r\n\r\n${body ?? ""}`);
  };
}

/**
 * Sends the requests again and again, for `seconds`. Each connection begins at another place of the list.
 *
 * @throws Error when an answer is no decision, or a connection ends
 */
export async function load(requests: Requests, seconds: number): Promise<Load> {
  const { bytes } = requests;
  const latenciesMs: number[] = [];
  const startMs = performance.now();
  const endMs = startMs + seconds * 1_000;
  const connections = Array.from({ length: CONNECTIONS }, (_, index) => {
    const from = Math.floor((index * bytes.length) / CONNECTIONS);
    const everyMs = (1_000 * CONNECTIONS) / PER_SECOND;
    return drive(
      requests,
      from,
      { firstMs: startMs + (index * everyMs) / CONNECTIONS, everyMs, endMs },
      latenciesMs,
    );
  });
  await Promise.all(connections);
  const tookMs = performance.now() - startMs;
  const sorted = Float64Array.from(latenciesMs).toSorted();
  const percentile = (share: number) =>
    Number((sorted[Math.floor(sorted.length * share)] ?? Number.NaN).toFixed(1));
  return {
    requestsPerSecond: (1_000 * latenciesMs.length) / tookMs,
    p50Ms: percentile(0.5),
    p99Ms: percentile(0.99),
    count: latenciesMs.length,
  };
}

/** When a connection sends. With `everyMs` of 0 it sends as soon as the last request is answered. */
interface Schedule {
  readonly firstMs: number;
  readonly everyMs: number;
  readonly endMs: number;
}

function drive(
  { port, bytes, followUp }: Requests,
  from: number,
  { firstMs, everyMs, endMs }: Schedule,
  latenciesMs: number[],
): Promise<void> {
  return new Promise((done, fail) => {
    const socket = connect(port, "127.0.0.1");
    socket.setNoDelay(true).setEncoding("latin1");
    let [next, received, sentAtMs, isFollowed] = [from, "", 0, false];
    let dueAtMs = firstMs;
    const send = () => {
      sentAtMs = performance.now();
      socket.write(bytes[next % bytes.length] ?? "");
      next += 1;
      isFollowed = false;
    };
    // Who is late, because the last answer was, has waited since it was due.
    const sendWhenDue = () => {
      const earlyMs = dueAtMs - performance.now();
      if (everyMs === 0 || earlyMs <= 0) send();
      else setTimeout(send, earlyMs);
      if (everyMs > 0 && earlyMs < 0) sentAtMs = dueAtMs;
      dueAtMs += everyMs;
    };
    socket.on("connect", sendWhenDue);
    socket.on("error", fail);
    socket.on("close", () => fail(new Error("the server closed a connection")));
    socket.on("data", (data: string) => {
      received += data;
      const end = received.indexOf("\r\n\r\n");
      if (end < 0) return;
      const isEmpty = received.startsWith("HTTP/1.1 204");
      const length = isEmpty ? 0 : Number(/content-length: (\d+)/i.exec(received)?.[1]);
      if (received.length < end + 4 + length) return;
      if (!(isEmpty || received.startsWith("HTTP/1.1 200")) || received.includes('"degraded"'))
        return fail(new Error(`not a decision: ${received}`));
      if (followUp !== undefined && !isFollowed) {
        isFollowed = true;
        socket.write(followUp(received));
        received = "";
        return;
      }
      const nowMs = performance.now();
      latenciesMs.push(nowMs - sentAtMs);
      received = "";
      if (Math.max(nowMs, everyMs > 0 ? dueAtMs : 0) < endMs) return sendWhenDue();
      socket.destroy();
      return done();
    });
  });
}

/** Draws `count` keys out of `distinct` by Zipf's law: the n-th most common key comes 1/n as often as the first. */
export function zipfKeys(distinct: number, count: number, random: () => number): string[] {
  const cumulative: number[] = [];
  let sum = 0;
  for (let rank = 1; rank <= distinct; rank += 1) {
    sum += 1 / rank;
    cumulative.push(sum);
  }
  return Array.from({ length: count }, () => {
    const drawn = random() * sum;
    let [low, high] = [0, distinct - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((cumulative[middle] ?? 0) < drawn) low = middle + 1;
      else high = middle;
    }
    return `user:${low}`;
  });
}
