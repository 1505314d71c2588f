/** Units that a caller's own client holds of many keys: each call of the message is checked as any other call is. */
import type * as v from "valibot";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { boundReached, unavailable } from "../../client/read-answer.ts";
import { normaliseKey } from "../../core/catalog/keys.ts";
import { type Cost, forPriority, type Policy, publicName, takesNothing } from "../../core/policies/policy.ts";
import type { MadeAnswer } from "../../core/protocol/messages.ts";
import { ownKey } from "../../core/protocol/names.ts";
import { type Full, Problem } from "../../core/protocol/problems.ts";
import {
  describePolicy,
  type PolicyDescription,
  type ReservationAnswer,
  RESERVATIONS_PROTOCOL,
  type ReservationsReply,
} from "../../core/protocol/reservation-messages.ts";
import { scopeProblem, type Principal } from "../auth/tokens.ts";
import { decide as decideOn } from "./limits.ts";
import { ReservationsRequest } from "./schemas/reservation-schemas.ts";
import { costProblem, findPolicy, findTarget, priorityProblem, rateProblem, type Target } from "./target.ts";
import { given, notAllowed, parse } from "./validate.ts";

type Request = v.InferOutput<typeof ReservationsRequest>;
type Call = Request["calls"][number];
type Limit = NonNullable<Call["limit"]>;
type Reserve = NonNullable<Call["reserve"]>;
type GiveBack = NonNullable<Call["giveBack"]>;

/** A message that is being answered. */
interface Message {
  readonly client: LimiterClient;
  readonly principal: Principal;
  /** The policies that the client knows, by name: the versions of their descriptions. */
  readonly known: Readonly<Record<string, string>>;
  /** The descriptions that the answer has to bring. */
  readonly unknown: Map<string, PolicyDescription>;
}

/** Answers a message that holds units. A call that is refused is refused by itself. */
export async function callReserve(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<ReservationsReply | Problem> {
  const request = parse(ReservationsRequest, input);
  if (request instanceof Problem) return request;
  const refused = scopeProblem(principal, ["reserve"]);
  if (refused !== undefined) return refused;
  const message = { client, principal, known: request.known, unknown: new Map<string, PolicyDescription>() };
  const calls = given(input, "calls") as readonly unknown[];
  const answers = await Promise.all(
    request.calls.map(async (call, index) => {
      const answer = await answerOne(message, call, calls[index]);
      return answer instanceof Problem ? { problem: plainProblem(answer) } : answer;
    }),
  );
  return { protocol: RESERVATIONS_PROTOCOL, answers, policies: Object.fromEntries(message.unknown) };
}

function plainProblem({ status, code, title, detail, errors }: Problem) {
  return { status, code, title, detail, errors };
}

async function answerOne(
  message: Message,
  { giveBack, limit, reserve }: Call,
  input: unknown,
): Promise<ReservationAnswer | Problem> {
  if (giveBack !== undefined) return await answerGiveBack(message, giveBack);
  if (limit !== undefined) return await answerLimit(message, limit, given(input, "limit"));
  return reserve === undefined ? null : await answerReserve(message, reserve, given(input, "reserve"));
}

/** The policy and the key of a call; notes whether the client knows the policy as it is now. */
function targetOf(message: Message, asked: Limit, input: unknown): (Target & { isKnown: boolean }) | Problem {
  const { client, principal } = message;
  const target = findTarget(client, principal, asked);
  if (target instanceof Problem) return target;
  const { policy } = target;
  // A client knows a policy, and not the overrides of its keys: those are decided here.
  const named = client.policies.get(policy.name) ?? policy;
  const isKnown = noteKnown(message, named) && policy.override === undefined;
  const problem =
    rateProblem(policy, asked.cost) ??
    costProblem(policy, ["cost"], asked.cost, given(input, "cost")) ??
    priorityProblem(policy, asked.priority);
  return problem ?? { ...target, isKnown };
}

function noteKnown({ known, unknown }: Message, policy: Policy): boolean {
  const [name, description] = [publicName(policy.name), describePolicy(policy)];
  const isKnown = Object.hasOwn(known, name) && known[name] === description.version;
  if (!isKnown) unknown.set(name, description);
  return isKnown;
}

/** A client that does not know the policy could not read what the object says, so it gets a whole decision. */
async function answerLimit(
  message: Message,
  limit: Limit,
  input: unknown,
): Promise<ReservationAnswer | Problem> {
  const target = targetOf(message, limit, input);
  if (target instanceof Problem) return target;
  const { policy, key, isKnown } = target;
  const { cost, priority } = limit;
  const isByObject = isKnown && describePolicy(policy).localDecisions.denies && !takesNothing(policy, cost);
  if (!isByObject) return await decide(message, target, cost, priority);
  return answerOf(await message.client.forward(policy, key, { limit: messageOf(target, limit) }));
}

function messageOf({ policy, key }: Target, { cost, priority }: Limit) {
  return { policy: policy.name, key, cost, priority: forPriority(policy, priority).priority };
}

async function decide(
  { client }: Message,
  { policy, key }: Target,
  cost: Cost,
  priority: string | undefined,
): Promise<ReservationAnswer | Problem> {
  const decision = await decideOn(client, { policy, key }, { cost, priority });
  return decision instanceof Problem ? decision : { decision };
}

async function answerReserve(
  message: Message,
  reserve: Reserve,
  input: unknown,
): Promise<ReservationAnswer | Problem> {
  const target = targetOf(message, reserve, input);
  if (target instanceof Problem) return target;
  const { policy, key, isKnown } = target;
  const { cost, priority, turn, ttlMs, isShort, rules } = reserve;
  const holder = ownKey(message.principal.id, reserve.holder);
  const mayHold = policy.reservation.clients !== false;
  if (isKnown && mayHold && describePolicy(policy).localDecisions.denies) {
    const strays = Object.keys(rules).filter((name) => !policy.rules.some((rule) => rule.name === name));
    if (strays.length > 0) return notAllowed(strays.map((name) => strayRule(policy, name)));
    const asked = { ...messageOf(target, reserve), holder, turn, ttlMs, isShort, rules };
    return answerOf(await message.client.forward(policy, key, { reserve: asked }));
  }
  // The client holds units under other rules, or may hold none, and is granted none by these. What it keeps it may spend until it hears of
  // that, so those units stay held until it says what it used of them, or their lifetime ends.
  const kept = Object.fromEntries(
    Object.entries(rules).map(([name, said]) => [name, { ...said, wanted: said.kept }]),
  );
  const noted = { ...messageOf(target, reserve), cost: 0, holder, turn, ttlMs: 0, isShort, rules: kept };
  await message.client.forward(policy, key, { reserve: noted });
  return takesNothing(policy, cost) ? null : await decide(message, target, cost, priority);
}

function strayRule({ rules }: Policy, name: string) {
  const names = rules.map((rule) => JSON.stringify(rule.name)).join(", ");
  return { path: ["rules", name], detail: `${name} is not a rule of this policy: there are ${names}` };
}

/** Gives back what holders of several keys of one policy have left. Each key has an object of its own, or shares one. */
async function answerGiveBack(
  message: Message,
  { policy: name, returned }: GiveBack,
): Promise<null | Problem> {
  const { client, principal } = message;
  const found = findPolicy(client.policies, principal, name, []);
  if (found instanceof Problem) return found;
  const policy = client.policies.within(found, principal.region);
  noteKnown(message, policy);
  const targets = returned.map((each) => findTarget(client, principal, { policy: name, key: each.key }));
  const refused = targets.find((target) => target instanceof Problem);
  if (refused !== undefined) return refused;
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

function answerOf(
  asked: { readonly answer: MadeAnswer | Full } | undefined,
): Exclude<ReservationAnswer, { readonly problem: unknown }> | Problem {
  if (asked === undefined) return { failed: "the key's object did not answer" };
  const { answer } = asked;
  if (answer === null || "rules" in answer) return answer;
  if ("full" in answer) return boundReached(answer);
  return unavailable("the key's object answered something else");
}
