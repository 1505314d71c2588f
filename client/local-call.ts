/** Which calls a client may decide by itself. All others go to the limiter, which says what is wrong with them. */
import { MAX_UNITS } from "../core/algorithms/algorithm.ts";
import type { Cost } from "../core/policies/policy.ts";
import { isKeySized } from "../core/protocol/names.ts";
import { Problem, PROBLEMS } from "../core/protocol/problems.ts";
import type { DescribedPolicy } from "../core/protocol/reservation-messages.ts";
import { violation } from "../core/violations.ts";
import type { Abortable, KeyRequest, LimitRequest, Signal } from "./limiter.ts";

const FIELDS: ReadonlySet<string> = new Set(["policy", "key", "cost", "priority"]);

/** A call that is only a cost of a key. */
export interface PlainCall {
  readonly policy: string;
  readonly key: string;
  readonly cost: Cost;
  readonly priority?: string;
}

/**
 * The call, if it is plain and well-formed; `undefined`: it is not.
 *
 * @param usual the policy of calls that name none
 */
export function plainCall(asked: LimitRequest, usual?: string): PlainCall | undefined {
  for (const field in asked)
    if (!FIELDS.has(field) && asked[field as keyof LimitRequest] !== undefined) return undefined;
  const { policy = usual, key, cost = 1, priority } = asked;
  if (
    typeof policy !== "string" ||
    typeof key !== "string" ||
    key === "" ||
    !isKeySized(key) ||
    !isCost(cost)
  )
    return undefined;
  if (priority === undefined) return { policy, key, cost };
  return typeof priority === "string" ? { policy, key, cost, priority } : undefined;
}

/** Whether the policy has the units and the priority that the call names. */
export function isOf({ rules, priorityNames }: DescribedPolicy, { cost, priority }: PlainCall): boolean {
  if (priority !== undefined && !priorityNames.includes(priority)) return false;
  return (
    typeof cost === "number" || Object.keys(cost).every((unit) => rules.some((rule) => rule.unit === unit))
  );
}

function isCost(cost: unknown): cost is Cost {
  if (typeof cost === "number") return isUnits(cost);
  if (typeof cost !== "object" || cost === null) return false;
  const prototype: unknown = Object.getPrototypeOf(cost);
  return (prototype === Object.prototype || prototype === null) && Object.values(cost).every(isUnits);
}

function isUnits(units: unknown): boolean {
  return Number.isInteger(units) && (units as number) >= 0 && (units as number) <= MAX_UNITS;
}

/** The call with the usual policy, if it names none. @throws LimiterError when it is no table of fields */
export function wholeCall<Asked extends KeyRequest>(asked: Asked, usual: string | undefined): Asked {
  requireObject(asked);
  return usual === undefined || asked.policy !== undefined ? asked : { ...asked, policy: usual };
}

/** What may end a call. @throws LimiterError when the call is no table of fields, or that is no `AbortSignal` */
export function signalOf(asked: Abortable): Signal | undefined {
  requireObject(asked);
  const signal: Partial<Signal> | undefined = asked.signal;
  if (signal === undefined || typeof signal?.addEventListener === "function") return asked.signal;
  const detail = violation(["signal"], signal, "an AbortSignal");
  throw new Problem(PROBLEMS.notAllowed, detail, { errors: [{ pointer: "/signal", detail }] }).toError();
}

/** @throws LimiterError when the argument of a call is no table of fields */
export function requireObject(asked: unknown): void {
  if (typeof asked === "object" && asked !== null) return;
  const detail = `the argument is ${JSON.stringify(asked) ?? typeof asked}: must be an object, as { policy, key }`;
  throw new Problem(PROBLEMS.notAllowed, detail).toError();
}
