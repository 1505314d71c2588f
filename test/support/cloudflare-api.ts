import { once } from "node:events";
/** A server in place of Cloudflare's API, which answers as a test says. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface ApiRequest {
  readonly path: string;
  readonly authorization: string | undefined;
  /** The GraphQL query; empty: it is no query. */
  readonly query: string;
}

export interface ApiReply {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** A text as it is, or a value as JSON. Absent: there is no answer. */
  readonly body?: unknown;
}

export interface Api {
  readonly url: string;
  readonly requests: readonly ApiRequest[];
  stop(): Promise<void>;
}

export async function startApi(reply: (request: ApiRequest) => ApiReply): Promise<Api> {
  const requests: ApiRequest[] = [];
  const server = createServer((request, response) => void answer(request, response));
  const answer = async (request: IncomingMessage, response: ServerResponse) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const text = Buffer.concat(parts).toString();
    const { query = "" } = (text === "" ? {} : JSON.parse(text)) as { query?: string };
    const asked = { path: request.url ?? "", authorization: request.headers.authorization, query };
    requests.push(asked);
    const { status = 200, headers = {}, body } = reply(asked);
    if (body === undefined) return;
    response.writeHead(status, headers).end(typeof body === "string" ? body : JSON.stringify(body));
  };
  return { ...(await listening(server)), requests };
}

async function listening(server: Server) {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const stop = async () => {
    server.closeAllConnections();
    server.close();
    await once(server, "close");
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, stop };
}

/** In place of an address of workers.dev: forwards to a worker with its token, and notes which came, and where to. */
export async function startFront(to: { readonly url: string; readonly token: string }) {
  const tokens = new Set<string>();
  const paths: string[] = [];
  const server = createServer((request, response) => void forward(request, response));
  const forward = async (request: IncomingMessage, response: ServerResponse) => {
    const given = request.headers.authorization?.replace("Bearer ", "");
    if (given !== undefined) tokens.add(given);
    paths.push(request.url ?? "");
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const answered = await fetch(to.url + request.url, {
      method: request.method ?? "GET",
      headers: { authorization: `Bearer ${to.token}`, "content-type": "application/json" },
      ...(parts.length > 0 && { body: Buffer.concat(parts) }),
    }).catch(() => undefined);
    response.writeHead(answered?.status ?? 502).end(await answered?.text());
  };
  return { ...(await listening(server)), tokens, paths };
}

export interface Recorded {
  readonly id: string;
  readonly name: string;
  readonly script: string;
  readonly class: string;
  readonly use_sqlite: boolean;
}

/** An entry of the list of namespaces, as the API has it. */
export function namespaceOf(script: string, className: string): Recorded {
  return {
    id: `${script} ${className}`,
    name: `${script}_${className}`,
    script,
    class: className,
    use_sqlite: true,
  };
}

/** A list of namespaces as the API answers it. */
export function listOf(namespaces: readonly Recorded[]): object {
  return {
    result: namespaces,
    success: true,
    errors: [],
    messages: [],
    result_info: { page: 1, per_page: 1_000, count: namespaces.length, total_count: namespaces.length },
  };
}

const SUMS = { workersInvocationsAdaptive: { requests: 1_000_000, errors: 2, subrequests: 9 } };
const OF_OBJECTS = { requests: 100_000, errors: 0, wallTime: 5 };
const PERIODIC = { duration: 40, activeTime: 312_500_000, rowsRead: 7_000, rowsWritten: 2_000 };

/** Analytics as the API answers them: a million worker requests, 40 GB-s, and objects in two places. */
export function analytics(query: string): object {
  const objects = query.includes("coloCode")
    ? [
        { sum: { requests: 900 }, dimensions: { coloCode: "AMS" } },
        { sum: { requests: 100 }, dimensions: { coloCode: "FRA" } },
      ]
    : [{ sum: OF_OBJECTS }];
  const account = {
    workersInvocationsAdaptive: [{ sum: SUMS.workersInvocationsAdaptive }],
    durableObjectsInvocationsAdaptiveGroups: objects,
    durableObjectsPeriodicGroups: [{ sum: PERIODIC, dimensions: {} }],
  };
  return { data: { viewer: { accounts: [account] } }, errors: null };
}
