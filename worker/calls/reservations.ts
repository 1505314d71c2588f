/** Units that a client holds in its caller's process. Each call of the message is checked as any other. */
import type * as v from "valibot";
import { toDecision, unavailable } from "../../client/read-answer.ts";
import { normaliseKey } from "../../core/catalog/keys.ts";
import { readClockMs } from "../../core/clock.ts";
import {
  forPriority,
  isCuttable,
  type Policy,
  publicName,
  relaxedRule,
  takesNothing,
  type Rule,
} from "../../core/policies/policy.ts";
import type { Slots } from "../../core/protocol/answers.ts";
import type { Sent } from "../../core/protocol/calls.ts";
import { Arrivals, STALE, type BatchedCall, type MadeAnswer } from "../../core/protocol/messages.ts";
import { ownKey, hash } from "../../core/protocol/names.ts";
import { Problem, type Answered } from "../../core/protocol/problems.ts";
import {
  type PolicyDescription,
  type ReservationAnswer,
  RESERVATIONS_PROTOCOL,
  type ReservationsReply,
  type RuleDescription,
} from "../../core/protocol/reservation-messages.ts";
import { scopeProblem } from "../auth/tokens.ts";
import {
  type CallContext,
  costProblem,
  decide,
  findPolicy,
  findTarget,
  priorityProblem,
  rateProblem,
} from "./limits.ts";
import { ReservationsRequest } from "./schemas/reservation-schemas.ts";
import { badValue, given, notAllowed, parse, type Target } from "./validate.ts";

type Request = v.InferOutput<typeof ReservationsRequest>;
type Call = Request["calls"][number];
type Limit = NonNullable<Call["limit"]>;
type Asked = Pick<Limit, "cost" | "priority">;
type Reserve = NonNullable<Call["reserve"]>;
type GiveBack = NonNullable<Call["giveBack"]>;
type Held = NonNullable<Call["slots"]>;

interface Message extends CallContext {
  /** By policy name: the versions that the client knows. */
  readonly known: Readonly<Record<string, string>>;
  readonly unknown: Map<string, PolicyDescription>;
}

/** Answers the message. Each call is refused by itself. */
export async function callReserve(context: CallContext, input: unknown): Answered<ReservationsReply> {
  const { client, principal } = context;
  const request = parse(ReservationsRequest, input);
  if (request instanceof Problem) return request;
  const problem = scopeProblem(principal, ["reserve"]);
  if (problem !== undefined) return problem;
  const message = { client, principal, known: request.known, unknown: new Map<string, PolicyDescription>() };
  const calls = given(input, "calls") as readonly unknown[];
  const isStale = arrivals.note(request.sent && fromCaller(principal.id, request.sent), client.nowMs);
  const answers = await Promise.all(
    request.calls.map(async (call, index) => {
      const answer = isStale(call as BatchedCall, index)
        ? { failed: STALE }
        : await answerOne(message, call, calls[index]);
      if (!(answer instanceof Problem)) return answer;
      const { status, code, title, detail, errors } = answer;
      // A client answers the call as its policy's onFailure says.
      if (status >= 500) return { failed: detail };
      return { problem: { status, code, title, detail, errors } };
    }),
  );
  for (const [name, [admitted, denied]] of Object.entries(request.made)) {
    const [policy = "", plan] = name.split(" ");
    const found = findPolicy(client.policies, principal, policy);
    const isKnown = !(found instanceof Problem) && (plan === undefined || found.plans?.has(plan) === true);
    if (isKnown) client.recordMade(policy, plan, { admitted, denied });
  }
  const policies = Object.fromEntries(message.unknown);
  return { protocol: RESERVATIONS_PROTOCOL, answers, policies, readsSent: true, readsMade: true };
}

/** Of this isolate. */
const arrivals = new Arrivals();

function fromCaller(callerId: string, sent: Sent): Sent {
  return { ...sent, from: ownKey(callerId, sent.from) };
}

async function answerOne(message: Message, call: Call, input: unknown): Answered<ReservationAnswer> {
  const { giveBack, limit, reserve, slots } = call;
  if (giveBack !== undefined) return await answerGiveBack(message, giveBack);
  if (limit !== undefined) return await answerLimit(message, limit, given(input, "limit"));
  if (slots !== undefined) return await answerSlots(message, slots);
  return reserve === undefined ? null : await answerReserve(message, reserve, given(input, "reserve"));
}

interface ClientTarget extends Target {
  /** The client knows the current policy, and so reads its object's answers. */
  readonly readsObject: boolean;
  /** It learns the policy with this answer, and holds units of its own from then on. */
  readonly holdsNext: boolean;
}

/** The policy and the key of a call; notes whether the client knows the current policy. */
function targetOf(message: Message, call: Limit, input: unknown): ClientTarget | Problem {
  const { client, principal } = message;
  const target = findTarget(client, principal, call);
  if (target instanceof Problem) return target;
  const { policy } = target;
  const named = client.policies.get(policy.name) ?? policy;
  const { localDecisions, ofGroups = localDecisions } = describeForClient(named);
  const isKnown = noteKnown(message, named);
  const isOverriddenHere = isOverridden(named, target);
  const readsObject = isKnown && !isOverriddenHere && ofGroups.denies;
  const holdsNext = !isKnown && !isOverriddenHere && ofGroups.admits;
  const problem =
    rateProblem(policy, call.cost) ??
    costProblem(policy, ["cost"], call.cost, input) ??
    priorityProblem(policy, call.priority);
  return problem ?? { ...target, readsObject, holdsNext };
}

/** What a client has it may spend for at most so long: units for 8 s, slots for 9, but of 600 processes on a key for 10. */
const MAX_HELD_MS = 10_000;

/** A client knows no overrides: those are decided here, as is a key that will have one before the client's units end. */
function isOverridden(named: Policy, { policy, key }: Target): boolean {
  const later = policy.override ?? named.overrides?.find(key, readClockMs(), MAX_HELD_MS)?.override;
  return later !== undefined;
}

function noteKnown({ known, unknown }: Message, policy: Policy): boolean {
  const [name, description] = [publicName(policy.name), describeForClient(policy)];
  const isKnown = Object.hasOwn(known, name) && known[name] === description.version;
  if (!isKnown) unknown.set(name, description);
  return isKnown;
}

async function answerLimit(message: Message, limit: Limit, input: unknown): Answered<ReservationAnswer> {
  const target = targetOf(message, limit, input);
  if (target instanceof Problem) return target;
  if (!target.readsObject || takesNothing(target.policy, limit.cost))
    return await answerDecision(message, target, limit);
  if (isServed(message, target)) return await decideHere(message, target, limit);
  return await askObject(message, target, limit);
}

async function askObject(message: Message, target: Target, limit: Asked): Promise<Answer> {
  const { policy, key } = target;
  const answer = answerOf(await message.client.askFor(policy, key, { limit: messageOf(target, limit) }));
  return recorded(message, target, limit, answer);
}

/** The object's decision is counted here, as of any other call. Those that the client makes by itself are not. */
function recorded<Made extends Answer>(
  { client }: Message,
  { policy, key }: Target,
  { cost }: Asked,
  answer: Made,
): Made {
  const isDecided = answer !== null && !(answer instanceof Problem) && "rules" in answer;
  if (isDecided && !takesNothing(policy, cost)) client.recordDecision(toDecision(policy, key, answer));
  return answer;
}

function messageOf({ policy, key }: Target, { cost, priority }: Asked) {
  return { policy: policy.name, key, cost, priority: forPriority(policy, priority).priority };
}

/**
 * A client without the policy could not read the object's answer, so it gets a decision. Its next calls find units of its
 * own: with units for the first ones, isolates of 300 processes kept two thirds of a limit for 8 s, and nobody came for it.
 */
async function answerDecision(
  message: Message,
  target: ClientTarget,
  limit: Asked,
): Answered<ReservationAnswer> {
  const { policy, key, holdsNext } = target;
  if (holdsNext && !takesNothing(policy, limit.cost) && !isServed(message, target)) {
    const answer = await askObject(message, target, limit);
    const isDecided = answer !== null && !(answer instanceof Problem) && "rules" in answer;
    return isDecided ? { decision: toDecision(policy, key, answer) } : answer;
  }
  const { cost, priority } = limit;
  const decision = await decide(message.client, { policy, key }, { cost, priority });
  return decision instanceof Problem ? decision : { decision };
}

/** @param said by a message for units, if the call is one */
function isServed(
  { client }: Message,
  { policy, key }: Target,
  said?: Pick<Reserve, "holder" | "rules">,
): boolean {
  return client.served.has(policy, key, client.nowMs, said);
}

/** Decides a client's call by what this isolate holds. The client gets no units. */
async function decideHere(
  message: Message,
  target: Target,
  { cost, priority }: Asked,
  holder?: string,
): Promise<Answer> {
  const { policy, key } = target;
  const { served, nowMs } = message.client;
  const units = Object.fromEntries(policy.rules.map(({ name }) => [name, 0]));
  const reserved = { ttlMs: 0, isNew: true, units };
  if (takesNothing(policy, cost)) return { ...served.quota(policy, key, nowMs), reserved };
  const decision = await decide(message.client, target, { cost, priority });
  if (decision instanceof Problem) return decision;
  const { rules, source } = decision;
  if (rules.length === 0) return { failed: "the key's object did not answer" };
  if (holder !== undefined && !rules.every(({ success }) => success)) served.denied(holder, nowMs);
  return { rules, reserved, ...(source === "fallback" && { source }) };
}

/** Nothing is held for the client, so its message says nothing to its object. */
function hasNothing({ rules }: Reserve): boolean {
  return Object.values(rules).every(({ kept, left }) => kept === 0 && left === undefined);
}

async function answerReserve(message: Message, call: Reserve, input: unknown): Answered<ReservationAnswer> {
  const target = targetOf(message, call, input);
  if (target instanceof Problem) return target;
  const { policy, key, readsObject } = target;
  const { turn, ttlMs, isShort, takesBucket, rules } = call;
  const holder = ownKey(message.principal.id, call.holder);
  if (readsObject && policy.reservation.clients !== false) {
    const strays = Object.keys(rules).filter((name) => !policy.rules.some((rule) => rule.name === name));
    if (strays.length > 0) return notAllowed(strays.map((name) => strayRule(policy, name)));
    const { client } = message;
    if (hasNothing(call) && isServed(message, target, { holder, rules }))
      return await decideHere(message, target, call, holder);
    const reserve = { ...messageOf(target, call), holder, turn, ttlMs, isShort, takesBucket, rules };
    return recorded(message, target, call, answerOf(await client.askFor(policy, key, { reserve })));
  }
  // A client with other rules gets no units. It may spend those it has until this answer arrives, so they
  // stay held until reported or expired.
  const kept = Object.fromEntries(
    Object.entries(rules).map(([name, rule]) => [name, { ...rule, wanted: rule.kept, demand: 0 }]),
  );
  const noted = { ...messageOf(target, call), cost: 0, holder, turn, ttlMs: 0, isShort, rules: kept };
  await message.client.forward(policy, key, { reserve: noted });
  return takesNothing(policy, call.cost) ? null : await answerDecision(message, target, call);
}

/**
 * Slots of a key. A client that does not know what holds for the key gets none and grants no more leases, but keeps those
 * that it has granted: so also under an override, of which clients know nothing.
 */
async function answerSlots(message: Message, call: Held): Answered<ReservationAnswer> {
  const { client, principal } = message;
  const target = findTarget(client, principal, call);
  if (target instanceof Problem) return target;
  const { policy, key } = target;
  if (policy.lease === undefined)
    return badValue(["policy"], publicName(policy.name), "a policy with a concurrency rule");
  const named = client.policies.get(policy.name) ?? policy;
  const isKnown = noteKnown(message, named) && !isOverridden(named, target);
  const mayHold = isKnown && describeForClient(named).slots !== undefined;
  const { leased, wanted, memory, ...said } = call;
  const operation = {
    op: "slots",
    ...said,
    ...(memory !== undefined && { memory }),
    policy: policy.name,
    key,
    holder: ownKey(principal.id, call.holder),
    leased: Math.min(leased, said.kept),
    wanted: mayHold ? wanted : Math.min(leased, said.kept),
    // Its callers lose their leases with it.
    ttlMs: 0,
    handed: [],
  } as const;
  const answer = answerOf(await client.forward(policy, key, { operation }));
  if (mayHold || answer instanceof Problem || answer === null || !("slots" in answer)) return answer;
  const { given: slots } = answer.slots;
  return slots === undefined ? answer : { slots: { ...answer.slots, given: { ...slots, ...GOES_HOME } } };
}

const GOES_HOME = { isHome: true, most: 0 } as const;

function strayRule({ rules }: Policy, name: string) {
  const names = rules.map((rule) => JSON.stringify(rule.name)).join(", ");
  return { path: ["rules", name], detail: `${name} is not a rule of this policy: there are ${names}` };
}

async function answerGiveBack(message: Message, { policy: name, returned }: GiveBack): Answered<null> {
  const { client, principal } = message;
  const found = findPolicy(client.policies, principal, name);
  if (found instanceof Problem) return found;
  const policy = client.policies.within(found, principal.region);
  noteKnown(message, policy);
  const targets = returned.map((each) => findTarget(client, principal, { policy: name, key: each.key }));
  const problem = targets.find((target) => target instanceof Problem);
  if (problem !== undefined) return problem;
  await client.giveBack(
    returned.map((each) => ({
      policy,
      returned: {
        ...each,
        key: normaliseKey(policy, each.key) ?? each.key,
        holder: ownKey(principal.id, each.holder),
      },
    })),
  );
  return null;
}

type Answer = Exclude<ReservationAnswer, { readonly problem: unknown }> | Problem;

function answerOf(reply: { readonly answer: MadeAnswer | Slots } | Problem | undefined): Answer {
  if (reply === undefined) return { failed: "the key's object did not answer" };
  if (reply instanceof Problem) return reply;
  const { answer } = reply;
  if (answer === null || "rules" in answer || "slots" in answer) return answer;
  return unavailable("the key's object answered something else");
}

const NOTHING = { admits: false, denies: false };
const descriptions = new WeakMap<Policy, PolicyDescription>();

/** The description of a policy. A client decides nothing if calls are shed, lease, or need no object. */
export function describeForClient(policy: Policy): PolicyDescription {
  const before = descriptions.get(policy);
  if (before !== undefined) return before;
  const { priorities, pool, lease, shedding, isStateless, retryJitter, reservation, plans } = policy;
  const { isFair = false } = policy;
  const isByLimiter = lease !== undefined || shedding !== undefined || isStateless === true;
  const localDecisions = isByLimiter
    ? NOTHING
    : { ...policy.localDecisions, ...(reservation.clients === false && { admits: false }) };
  const named = plans && [...plans].filter(([plan]) => plan !== "");
  const described = {
    onFailure: policy.onFailure === "open" ? ("open" as const) : ("closed" as const),
    ...(policy.failureLimit && { failureLimit: policy.failureLimit }),
    deadlineMs: policy.deadlineMs,
    objects: policy.objects,
    localDecisions: isFair ? NOTHING : localDecisions,
    ...(isFair && { ofGroups: localDecisions }),
    reservation,
    denialTtlMs: policy.denialTtlMs,
    shadow: policy.shadow,
    keyKind: policy.keyKind,
    ...(pool && { isPooled: true as const }),
    ...(retryJitter && { retryJitter }),
    priorities: priorities.names,
    defaultPriority: priorities.usual,
    ...describeRules(policy),
    ...(mayHoldSlots(policy) && lease && { slots: { ttlMs: lease.ttlMs, maxTtlMs: lease.maxTtlMs } }),
    ...(named && { plans: Object.fromEntries(named.map(([plan, each]) => [plan, describeRules(each)])) }),
  };
  const description = { version: (hash(JSON.stringify(described)) >>> 0).toString(36), ...described };
  descriptions.set(policy, description);
  return description;
}

/** Whether clients may lease slots by themselves: only the limiter knows plans, and compares candidates. */
function mayHoldSlots(policy: Policy): boolean {
  const { plans, candidate, reservation } = policy;
  const isPlain = plans === undefined && candidate === undefined && reservation.clients !== false;
  return isPlain && relaxedRule(policy) !== undefined;
}

function describeRules({ priorities, rules }: Policy) {
  const seen = [...priorities.seen].map(
    ([name, each]) => [name, each.rules.map((rule) => rule.capacity)] as const,
  );
  return { ...(seen.length > 0 && { seen: Object.fromEntries(seen) }), rules: rules.map(describeRule) };
}

function describeRule(rule: Rule): RuleDescription {
  const { name, unit, capacity, algorithm, config } = rule;
  const wholeMs = { one: algorithm.refillMs(config, 1), all: algorithm.refillMs(config, capacity) };
  return { name, unit, capacity, wholeMs, ...(isCuttable(rule) && { isCuttable: true as const }) };
}
