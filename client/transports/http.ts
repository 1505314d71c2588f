/** The limiter over HTTP: its addresses, the requests in flight, and the checks of its answers. */
import { idle, readClockMs } from "../../core/clock.ts";
import { LimiterError, Problem, type ProblemKind, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, meant, pointerTo, violation } from "../../core/violations.ts";
import {
  type Address,
  ADDRESSES,
  type LimiterTransport,
  type PeekRequest,
  type Signal,
} from "./transport.ts";

export interface HttpWay {
  readonly url: string;
  readonly token: string;
  /** A `fetch`; absent: the global one. The type is loose because each platform has its own. */
  readonly fetch?: (url: string, init: never) => Promise<unknown>;
}

export function overHttp(way: HttpWay, bounds?: RequestBounds): LimiterTransport {
  const { url, token, fetch: given = fetch } = way;
  const send = given as (at: string, init: RequestInit) => Promise<Response>;
  const base = url.replace(/\/+$/, "");
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const requests = new Requests(bounds);
  const call = async (name: keyof typeof ADDRESSES, request: object, until?: Signal | number) => {
    const { method, path, shape, on, query = [], isOnlyRead = false }: Address = ADDRESSES[name];
    const inPath = [...path.matchAll(/:(\w+)/g)].map(([, field = ""]) => field);
    if (method !== "POST") requireFields(request, [...inPath, ...query]);
    const filled = path.replaceAll(/:(\w+)/g, (_, field: string) => partOf(request, field, on));
    const at = base + filled + queryOf(request, query);
    const rest = Object.entries(request).filter(([field]) => !inPath.includes(field));
    const body = inPath.length === 0 ? request : Object.fromEntries(rest);
    if (method === "POST") requirePlain(body);
    const init = { method, headers, ...(method === "POST" && { body: JSON.stringify(body) }) };
    const read = async (signal: AbortSignal) => {
      const response = await send(at, { ...init, signal });
      requests.areSeenLeaving = response.headers.has("cf-ray");
      return await answerIn(response, shape);
    };
    return await requests.make(read, until, { isOnlyRead, waitMs: waitOf(request) });
  };
  return { call: call as LimiterTransport["call"], close: () => requests.close() };
}

/** How long a call may wait, in milliseconds; 0 for a value that is no time, which the limiter refuses. */
export function waitOf(request: object): number {
  const { waitMs } = request as Partial<PeekRequest>;
  return typeof waitMs === "number" && Number.isFinite(waitMs) ? Math.max(0, waitMs) : 0;
}

type Part = readonly [allowed: string, problem?: ProblemKind];
const PARTS = {
  waitFor: ['"idle"'],
  policy: ["the name of a policy", PROBLEMS.policyNotFound],
  key: ["1 to 512 bytes of UTF-8"],
  plan: ["the name of a plan"],
  group: ["1 to 128 bytes of UTF-8"],
  hold: ["the id of a hold", PROBLEMS.holdNotFound],
  lease: ["the id of a lease", PROBLEMS.leaseNotFound],
} as const satisfies Readonly<Record<string, Part>>;

/**
 * The field as a part of an address, where a wrong value would be another key, or another address.
 * @throws LimiterError that names the field, if an address cannot have its value
 */
function partOf(request: object, field: string, on?: Address["on"]): string {
  const [allowed, problem]: Part = PARTS[(field === "id" ? on : field) as keyof typeof PARTS];
  const value = (request as Readonly<Record<string, unknown>>)[field];
  const isText = typeof value === "string";
  if (isText && value !== "" && value.isWellFormed()) return encodeURIComponent(value);
  throw refusedField([field], violation([field], value, allowed), isText ? problem : undefined);
}

/** The limiter checks these values further. The plan "" is the policy's own figures. */
function queryOf(request: Partial<PeekRequest>, fields: readonly string[]): string {
  const query = fields.flatMap((field) => {
    const value = request[field as keyof PeekRequest];
    if (value === undefined) return [];
    if (field === "plan" && value === "") return "plan=";
    if (field !== "waitMs") return `${field}=${partOf(request, field)}`;
    requirePlain(request);
    if (typeof value !== "number") throw refusedField([field], violation([field], value, "an integer"));
    return `waitMs=${encodeURIComponent(value)}`;
  });
  return query.length === 0 ? "" : `?${query.join("&")}`;
}

/** @throws LimiterError that names an unknown field, and the one that was probably meant */
function requireFields(request: object, known: readonly string[]): void {
  for (const [name, value] of Object.entries(request))
    if (value !== undefined && !known.includes(name))
      throw refusedField(
        [name],
        `${clip(name)} is not a field: there are ${known.join(", ")}${meant(name, known)}`,
      );
}

/** The most levels of a message. No call has this many, and a cycle has more. */
const MAX_LEVELS = 32;

/** @throws LimiterError that names the first field that JSON cannot carry, or would change */
function requirePlain(value: unknown, path: readonly string[] = []): void {
  const refuse = (found: string, allowed = "plain data, as JSON has it") => {
    const field = path.length === 0 ? "the argument" : clip(path.join("."));
    return refusedField(path, `${field} is ${found}: must be ${allowed}`);
  };
  if (typeof value === "number" && !Number.isFinite(value)) throw refuse(String(value), "a finite number");
  if (["bigint", "function", "symbol"].includes(typeof value)) throw refuse(`a ${typeof value}`);
  if (typeof value !== "object" || value === null) return;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (!Array.isArray(value) && prototype !== null && Object.getPrototypeOf(prototype) !== null)
    throw refuse("constructor" in value ? `a ${value.constructor.name}` : "no plain object");
  if (path.length === MAX_LEVELS) throw refusedField([], `a field is over ${MAX_LEVELS} levels deep`);
  for (const [name, item] of Object.entries(value)) requirePlain(item, [...path, name]);
}

function refusedField(
  path: readonly string[],
  detail: string,
  kind: ProblemKind = PROBLEMS.notAllowed,
): LimiterError {
  const errors = [{ pointer: pointerTo(path), detail }];
  return new Problem(kind, detail, { errors }).toError();
}

/** @throws LimiterError if the limiter has refused the call; any other error if something else answered */
async function answerIn(response: Response, shape: Address["shape"]): Promise<unknown> {
  const { status, url } = response;
  const text = status === 204 ? "" : await response.text();
  const type = response.headers.get("content-type") ?? "no content-type";
  if (status === 204 && shape === "nothing") return undefined;
  const answer = parsed(text);
  if (type.startsWith("application/problem+json")) throwProblem(answer);
  else if (status === 200 && shape !== "nothing" && isOfShape(shape, answer)) return answer;
  const who = url === "" ? "the address" : url.split("?", 1)[0];
  throw new Error(`${who} does not answer as Weir does: ${status}, ${type}, ${JSON.stringify(clip(text))}`);
}

/** @throws LimiterError if the answer is a problem */
export function throwProblem(answer: unknown): void {
  const { type: name, errors = [], ...others } = (answer ?? {}) as Readonly<Record<string, unknown>>;
  if (typeof name !== "string") return;
  const problem: unknown = { ...others, errors, code: name.split(":").at(-1) };
  if (isProblem(problem)) throw new LimiterError(problem as ConstructorParameters<typeof LimiterError>[0]);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** The most requests in flight. Each has a socket, here and at the limiter, which keeps a process alive. */
export interface RequestBounds {
  readonly asking: number;
  /** Those that may wait at the limiter. Counted apart, so a release that ends their wait finds a place. */
  readonly waiting: number;
}

/** `waiting` is the most waiting calls that an object grants one caller. */
export const PROCESS_BOUNDS: RequestBounds = { asking: 256, waiting: 1_000 };
/** In a worker the runtime bounds each request, and a request may end without releasing its place. */
export const UNBOUNDED: RequestBounds = { asking: Infinity, waiting: Infinity };
/** The most calls that wait for a place. A further one fails at once, as unanswered. */
export const MAX_QUEUED = 10_000;
export const QUEUE_FULL = `${MAX_QUEUED} calls wait to be sent, the maximum`;

/** Milliseconds for which a late answer is still of use: it releases a lease, or brings a policy. */
const LATE_MS = 2_000;
/** The most late requests that are remembered: one whose worker has ended never settles. */
const MAX_LATE = 1_000;

class Requests {
  /** On Cloudflare, which names each answer, an aborted call leaves its queue. Plain workerd grants it a lease. */
  areSeenLeaving = false;
  /** Requests whose callers have stopped waiting. */
  readonly #late = new Set<AbortController>();
  readonly #asking: Places;
  readonly #waiting: Places;
  #isClosed = false;

  constructor({ asking, waiting } = PROCESS_BOUNDS) {
    this.#asking = new Places(asking);
    this.#waiting = new Places(waiting);
  }

  /**
   * Makes a request once it has a place, and aborts it when its answer is of no use to a caller that has stopped waiting.
   * @param until as in `LimiterTransport.call`
   * @param isOnlyRead a late answer is of no use
   */
  async make<Answer>(
    send: (signal: AbortSignal) => Promise<Answer>,
    until: Signal | number = LATE_MS,
    { isOnlyRead, waitMs }: { readonly isOnlyRead: boolean; readonly waitMs: number },
  ): Promise<Answer> {
    const sinceMs = readClockMs();
    const request = new AbortController();
    const places = waitMs > 0 ? this.#waiting : this.#asking;
    const abort = () => request.abort(new Error("nobody waits for the answer"));
    let cancel = () => {};
    let isMade = false;
    const leave = () => {
      if (!isMade || isOnlyRead || this.#isClosed) return abort();
      const [oldest] = this.#late;
      if (this.#late.size >= MAX_LATE && oldest !== undefined) this.#late.delete(oldest);
      this.#late.add(request);
      const leftMs = this.areSeenLeaving ? 0 : Math.max(0, sinceMs + waitMs - readClockMs());
      cancel = idle(leftMs + LATE_MS, abort);
    };
    if (typeof until === "number") cancel = idle(until, leave);
    else if (until.aborted) leave();
    else until.addEventListener("abort", leave, { once: true });
    try {
      await places.take(request.signal);
      isMade = true;
      return await send(request.signal).finally(() => places.leave());
    } finally {
      cancel();
      if (typeof until === "object") until.removeEventListener("abort", leave);
      this.#late.delete(request);
    }
  }

  /** Aborts the requests whose callers have stopped waiting, and later ones as their callers stop. */
  close(): void {
    this.#isClosed = true;
    for (const request of this.#late) {
      try {
        request.abort(new Error("the limiter is closed"));
      } catch {
        // In a worker, another request's call cannot be aborted. It ends by itself.
      }
    }
  }
}

/** Bounds the requests in flight. Others wait in order of arrival. */
class Places {
  #free: number;
  readonly #queued = new Set<() => void>();

  constructor(places: number) {
    this.#free = places;
  }

  /** @throws Error the reason of `signal`, or that too many wait; then there is no place to leave */
  async take(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#free > 0) return void (this.#free -= 1);
    if (this.#queued.size >= MAX_QUEUED) throw new Error(QUEUE_FULL);
    await new Promise<void>((begin, fail) => {
      const start = () => {
        signal.removeEventListener("abort", leave);
        begin();
      };
      const leave = () => {
        this.#queued.delete(start);
        fail(signal.reason);
      };
      this.#queued.add(start);
      signal.addEventListener("abort", leave, { once: true });
    });
  }

  leave(): void {
    const [next] = this.#queued;
    if (next === undefined) this.#free += 1;
    else this.#queued.delete(next);
    next?.();
  }
}

/* Checks of answers: a proxy or sign-in page may answer instead. Unknown fields of later versions are ignored. */

type Check = (value: unknown) => boolean;

const isText: Check = (value) => typeof value === "string";
const isFlag: Check = (value) => typeof value === "boolean";
const isNumber: Check = (value) => Number.isFinite(value);
const isMs: Check = (value) => isNumber(value) && (value as number) >= 0;
const isUnits: Check = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const isTable = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const maybe = (check: Check) => (value: unknown) => value === undefined || check(value);
const listOf =
  (check: Check, minLength = 0) =>
  (value: unknown) =>
    Array.isArray(value) && value.length >= minLength && value.every(check);
const tableOf = (check: Check) => (value: unknown) => isTable(value) && Object.values(value).every(check);
const having = (fields: Readonly<Record<string, Check>>) => (value: unknown) =>
  isTable(value) && Object.entries(fields).every(([name, check]) => check(value[name]));

const isClaim = having({ id: isText, expiresAfterMs: isNumber });
const isDecision = having({
  success: isFlag,
  rules: listOf(having({ name: isText, success: isFlag })),
  lease: maybe(isClaim),
  hold: maybe(isClaim),
});
const isRule = having({
  name: isText,
  success: isFlag,
  limit: isNumber,
  remaining: isNumber,
  resetAfterMs: isNumber,
  retryAfterMs: (value) => value === null || isNumber(value),
  reason: isText,
  quotaRemaining: maybe(isNumber),
  delayMs: maybe(isNumber),
});
const isDecided = having({
  rules: listOf(isRule, 1),
  source: maybe(isText),
  reserved: maybe(
    having({
      ttlMs: isMs,
      isNew: isFlag,
      units: tableOf(isUnits),
      prospects: maybe(tableOf(having({ resetAfterMs: isMs, gains: maybe(listOf(isNumber)) }))),
    }),
  ),
  next: maybe(listOf(isRule)),
  firmForMs: maybe(isNumber),
  epoch: maybe(isText),
});
const isProblem = having({
  status: (value) => Number.isInteger(value),
  code: isText,
  title: isText,
  detail: isText,
  errors: maybe(listOf(having({ pointer: isText, detail: isText }))),
});
/** Of a client's slots: with wrong figures it would lease what others have. */
const isSlots = having({
  memory: isText,
  given: maybe(
    having({
      more: isUnits,
      lifeMs: isMs,
      paceMs: (value) => isMs(value) && value !== 0,
      tokens: listOf(isUnits, 2),
      ended: listOf(isText),
    }),
  ),
});
const isAnswer: Check = (value) => {
  if (value === null) return true;
  if (!isTable(value)) return false;
  if ("problem" in value) return isProblem(value["problem"]);
  if ("failed" in value) return isText(value["failed"]);
  if ("slots" in value) return isSlots(value["slots"]);
  return "decision" in value ? isDecision(value["decision"]) : isDecided(value);
};
const isListOfRules = listOf(
  having({ name: isText, unit: isText, capacity: isMs, wholeMs: having({ one: isMs, all: isMs }) }),
  1,
);
const isSeen = maybe(tableOf(listOf(isNumber)));
const isDescription = having({
  version: isText,
  onFailure: isText,
  deadlineMs: (value) => isMs(value) && value !== 0,
  objects: (value) => isText(value) || isUnits(value),
  localDecisions: having({ admits: isFlag, denies: isFlag }),
  reservation: having({ leastMs: isMs, mostMs: isMs }),
  denialTtlMs: isMs,
  shadow: isFlag,
  keyKind: isText,
  retryJitter: maybe((value) => having({ share: isMs })(value) || having({ mostMs: isMs })(value)),
  priorities: listOf(isText),
  defaultPriority: isText,
  seen: isSeen,
  rules: isListOfRules,
  plans: maybe(tableOf(having({ seen: isSeen, rules: isListOfRules }))),
});

const KINDS = {
  text: isText,
  flag: isFlag,
  number: isNumber,
  choice: (value) => value === null || isNumber(value),
  tables: listOf(isTable),
  decisions: listOf(isDecision),
  answers: listOf(isAnswer),
  descriptions: tableOf(isDescription),
} as const satisfies Record<string, Check>;

/** Whether an answer is what the address of its call says. */
export function isOfShape(shape: Address["shape"], answer: unknown): boolean {
  if (shape === "nothing") return answer === undefined;
  if (shape === "decision") return isDecision(answer);
  return isTable(answer) && Object.entries(shape).every(([field, kind]) => KINDS[kind](answer[field]));
}
