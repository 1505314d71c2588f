import { unsleepingTime } from "../core/clock.ts";
import { requireGiven, requireInteger, requireKnownOptions, requireMethods } from "../core/options.ts";
import type { ClientOptions } from "./client-options.ts";
import { FarLimiter } from "./far-limiter.ts";
import { endWithProcess } from "./lifetime.ts";
import type { Limiter } from "./limiter.ts";
import type { FarSide, LimiterCalls, RequestBounds } from "./transports/far-side.ts";
import { overHttp, type HttpWay } from "./transports/http.ts";
import { overService } from "./transports/service.ts";

/** Where the limiter is: a service binding, or an address and a token. */
export type Way = HttpWay | { readonly service: LimiterCalls };

/** Keeps work going after a request has been answered; where there are no requests, nothing has to be kept. */
export type InBackground = (work: Promise<unknown>) => void;

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
  far: FarSide,
  options: ClientOptions,
  inBackground: InBackground,
  onClose: () => void = () => undefined,
): Limiter {
  const limiter = new FarLimiter({ far, time: unsleepingTime(), inBackground }, options);
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
const MOST_DEADLINE_MS = 600_000;

/** @throws TypeError that names the option, its value and what is allowed: a wrong one would look like an outage */
function checkedOptions(given: Way & ClientOptions): ClientOptions {
  requireKnownOptions(given, KNOWN);
  const { policy, deadlineMs, onFailure } = given;
  if (policy !== undefined && typeof policy !== "string")
    throw new TypeError(`policy is ${String(policy)}: must be the name of a policy`);
  requireInteger("deadlineMs", deadlineMs, 1, MOST_DEADLINE_MS);
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
