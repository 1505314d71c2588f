import type { Limiter, PolicyName } from "../../client/limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { unsleepingTime, type Time } from "../../core/clock.ts";
import { parseDeployment, RegionalPolicies } from "../../core/policies/parse-policies.ts";
import type { Policies } from "../../core/policies/policy.ts";
import { Problem } from "../../core/protocol/problems.ts";
import {
  oneOfNames,
  requireGiven,
  requireKnownOptions,
  requireTime,
  violation,
} from "../../core/violations.ts";
import { MemoryNamespace } from "../../durable-objects/memory-namespace.ts";
import * as schemas from "../calls/schemas/request-schemas.ts";
import { parse } from "../calls/validate.ts";
import { DirectLimiter } from "./direct-limiter.ts";

export interface MemoryOptions {
  /** The policies, as `[vars.POLICIES]` has them. */
  readonly policies: Readonly<Record<string, object>>;
  /** The policy of calls that name none. */
  readonly policy?: PolicyName;
  /** The clock and the timers, for tests. Absent: the real ones. */
  readonly time?: Time;
}

const KNOWN = ["policies", "policy", "time"];
/** As `weir-limiter/testing` calls it. Were it not refused, a test would count by the real clock. */
const SYNONYMS = new Map([["clock", "time"]]);

/**
 * A limiter in memory, which decides as a deployed one does and ends with its process. It is for tests, and for a process
 * that is alone.
 *
 * @throws TypeError that names the option, its value and what is allowed
 * @throws Error that names every bad policy, field and value, and what is allowed
 */
export function makeMemoryLimiter(options: MemoryOptions): Limiter {
  requireKnownOptions(options, KNOWN, SYNONYMS);
  const { policies, policy, time = unsleepingTime(true) } = options;
  requireGiven("policies", policies, "a table of policies by their names");
  requireTime("time", time);
  const { policies: parsed, regions } = parseDeployment({ policies });
  if (policy !== undefined && !parsed.has(policy))
    throw new TypeError(violation(["policy"], policy, oneOfNames(policy, [...parsed.keys()])));
  const known = new RegionalPolicies(withoutReservations(parsed), regions);
  const namespace = new MemoryNamespace(known, time) as LimiterNamespace;
  const inBackground = (work: Promise<unknown>) => void work.catch(() => undefined);
  const objects = new Objects(namespace, time);
  const client = new LimiterClient({ objects, policies: known, time, inBackground });
  return new DirectLimiter({ client, inBackground, policy, close: () => Promise.resolve() });
}

/** An object in the same process decides every call, so no units are reserved. @throws Error for a pool */
function withoutReservations(policies: Policies): Policies {
  const all = [...policies].map(([name, policy]) => {
    if (policy.pool !== undefined)
      throw new Error(`policy ${JSON.stringify(name)}: a limiter in memory has no pools`);
    return [name, { ...policy, localDecisions: { admits: false, denies: false } }] as const;
  });
  return new Map(all);
}

/** A call that answers decisions. By name: the package's types name no schemas. */
export type Degrading = "limit" | "limitAll" | "limitAny" | "hold" | "acquire";

const SCHEMAS = {
  limit: schemas.LimitRequest,
  limitAll: schemas.LimitAllRequest,
  limitAny: schemas.LimitAnyRequest,
  hold: schemas.HoldRequest,
  acquire: schemas.AcquireRequest,
};
/** What a limiter refuses of such a call, whatever policies there are. */
export function problemOf(call: Degrading, input: unknown): Problem | undefined {
  const parsed = parse<(typeof SCHEMAS)[Degrading]>(SCHEMAS[call], input);
  return parsed instanceof Problem ? parsed : undefined;
}
