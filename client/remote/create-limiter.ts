import { unsleepingTime } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { AS_VALUE } from "../../core/protocol/problems.ts";
import {
  requireGiven,
  requireInteger,
  requireKnownOptions,
  requireMethods,
  requireText,
  violation,
} from "../../core/violations.ts";
import type { ClientOptions, Limiter } from "../limiter.ts";
import { type HttpWay, isOfShape, overHttp, type RequestBounds, throwProblem } from "../transports/http.ts";
import {
  type AcquireRequest,
  ADDRESSES,
  type LimiterCalls,
  type LimiterTransport,
} from "../transports/transport.ts";
import { RemoteLimiter } from "./remote-limiter.ts";

export type Way = HttpWay | { readonly service: LimiterCalls };

/** The limiters of each service binding, by options: a worker may create its limiter in each request. */
const byService = new WeakMap<LimiterCalls, Map<string, Limiter>>();

/** Makes a limiter for `createLimiter`. @param inBackground is required where requests end the work */
export function makeLimiter(
  given: Way & ClientOptions,
  inBackground: (work: Promise<unknown>) => void,
  bounds?: RequestBounds,
): Limiter {
  const options = checkedOptions(given);
  const make = (transport: LimiterTransport) =>
    new RemoteLimiter({ transport, time: unsleepingTime(bounds === undefined), inBackground }, options);
  if (!("service" in given)) return endingWithProcess(make(overHttp(checkedWay(given), bounds)));
  requireGiven("service", given.service, SERVICE);
  requireMethods("service", given.service, ["limit"], SERVICE);
  const known = byService.get(given.service) ?? new Map<string, Limiter>();
  byService.set(given.service, known);
  const name = JSON.stringify(options);
  const limiter =
    known.get(name) ?? endingWithProcess(make(overService(given.service)), () => known.delete(name));
  known.set(name, limiter);
  return limiter;
}

const KNOWN = ["url", "token", "fetch", "service", "policy", "deadlineMs", "onFailure"];
const SERVICE = "a service binding to the entrypoint Limiter";
const MAX_DEADLINE_MS = 600_000;

/** @throws TypeError with the option and what is allowed, since a wrong one would resemble an outage */
function checkedOptions(given: Way & ClientOptions): ClientOptions {
  requireKnownOptions(given, KNOWN);
  const { policy, deadlineMs, onFailure } = given;
  requireText("policy", policy, "the name of a policy");
  requireInteger("deadlineMs", deadlineMs, 1, MAX_DEADLINE_MS);
  if (onFailure !== undefined && onFailure !== "closed" && onFailure !== "open")
    throw new TypeError(violation(["onFailure"], onFailure, '"closed" or "open"'));
  return {
    ...(policy !== undefined && { policy }),
    ...(deadlineMs !== undefined && { deadlineMs }),
    ...(onFailure !== undefined && { onFailure }),
  };
}

/** @throws TypeError for a wrong address or token */
function checkedWay(way: HttpWay): HttpWay {
  const { url, token } = way;
  if (typeof url !== "string" || !/^https?:\/\//.test(url))
    throw new TypeError(violation(["url"], url, "the address of a limiter, https://..."));
  const given = typeof token === "string" && token !== "" ? token : undefined;
  requireGiven("token", given, "a token of the limiter, with the scopes limit and reserve");
  // A header takes no other characters, so each call would fail.
  if (!/^[!-~]+$/.test(token))
    throw new TypeError("token has a space, line break or character beyond ASCII, which no token has");
  return way;
}

/** Milliseconds that a process waits on SIGTERM for units to be returned. */
const MAX_MS = 1_000;

const openLimiters = new Set<RemoteLimiter>();
let isListening = false;

/** Returns the limiter's units when the process ends, on SIGTERM or because it is idle. */
function endingWithProcess(limiter: RemoteLimiter, onClose?: () => void): Limiter {
  openLimiters.add(limiter);
  // Node, Deno and Bun have these; a worker has none.
  const { process } = globalThis as { readonly process?: Partial<NodeJS.Process> };
  if (!isListening && process?.on !== undefined && process.kill !== undefined) {
    isListening = true;
    listen(process as NodeJS.Process);
  }
  const close = limiter.close.bind(limiter);
  limiter.close = async () => {
    openLimiters.delete(limiter);
    onClose?.();
    await close();
  };
  return limiter;
}

/** A SIGTERM listener prevents the default exit, so if it is the only one it ends the process. */
function listen(process: NodeJS.Process): void {
  process.on("beforeExit", () => {
    // Returning units keeps the process alive briefly, and then this event comes again.
    for (const limiter of openLimiters) if (limiter.isHolding) void limiter.flush();
  });
  const onSigterm = () => {
    const closed = Promise.allSettled([...openLimiters].map((limiter) => limiter.close()));
    void Promise.race([closed, new Promise((done) => setTimeout(done, MAX_MS))]).then(() => {
      process.off("SIGTERM", onSigterm);
      if (process.listenerCount("SIGTERM") === 0) process.kill(process.pid, "SIGTERM");
    });
  };
  process.on("SIGTERM", onSigterm);
}

/** The service binding as a transport. A lease outlives its request, unless it has a grace or is resumed. */
export function overService(service: LimiterCalls): LimiterTransport {
  const call = async (name: keyof LimiterCalls, request: object): Promise<unknown> => {
    const { shape } = ADDRESSES[name];
    const { graceMs, resume } = request as AcquireRequest;
    const isLinked = graceMs !== undefined || resume !== undefined;
    const params = name === "acquire" && !isLinked ? { ...request, detached: true } : request;
    const calls = service as Readonly<Record<typeof name, (params: never, how: string) => Promise<unknown>>>;
    const answer = await calls[name](params as never, AS_VALUE);
    throwProblem(answer);
    if (shape === "nothing") return undefined;
    if (!isOfShape(shape, answer))
      throw new Error(`service does not answer ${name} as Weir does: must be ${SERVICE}`);
    return name === "acquire" && isLinked ? withoutLink(answer as Decision) : answer;
  };
  return { call: call as LimiterTransport["call"] };
}

/** A grant as a plain decision, which keeps the link alive where neither a copy nor JSON includes it. */
function withoutLink(grant: Decision): Decision {
  const { slot: _, renew: _renew, release: _release, ...decision } = grant as Decision & Partial<Attached>;
  return Object.defineProperty(decision, "link", { value: grant });
}
