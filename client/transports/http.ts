import { idle } from "../../core/clock.ts";
import { LimiterError, Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, meant, pointerTo, violation } from "../../core/violations.ts";
import {
  type Address,
  ADDRESSES,
  callsBy,
  type LimiterCalls,
  type LimiterTransport,
  type PeekRequest,
  type RequestBounds,
  type Shape,
  SHAPES,
  type Signal,
  waitOf,
} from "./transport.ts";

/** Where a limiter is, and how it is reached. */
export interface HttpWay {
  /** The address of the limiter, such as `https://weir.example.workers.dev`. */
  readonly url: string;
  readonly token: string;
  /** A `fetch`; absent: the global one. Its types are the platform's, and this file is read on all of them. */
  readonly fetch?: (url: string, init: never) => Promise<unknown>;
}

/** The limiter over HTTP. */
export function overHttp(
  { url, token, fetch: given = fetch }: HttpWay,
  bounds?: RequestBounds,
): LimiterTransport {
  const send = given as (at: string, init: RequestInit) => Promise<Response>;
  const base = url.replace(/\/+$/, "");
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const requests = new Requests(bounds);
  const make = async (name: keyof LimiterCalls, asked: object, until?: Signal | number): Promise<unknown> => {
    const { method, path, shape, query, isOnlyRead }: Address = ADDRESSES[name];
    const inPath = [...path.matchAll(/:(\w+)/g)].map(([, field = ""]) => field);
    if (method !== "POST" && inPath.length > 0) requireFields(asked, [...inPath, ...(query ?? [])]);
    const [, family = ""] = /^\/v1\/(\w+)/.exec(path) ?? [];
    const filled = path.replaceAll(/:(\w+)/g, (_, field: string) =>
      partOf(asked, field, ...partIn(family, field)),
    );
    const isInPath = ([field]: [string, unknown]) => inPath.includes(field);
    const body =
      inPath.length === 0
        ? asked
        : Object.fromEntries(Object.entries(asked).filter((each) => !isInPath(each)));
    const at = base + filled + (query === undefined ? "" : queryOf(asked as PeekRequest));
    const text = method === "POST" ? { body: jsonOf(body) } : {};
    const read = async (signal: AbortSignal) =>
      answerIn(await send(at, { method, headers, signal, ...text }), shape);
    const isPatient = waitOf(asked) > 0;
    const waiting = typeof until === "number" ? { withinMs: until } : { ended: until };
    return await requests.make(read, { ...waiting, isOnlyRead: isOnlyRead === true, isPatient });
  };
  return { ...callsBy(make), close: () => requests.close() };
}

/** What a part of an address must be, and which problem it is to be none. */
function partIn(
  family: string,
  field: string,
): [allowed: string, kind?: (typeof PROBLEMS)[keyof typeof PROBLEMS]] {
  if (field === "policy") return ["the name of a policy", PROBLEMS.policyNotFound];
  if (field === "key") return ["1 to 512 bytes of UTF-8"];
  return family === "holds"
    ? ["the id of a hold", PROBLEMS.holdNotFound]
    : ["the id of a lease", PROBLEMS.leaseNotFound];
}

/** The limiter says what else is wrong with these. */
function queryOf(asked: PeekRequest): string {
  const { waitFor, waitMs } = asked;
  const query: string[] = [];
  if (waitFor !== undefined) query.push(`waitFor=${partOf(asked, "waitFor", '"idle"')}`);
  if (waitMs !== undefined) {
    requirePlain(asked);
    if (typeof waitMs !== "number")
      throw refusedField(["waitMs"], violation(["waitMs"], waitMs, "an integer"));
    query.push(`waitMs=${encodeURIComponent(waitMs)}`);
  }
  return query.length === 0 ? "" : `?${query.join("&")}`;
}

/**
 * What a response says.
 *
 * @throws LimiterError when the limiter has refused the call
 * @throws Error when whoever answered is no limiter
 */
async function answerIn(response: Response, shape: Shape): Promise<unknown> {
  const { status, url } = response;
  const text = status === 204 ? "" : await response.text();
  const type = response.headers.get("content-type") ?? "no content-type";
  if (status === 204 && shape === "nothing") return undefined;
  const answer = text === "" ? undefined : parsed(text);
  if (type.startsWith("application/problem+json")) throwProblem(answer);
  else if (status === 200 && shape !== "nothing" && SHAPES[shape](answer)) return answer;
  const who = url === "" ? "the address" : url.split("?", 1)[0];
  throw new Error(`${who} does not answer as Weir does: ${status}, ${type}, ${JSON.stringify(clip(text))}`);
}

/** @throws LimiterError if the answer is a problem */
function throwProblem(answer: unknown): void {
  const { type: name } = (answer ?? {}) as { readonly type?: unknown };
  if (typeof name !== "string") return;
  const { errors = [], ...others } = answer as { readonly errors?: unknown };
  const problem = { ...others, errors, code: name.split(":").at(-1) ?? name };
  if (SHAPES.problem(problem))
    throw new LimiterError(problem as unknown as ConstructorParameters<typeof LimiterError>[0]);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/* What callers write into an address, where a wrong value would be another key, or another address. */

/**
 * The field as a part of an address.
 *
 * @param allowed what it must be
 * @param kind of the problem of a text that names nothing
 * @throws LimiterError that names the field, when it is no text, or none that an address can have
 */
function partOf(
  asked: object,
  field: string,
  allowed: string,
  kind: (typeof PROBLEMS)[keyof typeof PROBLEMS] = PROBLEMS.notAllowed,
): string {
  const value = (asked as Readonly<Record<string, unknown>>)[field];
  const isText = typeof value === "string";
  if (isText && value !== "" && value.isWellFormed()) return encodeURIComponent(value);
  throw refusedField([field], violation([field], value, allowed), isText ? kind : PROBLEMS.notAllowed);
}

/** @throws LimiterError that names a field which the call does not know, and the one that was meant */
function requireFields(asked: object, known: readonly string[]): void {
  for (const [name, value] of Object.entries(asked))
    if (value !== undefined && !known.includes(name))
      throw refusedField(
        [name],
        `${clip(name)} is not a field: there are ${known.join(", ")}${meant(name, known)}`,
      );
}

/* What a message can carry. What it cannot is bad input, and no outage. */

/** Nothing that is sent has so many levels. What has more may be without an end. */
const MAX_LEVELS = 32;

/** A message as JSON. @throws LimiterError that names a field which JSON cannot carry, or would carry as another value */
function jsonOf(body: object): string {
  requirePlain(body);
  return JSON.stringify(body);
}

/** @throws LimiterError that names the first field that is no plain data */
function requirePlain(value: unknown, path: readonly string[] = []): void {
  const refuse = (found: string, allowed: string) => {
    const field = path.length === 0 ? "the argument" : clip(path.join("."));
    return refusedField(path, `${field} is ${found}: must be ${allowed}`);
  };
  if (typeof value === "number" && !Number.isFinite(value)) throw refuse(String(value), "a finite number");
  if (["bigint", "function", "symbol"].includes(typeof value))
    throw refuse(`a ${typeof value}`, "plain data, as JSON has it");
  if (typeof value !== "object" || value === null) return;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (!Array.isArray(value) && prototype !== null && Object.getPrototypeOf(prototype) !== null)
    throw refuse(
      "constructor" in value ? `a ${value.constructor.name}` : "no plain object",
      "plain data, as JSON has it",
    );
  if (path.length === MAX_LEVELS) throw refusedField([], `a field is over ${MAX_LEVELS} levels deep`);
  for (const [name, item] of Object.entries(value)) requirePlain(item, [...path, name]);
}

/** The error of a call with one field that is not allowed. */
function refusedField(
  path: readonly string[],
  detail: string,
  kind: (typeof PROBLEMS)[keyof typeof PROBLEMS] = PROBLEMS.notAllowed,
): LimiterError {
  const errors = [{ pointer: pointerTo(path), detail }];
  return new Problem(kind, "one value is not allowed", { errors }).toError();
}

/*
 * HTTP requests in flight. Each has a socket, here and at the limiter, so their number is bounded. A socket keeps a
 * process alive, so a request is aborted soon after its caller has stopped waiting.
 */

/**
 * How much later an answer may still be of use, in milliseconds: a lease is released, a policy becomes known, and the
 * call is more likely carried out. The limiter itself releases the lease of a caller that has hung up.
 */
const LATE_MS = 2_000;
/** The most late requests that are remembered: one whose worker has ended never settles. */
const MAX_LATE = 1_000;

/** `waiting` is the most waiting calls that an object grants one caller. */
export const PROCESS_BOUNDS: RequestBounds = { asking: 256, waiting: 1_000 };
/** In a worker the runtime bounds each request, and a request may end without giving its place back. */
export const UNBOUNDED: RequestBounds = { asking: Infinity, waiting: Infinity };
/** The most calls that wait for a place. A further one fails at once, as if it were not answered. */
export const MAX_QUEUED = 10_000;
export const QUEUE_FULL = `${MAX_QUEUED} calls wait to be sent, which is the most`;

/** How long a caller waits for an answer. */
export interface Waiting {
  /** Aborted when the caller stops waiting. Absent: it does after `withinMs`. */
  readonly ended?: Signal | undefined;
  readonly withinMs?: number | undefined;
  /** A late answer is of no use. */
  readonly isOnlyRead?: boolean;
  /** The limiter may let the call wait for its turn. */
  readonly isPatient?: boolean;
}

/** The requests of one limiter. */
export class Requests {
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
   * Makes a request as soon as there is a place for it, and aborts it soon after its caller has stopped waiting. Without
   * a place by then it is not made.
   */
  async make<Answer>(
    send: (signal: AbortSignal) => Promise<Answer>,
    { ended, withinMs = LATE_MS, isOnlyRead = false, isPatient = false }: Waiting,
  ): Promise<Answer> {
    const request = new AbortController();
    const places = isPatient ? this.#waiting : this.#asking;
    const abort = () => request.abort(new Error("nobody waits for the answer"));
    let cancel = () => {};
    let isMade = false;
    const leave = () => {
      if (!isMade || isOnlyRead || this.#isClosed) return abort();
      this.#remember(request);
      cancel = idle(LATE_MS, abort);
    };
    if (ended === undefined) cancel = idle(withinMs, leave);
    else if (ended.aborted) leave();
    else ended.addEventListener("abort", leave, { once: true });
    try {
      await places.take(request.signal);
      isMade = true;
      try {
        return await send(request.signal);
      } finally {
        places.leave();
      }
    } finally {
      cancel();
      ended?.removeEventListener("abort", leave);
      this.#late.delete(request);
    }
  }

  /** Aborts the requests whose callers have stopped waiting, and from now on each request when its caller does. */
  close(): void {
    this.#isClosed = true;
    for (const request of this.#late) {
      try {
        request.abort(new Error("the limiter is closed"));
      } catch {
        // In a worker, another one's request cannot be aborted. It ends by itself.
      }
    }
  }

  #remember(request: AbortController): void {
    for (const oldest of this.#late) {
      if (this.#late.size < MAX_LATE) break;
      this.#late.delete(oldest);
    }
    this.#late.add(request);
  }
}

/** Bounds how many requests are in flight. Others wait in order of arrival. */
class Places {
  #free: number;
  readonly #queued = new Set<() => void>();

  constructor(places: number) {
    this.#free = places;
  }

  /** @throws Error the reason of `signal`, or that too many wait; then there is no place to leave */
  async take(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#free > 0) {
      this.#free -= 1;
      return;
    }
    if (this.#queued.size >= MAX_QUEUED) throw new Error(QUEUE_FULL);
    await new Promise<void>((begin, fail) => {
      const letIn = () => {
        signal.removeEventListener("abort", leave);
        begin();
      };
      const leave = () => {
        this.#queued.delete(letIn);
        fail(signal.reason);
      };
      this.#queued.add(letIn);
      signal.addEventListener("abort", leave, { once: true });
    });
  }

  leave(): void {
    const [letIn] = this.#queued;
    if (letIn === undefined) {
      this.#free += 1;
      return;
    }
    this.#queued.delete(letIn);
    letIn();
  }
}
