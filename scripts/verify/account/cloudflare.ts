/**
 * What Cloudflare's API answers about an account: its classes of objects, and its analytics. An answer that cannot be used
 * is a problem in words, which name no secret.
 * https://developers.cloudflare.com/durable-objects/observability/metrics-and-analytics/
 */
import { pause } from "../calls.ts";

export type Answer<Value> = { readonly value: Value } | { readonly problem: string };

export interface Namespace {
  readonly id: string;
  readonly script: string;
  readonly class: string;
}

/** What was used in a time, as it is billed. */
export interface Usage {
  readonly workerRequests: number;
  readonly objectRequests: number;
  readonly rowsRead: number;
  readonly rowsWritten: number;
  readonly gbSeconds: number;
}

/** The free plan's day. https://developers.cloudflare.com/durable-objects/platform/pricing/ */
const FREE_DAY: Usage = {
  workerRequests: 100_000,
  objectRequests: 100_000,
  rowsRead: 5_000_000,
  rowsWritten: 100_000,
  gbSeconds: 13_000,
};

/** Use, and how much of a free day that is. */
export function partsOfFreeDay(used: Usage): string {
  const kinds = Object.entries(FREE_DAY) as [keyof Usage, number][];
  const percent = (kind: keyof Usage, most: number) => Math.round((100 * used[kind]) / most);
  return kinds
    .map(([kind, most]) => `${WORDS[kind]} ${Math.round(used[kind])} (${percent(kind, most)} %)`)
    .join(", ");
}
const WORDS: Readonly<Record<keyof Usage, string>> = {
  workerRequests: "worker requests",
  objectRequests: "object requests",
  rowsRead: "rows read",
  rowsWritten: "rows written",
  gbSeconds: "GB-s",
};

interface Access {
  readonly accountId: string;
  readonly token: string;
  /** As wrangler reads it from CLOUDFLARE_API_BASE_URL. */
  readonly baseUrl?: string | undefined;
  /** The longest wait for an answer, in milliseconds. */
  readonly patienceMs?: number;
  /** The longest pause that a 429 may demand, in milliseconds. */
  readonly maxPauseMs?: number;
}

const BASE_URL = "https://api.cloudflare.com/client/v4";
const PATIENCE_MS = 30_000;
const MAX_PAUSE_MS = 60_000;
const ATTEMPTS = 3;
const MAX_ANSWER_BYTES = 4 * 2 ** 20;
const PERMISSIONS = "Account Analytics: Read and Workers Scripts: Edit";

/** The text on one line, without control characters and secrets, and not too long. */
export function plain(text: string, secrets: readonly string[], maxLength = 300): string {
  const hidden = secrets
    .filter((secret) => secret !== "")
    .reduce((left, secret) => left.replaceAll(secret, "***"), text);
  const line = hidden.replaceAll(/[\p{Cc}\s]+/gu, " ").trim();
  return line.length > maxLength ? `${line.slice(0, maxLength)}…` : line;
}

export class CloudflareApi {
  readonly #accountId: string;
  readonly #token: string;
  readonly #baseUrl: string;
  readonly #patienceMs: number;
  readonly #maxPauseMs: number;

  constructor({ accountId, token, baseUrl = BASE_URL, patienceMs, maxPauseMs }: Access) {
    this.#accountId = accountId;
    this.#token = token;
    this.#baseUrl = baseUrl;
    this.#patienceMs = patienceMs ?? PATIENCE_MS;
    this.#maxPauseMs = maxPauseMs ?? MAX_PAUSE_MS;
  }

  /** The classes of objects of the account, of all its workers. */
  async namespaces(): Promise<Answer<readonly Namespace[]>> {
    const path = `/accounts/${this.#accountId}/workers/durable_objects/namespaces?per_page=1000`;
    const answer = await this.#ask(path);
    if ("problem" in answer) return answer;
    const { result } = answer.value;
    if (!Array.isArray(result)) return { problem: "the list of namespaces has no result" };
    return {
      value: (result as readonly unknown[]).map(recordOf).map((each) => ({
        id: textOf(each["id"]),
        script: textOf(each["script"]),
        class: textOf(each["class"]),
      })),
    };
  }

  /**
   * What the account used between two instants.
   * @param of a worker and the ids of its namespaces; absent: of the whole account
   */
  async usage(
    fromMs: number,
    toMs: number,
    of?: { readonly script: string; readonly namespaceIds: readonly string[] },
  ): Promise<Answer<Usage>> {
    const when = `datetime_geq: ${instant(fromMs)}, datetime_leq: ${instant(toMs)}`;
    const script = of === undefined ? "" : `scriptName: ${JSON.stringify(of.script)}, `;
    const ids = of === undefined ? "" : `namespaceId_in: ${JSON.stringify(of.namespaceIds)}, `;
    const rows = await this.#query({
      workersInvocationsAdaptive: `(limit: 1000, filter: { ${script}${when} }) { sum { requests } }`,
      durableObjectsInvocationsAdaptiveGroups: `(limit: 1000, filter: { ${script}${when} }) { sum { requests } }`,
      durableObjectsPeriodicGroups: `(limit: 1000, filter: { ${ids}${when} }) { sum { duration rowsRead rowsWritten } }`,
    });
    if ("problem" in rows) return rows;
    const [worker = [], objects = [], periodic = []] = rows.value;
    const found = {
      workerRequests: sum(worker, "requests"),
      objectRequests: sum(objects, "requests"),
      rowsRead: sum(periodic, "rowsRead"),
      rowsWritten: sum(periodic, "rowsWritten"),
      gbSeconds: sum(periodic, "duration"),
    };
    const [missing] = Object.entries(found).find(([, figure]) => figure === undefined) ?? [];
    return missing === undefined
      ? { value: found as Usage }
      : { problem: `the analytics have no number for ${missing}` };
  }

  /** The requests to objects of a namespace, by the place in which these ran. */
  async colos(
    fromMs: number,
    toMs: number,
    namespaceId: string,
  ): Promise<Answer<ReadonlyMap<string, number>>> {
    const when = `datetime_geq: ${instant(fromMs)}, datetime_leq: ${instant(toMs)}`;
    const id = `namespaceId: ${JSON.stringify(namespaceId)}`;
    const rows = await this.#query({
      durableObjectsInvocationsAdaptiveGroups: `(limit: 100, filter: { ${id}, ${when} }) { sum { requests } dimensions { coloCode } }`,
    });
    if ("problem" in rows) return rows;
    const colos = new Map<string, number>();
    for (const row of rows.value[0] ?? []) {
      const colo = plain(textOf(recordOf(row["dimensions"])["coloCode"]), [], 20);
      const requests = sum([row], "requests");
      if (colo === "" || requests === undefined) return { problem: "the analytics name no place of objects" };
      colos.set(colo, (colos.get(colo) ?? 0) + requests);
    }
    return { value: colos };
  }

  /** The rows of each of these datasets, in their order. */
  async #query(
    datasets: Readonly<Record<string, string>>,
  ): Promise<Answer<readonly (readonly Record<string, unknown>[])[]>> {
    const fields = Object.entries(datasets).map(([name, rest]) => name + rest);
    const account = `accounts(filter: { accountTag: ${JSON.stringify(this.#accountId)} })`;
    const answer = await this.#ask("/graphql", {
      query: `{ viewer { ${account} { ${fields.join(" ")} } } }`,
    });
    if ("problem" in answer) return answer;
    const { accounts } = recordOf(recordOf(answer.value["data"])["viewer"]);
    const [first] = Array.isArray(accounts) ? (accounts as unknown[]) : [];
    if (first === undefined)
      return { problem: "the analytics have no such account: CLOUDFLARE_API_TOKEN must be of it" };
    const rows = Object.keys(datasets).map((name) => recordOf(first)[name]);
    const missing = rows.findIndex((each) => !Array.isArray(each));
    if (missing >= 0) return { problem: `the analytics have no dataset ${Object.keys(datasets)[missing]}` };
    return { value: rows.map((each) => (each as unknown[]).map(recordOf)) };
  }

  async #ask(path: string, body?: object): Promise<Answer<Readonly<Record<string, unknown>>>> {
    for (let attempt = 1; ; attempt += 1) {
      const answer = await this.#askOnce(path, body);
      if (!("againAfterMs" in answer)) return answer;
      if (attempt === ATTEMPTS) return { problem: answer.problem };
      await pause(answer.againAfterMs);
    }
  }

  async #askOnce(
    path: string,
    body: object | undefined,
  ): Promise<
    | { readonly value: Readonly<Record<string, unknown>> }
    | { readonly problem: string }
    | { readonly problem: string; readonly againAfterMs: number }
  > {
    const host = plain(this.#baseUrl, [this.#token], 100);
    try {
      const response = await fetch(this.#baseUrl + path, {
        method: body === undefined ? "GET" : "POST",
        headers: { authorization: `Bearer ${this.#token}`, "content-type": "application/json" },
        // The token is not sent to another address.
        redirect: "error",
        signal: AbortSignal.timeout(this.#patienceMs),
        ...(body && { body: JSON.stringify(body) }),
      });
      const { status, headers } = response;
      const text = await textWithin(response, MAX_ANSWER_BYTES);
      if (text === undefined) return { problem: `${host} answers more than ${MAX_ANSWER_BYTES} bytes` };
      const answered = parsed(text);
      const says = plain(messagesIn(answered) ?? text, [this.#token]);
      if (status === 401 || status === 403)
        return {
          problem: `CLOUDFLARE_API_TOKEN is refused (${status}): it must be of this account, and needs ${PERMISSIONS}: ${says}`,
        };
      if (status === 429 || status >= 500) {
        const againAfterMs = status === 429 ? this.#pauseOf(headers.get("retry-after")) : 1_000;
        return {
          problem: `${host} answers ${status}: ${says}`,
          againAfterMs: Math.min(againAfterMs, this.#maxPauseMs),
        };
      }
      if (answered === undefined) return { problem: `${host} answers no JSON (${status}): ${says}` };
      const isRefused = !response.ok || messagesIn(answered) !== undefined;
      return isRefused ? { problem: `${host} answers ${status}: ${says}` } : { value: answered };
    } catch (error) {
      const isLate = error instanceof DOMException && error.name === "TimeoutError";
      const how = isLate
        ? `does not answer within ${this.#patienceMs} ms`
        : `is not reached: ${causeOf(error)}`;
      return {
        problem: plain(`${host} ${how}`, [this.#token]),
        againAfterMs: Math.min(1_000, this.#maxPauseMs),
      };
    }
  }

  #pauseOf(retryAfter: string | null): number {
    const seconds = Number(retryAfter ?? Number.NaN);
    return seconds >= 0 ? seconds * 1_000 : 5_000;
  }
}

function instant(ms: number): string {
  return JSON.stringify(new Date(ms).toISOString());
}

/** The body as text; `undefined`: it is longer than that. */
async function textWithin({ body }: Response, maxBytes: number): Promise<string | undefined> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const part of body ?? []) {
    bytes += part.byteLength;
    if (bytes > maxBytes) return undefined;
    parts.push(part);
  }
  return Buffer.concat(parts).toString("utf8");
}

function parsed(text: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

/** The messages of an answer's errors; `undefined`: it has none. */
function messagesIn(answered: Readonly<Record<string, unknown>> | undefined): string | undefined {
  const errors = answered?.["errors"];
  if (!Array.isArray(errors) || errors.length === 0) return undefined;
  return errors.map((each) => textOf(recordOf(each)["message"]) || "an error without a message").join("; ");
}

function causeOf(error: unknown): string {
  const { cause } = error as { readonly cause?: { readonly code?: string; readonly message?: string } };
  return cause?.code ?? cause?.message ?? String(error);
}

function recordOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** The sum of a field; `undefined`: a row has no such number. No row: nothing was used. */
function sum(rows: readonly Record<string, unknown>[], field: string): number | undefined {
  const all = rows.map((row) => recordOf(row["sum"])[field]);
  if (!all.every((each) => typeof each === "number" && Number.isFinite(each))) return undefined;
  return all.reduce((total: number, each) => total + (each as number), 0);
}
