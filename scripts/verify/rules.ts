/** Whether a policy with several rules is decided all or nothing. */
import { pause, type Answered, type Calls } from "./calls.ts";
import { callByMany, CALLERS, boundOf, decisionsIn, mostIn, notDecided } from "./exactness.ts";
import { firstToDeny, type RateRule, type RulesPolicy } from "./policies.ts";
import { type Finding, untested } from "./report.ts";

/** An isolate's units are returned, or count as used, within this time after its end. */
const SETTLED_WITHIN_MS = 2_000;
/** A crash or deployment may cost 2 % and a sixteenth of each limit. Wrong denials would take everything. */
const MAX_LOST = 1 / 8;

type Cost = Readonly<Record<string, number>>;

/** Calls until one rule denies. Every rule keeps to its bound, and denied calls take nothing. */
export async function verifyRules(calls: Calls, policy: RulesPolicy, lastsMs: number): Promise<Finding> {
  const name = `several rules of ${policy.policy}, all or nothing: ${policy.rules.map((rule) => rule.name).join(", ")}`;
  const key = calls.freshKey();
  const cost = costOf(policy.rules, lastsMs);
  const lostBefore = calls.lost;
  const answers = await callByMany(calls, lastsMs, { policy: policy.policy, key, cost });
  const lost = calls.lost - lostBefore;
  const decided = decisionsIn(answers);
  const admitted = decided.filter(({ body }) => body["success"] === true);
  const left = await leftOf(calls, policy, key, cost, admitted.length + lost);
  await calls.reset(policy.policy, key);
  const first = firstToDeny(policy);
  const perRule = policy.rules.map((rule) => {
    const { says, isBroken, missing } = findingOf(rule, admitted, unitsOf(rule, cost), lost, left);
    // A denied call can take nothing of the rule that denies, which is used up: a repeated call took it.
    return { says, isBroken: isBroken || (rule !== first && missing > rule.capacity * MAX_LOST) };
  });
  const says = [
    `${answers.length} calls by ${CALLERS} at once in ${lastsMs / 1_000} s: ${admitted.length} admitted, each of ${inWords(cost)}`,
    ...perRule.map((each) => each.says),
    ...notDecided(answers.length - decided.length),
  ];
  if (admitted.length === 0 || decided.length === admitted.length)
    return untested(name, ...says, "nothing was admitted, or nothing was denied");
  return { name, verdict: perRule.some(({ isBroken }) => isBroken) ? "BROKEN" : "holds", says };
}

/** A call's cost: one unit of the rule that denies first, and of the others what leaves half by then. */
function costOf(rules: readonly RateRule[], lastsMs: number): Cost {
  const first = firstToDeny({ rules });
  const callsToCome = first === undefined ? 1 : mostIn(first, lastsMs);
  const least = (unit: string) =>
    Math.min(...rules.filter((rule) => rule.unit === unit).map(({ capacity }) => capacity));
  return Object.fromEntries(
    rules.map(({ unit }) => [
      unit,
      unit === first?.unit ? 1 : Math.max(1, Math.floor(least(unit) / (2 * callsToCome))),
    ]),
  );
}

function unitsOf({ unit }: RateRule, cost: Cost): number {
  return cost[unit] ?? 1;
}

function inWords(cost: Cost): string {
  return Object.entries(cost)
    .map(([unit, units]) => `${units} ${unit}`)
    .join(" and ");
}

function findingOf(
  rule: RateRule,
  admitted: readonly Answered[],
  units: number,
  lost: number,
  left: ReadonlyMap<string, number>,
): { readonly says: string; readonly isBroken: boolean; readonly missing: number } {
  const bound = boundOf(
    rule,
    admitted.map((each) => ({ ...each, units })),
  );
  const most =
    bound.excess > 0 ? `${Math.ceil(bound.excess)} more than its bound` : "never more than its bound";
  const remaining = left.get(rule.name);
  if (remaining === undefined)
    return { says: `${rule.name}: ${most}; the remaining units are missing`, ...bound, missing: 0 };
  const missing = missingOf(rule, (admitted.length + lost) * units, remaining);
  const says = `${rule.name}: ${most}; ${remaining} of ${rule.capacity} left, ${missing} that were denied are missing`;
  return { says, ...bound, missing };
}

/** Units that are gone without an admission. Refilled ones hide some. */
function missingOf({ capacity }: RateRule, taken: number, remaining: number): number {
  return Math.max(0, capacity - taken - remaining);
}

async function leftOf(
  calls: Calls,
  { policy, rules, reservationTtlMs }: RulesPolicy,
  key: string,
  cost: Cost,
  taken: number,
): Promise<ReadonlyMap<string, number>> {
  const endMs = performance.now() + reservationTtlMs + SETTLED_WITHIN_MS;
  for (;;) {
    const answered = await calls.make("POST", "/v1/limit", { policy, key, cost: 0 });
    const told = (answered?.body["rules"] ?? []) as readonly { name: string; remaining?: number }[];
    const left = new Map(
      told.flatMap(({ name, remaining }) => (remaining === undefined ? [] : [[name, remaining]])),
    );
    const isMissing = rules.some(
      (rule) => missingOf(rule, taken * unitsOf(rule, cost), left.get(rule.name) ?? 0) > 0,
    );
    if (!isMissing || performance.now() > endMs) return left;
    await pause(250);
  }
}
