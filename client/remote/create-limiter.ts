import { unsleepingTime } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { requireGiven, requireInteger, requireKnownOptions, requireMethods } from "../../core/violations.ts";
import type { ClientOptions, Limiter } from "../limiter.ts";
import { type HttpWay, overHttp } from "../transports/http.ts";
import {
  ADDRESSES,
  callsBy,
  type LimiterCalls,
  type LimiterTransport,
  type RequestBounds,
  shaped,
} from "../transports/transport.ts";
import { RemoteLimiter } from "./remote-limiter.ts";

/** Where the limiter is: a service binding, or an address and a token. */
export type Way = HttpWay | { readonly service: LimiterCalls };

/** Keeps work going after a request has been answered; where there are no requests, nothing has to be kept. */
type InBackground = (work: Promise<unknown>) => void;

/** By the service binding: a worker may ask for its limiter with each request, and gets the same one. */
const byService = new WeakMap<LimiterCalls, Map<string, Limiter>>();

/**
 * Makes a limiter of a way to it, as `createLimiter` does.
 *
 * @param bounds how many requests over HTTP may be under way; absent: as many as suits a process
 */
export function makeLimiter(
  given: Way & ClientOptions,
  inBackground: InBackground,
  bounds?: RequestBounds,
): Limiter {
  const { policy, deadlineMs, onFailure } = checkedOptions(given);
  const options = {
    ...(policy !== undefined && { policy }),
    ...(deadlineMs !== undefined && { deadlineMs }),
    ...(onFailure !== undefined && { onFailure }),
  };
  if (!("service" in given)) return opened(overHttp(checked(given), bounds), options, inBackground);
  requireGiven("service", given.service, SERVICE);
  requireMethods("service", given.service, ["limit"], SERVICE);
  const known = byService.get(given.service) ?? new Map<string, Limiter>();
  byService.set(given.service, known);
  const name = JSON.stringify(options);
  const limiter =
    known.get(name) ?? opened(overService(given.service), options, inBackground, () => known.delete(name));
  known.set(name, limiter);
  return limiter;
}

function opened(
  transport: LimiterTransport,
  options: ClientOptions,
  inBackground: InBackground,
  onClose: () => void = () => undefined,
): Limiter {
  const limiter = new RemoteLimiter({ transport, time: unsleepingTime(), inBackground }, options);
  const leave = endWithProcess(limiter);
  const close = limiter.close.bind(limiter);
  limiter.close = async () => {
    leave();
    onClose();
    await close();
  };
  return limiter;
}

const KNOWN = ["url", "token", "fetch", "service", "policy", "deadlineMs", "onFailure"];
const SERVICE = "a service binding to the entrypoint Limiter";
const MAX_DEADLINE_MS = 600_000;

/** @throws TypeError that names the option, its value and what is allowed: a wrong one would look like an outage */
function checkedOptions(given: Way & ClientOptions): ClientOptions {
  requireKnownOptions(given, KNOWN);
  const { policy, deadlineMs, onFailure } = given;
  if (policy !== undefined && typeof policy !== "string")
    throw new TypeError(`policy is ${String(policy)}: must be the name of a policy`);
  requireInteger("deadlineMs", deadlineMs, 1, MAX_DEADLINE_MS);
  if (onFailure !== undefined && onFailure !== "closed" && onFailure !== "open")
    throw new TypeError(`onFailure is ${JSON.stringify(onFailure)}: must be "closed" or "open"`);
  return given;
}

/** @throws TypeError that says what is wrong with the address or the token */
function checked(way: HttpWay): HttpWay {
  const { url, token } = way;
  if (typeof url !== "string" || !/^https?:\/\//.test(url))
    throw new TypeError(`url is ${JSON.stringify(url)}: must be the address of a limiter, https://...`);
  if (typeof token !== "string" || token === "")
    throw new TypeError(
      "token is missing: must be a token of the limiter, with the scopes limit and reserve",
    );
  // A header takes no other characters, so each call would fail.
  if (!/^[!-~]+$/.test(token))
    throw new TypeError(
      "token has a character that no token has: a space, a line break, or one beyond ASCII",
    );
  return way;
}

/** What happens to units that a client holds when its process ends. */

/** The parts of Node's `process` that are used. Deno and Bun have them too; a worker has none. */
interface ProcessLike {
  on?(event: "beforeExit" | "SIGTERM", listener: () => void): unknown;
  off?(event: "beforeExit" | "SIGTERM", listener: () => void): unknown;
  listenerCount?(event: "SIGTERM"): number;
  kill?(pid: number, signal: "SIGTERM"): unknown;
  readonly pid?: number;
}

/** Whoever holds units. */
interface Closing {
  readonly isHolding: boolean;
  close(): Promise<void>;
  /** Gives back what is held, and may hold again. */
  flush(): Promise<void>;
}

/** A process that is told to end does not wait longer than this for units to go back, in milliseconds. */
const MAX_MS = 1_000;

const living = new Set<Closing>();
let isListening = false;

/**
 * From now on the units go back when the process ends: because it has nothing more to do, or on SIGTERM. A listener to
 * SIGTERM keeps a process from ending, so when no other one listens, the process is ended here.
 *
 * @returns ends that
 */
function endWithProcess(closing: Closing): () => void {
  living.add(closing);
  const own = (globalThis as { readonly process?: ProcessLike }).process;
  if (!isListening && own?.on !== undefined && own.kill !== undefined) {
    isListening = true;
    listen(own);
  }
  return () => living.delete(closing);
}

function listen(own: ProcessLike): void {
  own.on?.("beforeExit", () => {
    // What goes back here keeps the process for a moment, and then it comes by again.
    for (const each of living) if (each.isHolding) void each.flush();
  });
  const onSigterm = () => {
    const closed = Promise.allSettled([...living].map((each) => each.close()));
    void Promise.race([closed, new Promise((done) => setTimeout(done, MAX_MS))]).then(() => {
      own.off?.("SIGTERM", onSigterm);
      if (own.listenerCount?.("SIGTERM") === 0 && own.pid !== undefined) own.kill?.(own.pid, "SIGTERM");
    });
  };
  own.on?.("SIGTERM", onSigterm);
}

/**
 * The limiter over a service binding. A lease does not end with the request that acquired it, as over HTTP, unless it is
 * asked for with a grace, or resumed.
 */
export function overService(service: LimiterCalls): LimiterTransport {
  const calls = callsBy(async (name, asked) => {
    const { shape } = ADDRESSES[name];
    const answer: unknown = await service[name](asked as never);
    return shape === "nothing" ? undefined : shaped(shape, answer);
  });
  return {
    ...calls,
    acquire: async (asked) =>
      asked.graceMs === undefined && asked.resume === undefined
        ? shaped("decision", await service.acquire({ ...asked, detached: true }))
        : withoutLink(shaped("decision", await service.acquire(asked))),
  };
}

/**
 * A grant as a plain decision. The runtime ends the link when nothing refers to the grant any more, so the decision keeps
 * it, where neither a copy nor JSON has it.
 */
function withoutLink(grant: Decision): Decision {
  const { slot: _, renew: _renew, release: _release, ...decision } = grant as Decision & Partial<Attached>;
  return Object.defineProperty(decision, "link", { value: grant });
}
