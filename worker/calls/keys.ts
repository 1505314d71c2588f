/** The calls about all keys of a policy: list them, and count them. */
import * as v from "valibot";
import type { KeyRange } from "../../client/objects/key-lists.ts";
import { plainValuesOf } from "../../core/algorithms/penalty.ts";
import { algorithms } from "../../core/policies/algorithms.ts";
import type { Policy } from "../../core/policies/policy.ts";
import {
  keyCursor,
  type KeyPlace,
  MAX_KEY_BYTES,
  readKeyCursor,
  sharedObjects,
} from "../../core/protocol/names.ts";
import { type Answered, Problem } from "../../core/protocol/problems.ts";
import { described, integer, table } from "../../core/validation.ts";
import { keyProblem, mayUse } from "../auth/tokens.ts";
import { type CallContext, findPolicy } from "./limits.ts";
import {
  amount,
  AMOUNT,
  INTEGER,
  KeyRequest,
  milliseconds,
  optional,
  text,
} from "./schemas/request-schemas.ts";
import { parse, badValue } from "./validate.ts";

export async function callKeys(context: CallContext, input: unknown): Answered<KeyList> {
  const request = parse(KeyListRequest, input);
  if (request instanceof Problem) return request;
  const among = amongOf(context, request);
  if (among instanceof Problem) return among;
  const page = await context.client.keys.list(among, request.limit);
  return page instanceof Problem ? page : { keys: page.keys, ...cursorOf(page) };
}

export async function callKeyCount(context: CallContext, input: unknown): Answered<KeyCount> {
  const request = parse(KeyCountRequest, input);
  if (request instanceof Problem) return request;
  const among = amongOf(context, request);
  if (among instanceof Problem) return among;
  const page = await context.client.keys.count(among);
  return page instanceof Problem ? page : { count: page.count, ...cursorOf(page) };
}

function amongOf(
  { client, principal }: CallContext,
  request: v.InferOutput<typeof KeyCountRequest>,
): KeyRange | Problem {
  const policy = findPolicy(client.policies, principal, request.policy);
  if (policy instanceof Problem) return policy;
  if (policy.pool !== undefined) {
    const allowed = "a policy without a pool (the keys of this one are in its Redis: list them there)";
    return badValue(["policy"], request.policy, allowed);
  }
  const { objects } = policy;
  if (objects === "per-key") {
    const allowed =
      "a policy whose keys share a number of objects (this one has an object for each key, and nobody knows all " +
      'objects: keep a list of your keys and look at each, or set objects in the policy, with objectsBefore = "per-key")';
    return badValue(["policy"], request.policy, allowed);
  }
  // A token with a key prefix lists no other keys.
  const { prefix = principal.keyPrefix ?? "" } = request;
  const from =
    request.cursor === undefined ? { object: 0 } : readKeyCursor(request.cursor, sharedObjects(policy));
  if (from === undefined || from.after?.startsWith(prefix) === false)
    return badValue(["cursor"], request.cursor, "the cursor of an answer to the same request");
  return keyProblem(principal, prefix) ?? { policy: { ...policy, objects }, prefix, from };
}

function cursorOf({ next }: { readonly next?: KeyPlace }): { cursor?: string } {
  return next === undefined ? {} : { cursor: keyCursor(next) };
}

/** The most keys on a page, and the default. */
export const MAX_LISTED = 1_000;
const DEFAULT_LISTED = 100;

const prefix = optional(text(MAX_KEY_BYTES), "Only keys that begin with it, compared byte by byte.");
const cursor = optional(
  v.string("the cursor of an answer"),
  "The `cursor` of the page before; absent: the first page.",
);

const KeyCountRequest = table({ policy: KeyRequest.entries.policy, prefix, cursor });

export const KeyListRequest = table({
  policy: KeyRequest.entries.policy,
  prefix,
  cursor,
  limit: optional(integer(1, MAX_LISTED), "The most keys on the page.", DEFAULT_LISTED),
});

const next = optional(v.string(), "Absent: this was the last page.");

export const ListedKey = v.object({
  key: v.string(),
  limit: amount("The most units that can be admitted at once."),
  remaining: amount("The largest cost that would pass now."),
  resetAfterMs: amount("How long until the quota has refilled if no other call comes, in milliseconds."),
  outstanding: amount("Units that are held, reserved or leased at this moment."),
  holds: amount("Callers' holds that have not ended."),
  leases: amount("Leases that have not ended."),
});

export const KeyList = v.object({
  keys: described(
    v.array(ListedKey),
    "Keys of which something is stored. A page may have few or none, and another one after it.",
  ),
  cursor: next,
});
export type KeyList = Readonly<v.InferOutput<typeof KeyList>>;

export const KeyCount = v.object({
  count: amount("How many keys something is stored of: of the objects that were asked, 256 at most."),
  cursor: next,
});
export type KeyCount = Readonly<v.InferOutput<typeof KeyCount>>;

export function listPolicies({ client: { policies }, principal }: CallContext): PolicyList {
  const usable = [...policies.named.values()].filter(({ name }) => mayUse(principal, name));
  return {
    policies: usable.map(({ name, rules, plans, ...policy }) => ({
      name,
      onFailure: policy.onFailure,
      ...(policy.failureLimit && { failureLimit: { ...policy.failureLimit } }),
      deadlineMs: policy.deadlineMs,
      objects: policy.objects,
      ...(policy.objectsBefore && { objectsBefore: [...policy.objectsBefore] }),
      ...policy.waiting,
      reservationTtlMs: policy.localDecisions.admits ? policy.reservation.mostMs : 0,
      denialTtlMs: policy.denialTtlMs,
      ...(policy.regions !== "auto" && { regions: policy.regions }),
      ...(policy.locationHint && { locationHint: policy.locationHint }),
      ...(policy.jurisdiction && { jurisdiction: policy.jurisdiction }),
      ...(policy.pool && { pool: policy.pool.kind }),
      ...(policy.onFailure === "local" && {
        localShare: policy.pool?.localShare ?? 1 / policies.regions.length,
      }),
      ...(policy.retryJitter && jitterOf(policy.retryJitter)),
      ...(policy.notify && { notify: [...policy.notify] }),
      shadow: policy.shadow,
      ...(policy.isFair === true && { fair: true as const }),
      keyKind: policy.keyKind,
      priorities: [...policy.priorities.names],
      defaultPriority: policy.priorities.usual,
      ageingMs: policy.priorities.ageingMs,
      reserve: { ...policy.priorities.reserve },
      ...(policy.shedding && { shed: policy.shedding }),
      headers: [...policy.headers],
      rules: listedRules(rules),
      ...(plans && {
        plans: Object.fromEntries(
          [...plans].flatMap(([plan, each]) => (plan === "" ? [] : [[plan, listedRules(each.rules)]])),
        ),
      }),
      ...(plans?.get("")?.limitInCall && { maxLimitInCall: plans.get("")?.limitInCall?.max ?? 0 }),
    })),
  };
}

function listedRules(rules: Policy["rules"]) {
  return rules.map(({ name, algorithm, unit, capacity, config }) => ({
    name,
    algorithm: algorithm.name,
    unit,
    capacity,
    ...plainValuesOf(config),
  }));
}

function jitterOf(jitter: NonNullable<Policy["retryJitter"]>): object {
  return "share" in jitter ? { retryJitter: jitter.share } : { retryJitterMs: jitter.mostMs };
}

const LAYOUT = v.union([v.literal("per-key"), INTEGER]);

/** These take effect as `undelayed`, and as `burst` and `savedParts`. */
const UNLISTED = ["delay", "nodelay", "maxBurst", "maxDelay"];

/** The fields of all algorithms as rules are listed with them: units, and durations in milliseconds. */
function listedFields(): object {
  const all = [...algorithms.values()].flatMap(({ fields }) => Object.entries(fields));
  const listed = all.filter(([field]) => !UNLISTED.includes(field));
  return Object.fromEntries(
    listed.map(([field, kind]): [string, v.GenericSchema] => {
      if (typeof kind !== "string" || kind === "text?") return [field, v.optional(v.string())];
      if (kind === "boolean?") return [field, v.optional(v.boolean())];
      if (kind === "ratio?") return [field, v.optional(v.number())];
      const isTime = ["duration", "duration?", "period"].includes(kind);
      return [isTime ? `${field}Ms` : field, v.optional(INTEGER)];
    }),
  );
}

/** A later version may list further fields. */
export const PolicyRule = v.objectWithRest(
  {
    name: v.string(),
    algorithm: v.string(),
    unit: v.string(),
    capacity: amount("The most units at once."),
    ...listedFields(),
    undelayed: optional(AMOUNT, "Of leaky-bucket: calls that are not delayed."),
    savedParts: optional(v.number(), "Of smooth-bursty: what is saved at most, in parts of a permit."),
    period: optional(v.string(), "Of a calendar window: its period."),
    blockForMs: optional(AMOUNT, "The length of the first block."),
    maxBlockMs: optional(AMOUNT, "The longest block."),
  },
  v.union([v.string(), v.number(), v.boolean()]),
);

export const PolicyDescription = v.object({
  name: v.string(),
  rules: v.array(PolicyRule),
  plans: optional(v.record(v.string(), v.array(PolicyRule)), "The rules as each plan has them."),
  maxLimitInCall: optional(AMOUNT, "Calls may bring limits of their own, up to this."),
  onFailure: v.picklist(["closed", "open", "local"]),
  failureLimit: optional(
    v.object({ limit: amount("In each window."), windowMs: milliseconds("The length of a window.") }),
    "What each isolate or process admits of a key by itself while its object does not answer.",
  ),
  deadlineMs: milliseconds("The longest a caller waits for a decision."),
  objects: LAYOUT,
  objectsBefore: optional(v.array(LAYOUT), "Where keys come from that have moved, the last layout first."),
  regions: optional(
    v.picklist(["always", "off"]),
    "Whether isolates ask objects in their regions from their first call on, or never. Absent: where they are many.",
  ),
  locationHint: optional(v.string(), "Where its objects are to be near."),
  jurisdiction: optional(v.string(), "What its objects never leave."),
  maxWaitMs: milliseconds("The longest that a caller may wait for units."),
  maxWaiters: amount("The most callers that wait for units of one key."),
  reservationTtlMs: milliseconds("The longest a reservation can live; 0: none are made."),
  denialTtlMs: milliseconds("The longest a denial is repeated from memory; 0: it is not."),
  pool: v.optional(v.literal("redis")),
  localShare: optional(
    v.number(),
    "The part of the limit that a region decides on alone while its pool does not answer.",
  ),
  retryJitter: optional(v.number(), "Denied callers are told up to this part of the wait more."),
  retryJitterMs: optional(AMOUNT, "Denied callers are told up to this much more."),
  notify: optional(v.array(v.number()), "The fractions of the limit at which a notice is sent."),
  shadow: v.boolean(),
  fair: optional(v.literal(true), "Groups share the limit: each call that is decided names its group."),
  keyKind: v.picklist(["text", "ip"]),
  priorities: described(v.array(v.string()), "How important calls may be, the most important first."),
  defaultPriority: described(v.string(), "The priority of calls that say none."),
  ageingMs: milliseconds(
    "In a queue: how much longer than a call of the next priority a call has to wait to be served before it.",
  ),
  reserve: described(
    v.record(v.string(), v.number()),
    "The part of each limit that is kept for calls of a priority and above it.",
  ),
  shed: optional(
    v.object({
      good: described(v.number(), "Below this utilization, what is shed comes back."),
      bad: described(v.number(), "Above this utilization, more is shed."),
      afterMs: milliseconds("How long it must have been bad before more is shed."),
      overMs: milliseconds("How long it takes to shed all calls of one priority."),
      by: described(
        v.picklist(["leases", "reports"]),
        "Where the utilization is from: the key's leases, or what callers report.",
      ),
    }),
    "How calls are shed while machines are too busy.",
  ),
  headers: described(
    v.array(v.picklist(["draft-11", "draft-7", "x-ratelimit", "x-ratelimit-delta"])),
    "The styles in which the headers of decisions tell of the limits.",
  ),
});

export const PolicyList = v.object({ policies: v.array(PolicyDescription) });
export type PolicyList = Readonly<v.InferOutput<typeof PolicyList>>;
