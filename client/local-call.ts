/** The arguments of calls in a client's own process. */
import { Problem, PROBLEMS } from "../core/protocol/problems.ts";
import type { DescribedPolicy } from "../core/protocol/reservation-messages.ts";
import { violation } from "../core/violations.ts";
import type { Abortable, KeyRequest, Signal } from "./limiter.ts";
import type { PlainCall } from "./local-limiter.ts";

export function isOf({ rules, priorityNames }: DescribedPolicy, { cost, priority }: PlainCall): boolean {
  if (priority !== undefined && !priorityNames.includes(priority)) return false;
  return (
    typeof cost === "number" || Object.keys(cost).every((unit) => rules.some((rule) => rule.unit === unit))
  );
}

/** Adds the default policy to a call that names none. @throws LimiterError when it is not an object */
export function wholeCall<Request extends KeyRequest>(
  request: Request,
  defaultPolicy: string | undefined,
): Request {
  requireObject(request);
  return defaultPolicy === undefined || request.policy !== undefined
    ? request
    : { ...request, policy: defaultPolicy };
}

/** The signal of a call. @throws LimiterError when the call is no object, or its signal no `AbortSignal` */
export function signalOf(call: Abortable): Signal | undefined {
  requireObject(call);
  const signal: Partial<Signal> | undefined = call.signal;
  if (signal === undefined || typeof signal?.addEventListener === "function") return call.signal;
  const detail = violation(["signal"], signal, "an AbortSignal");
  throw new Problem(PROBLEMS.notAllowed, detail, { errors: [{ pointer: "/signal", detail }] }).toError();
}

/** @throws LimiterError when the argument of a call is not an object */
export function requireObject(argument: unknown): void {
  if (typeof argument === "object" && argument !== null) return;
  const detail = `the argument is ${JSON.stringify(argument) ?? typeof argument}: must be an object, as { policy, key }`;
  throw new Problem(PROBLEMS.notAllowed, detail).toError();
}
