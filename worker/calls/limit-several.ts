/**
 * A call with several checks of any policies and keys: all or none of them (limit-all.ts), or each by itself.
 *
 * A check by itself is a plain `limit`. No holds are taken, and the isolate decides what it can. One check that cannot
 * be decided is one decision among the others: those may have taken units, which the caller has to know.
 */
import type { LimiterClient } from "../../client/limiter-client.ts";
import { refusedDecision, type AllDecisions, type Decision } from "../../core/protocol/decision.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { acquireBeside, limitBeside } from "./candidates.ts";
import { nameOf, parseChecks, type Check, type IndependentCheck } from "./checks.ts";
import { limitTogether } from "./limit-all.ts";

/** So many checks of one call ask objects at once. The others wait, or are decided by the isolate meanwhile. */
const MOST_AT_ONCE = 20;

/** Decides on several checks. */
export async function callLimitSeveral(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<AllDecisions | Problem> {
  const checks = await parseChecks(client, principal, input);
  if (checks instanceof Problem) return checks;
  const answered =
    "together" in checks ? await limitByKey(client, checks.together) : await limitEach(client, checks.alone);
  if (answered instanceof Problem) return answered;
  const made = "together" in checks ? checks.together : checks.alone;
  for (const [index, decision] of answered.decisions.entries()) {
    client.told(decision);
    const check = made[index];
    // What was let through by its own policy, and took nothing since another was denied, says nothing of either.
    if (check !== undefined && (answered.success || "alone" in checks || !decision.success))
      checkBeside(client, check, decision);
  }
  return answered;
}

function checkBeside(
  client: LimiterClient,
  { policy, key, ...asked }: IndependentCheck,
  decision: Decision,
): void {
  const { lease } = policy;
  if (lease === undefined) return limitBeside(client, { policy, key }, asked, decision);
  const { cost, priority } = asked;
  acquireBeside(client, { policy, key }, { id: "", cost, priority, ttlMs: lease.ttlMs, waitMs: 0 }, decision);
}

/**
 * Checks of one key are made as one, with the cost that they have together: so each is answered with what is left after
 * all of them, and a denial with the wait for all of them. A check that leases units is made by itself, since each has a
 * lease of its own.
 */
async function limitByKey(client: LimiterClient, checks: readonly Check[]): Promise<AllDecisions | Problem> {
  const made: Check[] = [];
  const places = checks.map((check) => {
    const { policy, total } = check;
    const isLeasing = policy.rules.some(({ algorithm }) => algorithm.leasing !== undefined);
    const others = checks.filter((each) => nameOf(each) === nameOf(check));
    if (isLeasing || others.length === 1) return made.push(check) - 1;
    const before = made.findIndex((each) => nameOf(each) === nameOf(check));
    if (before >= 0) return before;
    const isPlain = others.every((each) => typeof each.cost === "number");
    const sum = others.reduce((units, each) => units + Number(each.cost), 0);
    return made.push({ ...check, cost: isPlain ? sum : total }) - 1;
  });
  const answer = await limitTogether(client, made);
  if (answer instanceof Problem) return answer;
  return { ...answer, decisions: places.flatMap((place) => answer.decisions[place] ?? []) };
}

async function limitEach(client: LimiterClient, checks: readonly IndependentCheck[]): Promise<AllDecisions> {
  const decisions: Decision[] = [];
  const left = checks.entries();
  // All of these take from one iterator, so each check is made once.
  const takeOn = async () => {
    for (const [index, { policy, key, ...asked }] of left) {
      const decided = client.limit(policy, key, asked);
      const decision = decided instanceof Promise ? await decided : decided;
      decisions[index] = decision instanceof Problem ? refusedDecision(policy, key, decision) : decision;
    }
  };
  await Promise.all(Array.from({ length: Math.min(MOST_AT_ONCE, checks.length) }, takeOn));
  return { success: decisions.every(({ success }) => success), decisions };
}
