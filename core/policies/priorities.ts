/**
 * Priorities: how important a call is, and what a policy keeps for the more important ones.
 *
 * With `reserve = { critical = "20%" }` the calls of all other priorities see 80 % of each limit: for them, a fifth of
 * the capacity always counts as taken. So they never use what is kept, however many they are, and a critical call finds
 * it. That is the fleet usage load shedder of P. Tarjan, "Scaling your API with rate limiters" (Stripe, 2017), for
 * rates too, and exact.
 *
 * The bound: in any interval, the units admitted of a priority and of those below it are at most what the limit without
 * the kept part admits. An isolate's units belong to one priority, because they were granted to it.
 */
import { violation } from "../validation.ts";
import { type GivenPriorities, USUAL } from "./policy-fields.ts";
import type { Policy, Priorities, Rule } from "./policy.ts";

/** The priorities of a policy, or what is wrong with its fields. */
export function prioritiesOf(
  policy: Omit<Policy, "priorities">,
  { priorities: names, defaultPriority, reserve: given, ageing: ageingMs }: GivenPriorities,
): Priorities | { readonly problems: readonly string[] } {
  const allowed = `one of ${names.map((name) => JSON.stringify(name)).join(", ")}`;
  const usual = defaultPriority ?? (names.includes(USUAL) ? USUAL : names.at(-1)) ?? USUAL;
  const problems: string[] = [];
  if (!names.includes(usual)) problems.push(violation(["defaultPriority"], usual, allowed));
  const reserve: Record<string, number> = {};
  for (const [name, value] of Object.entries(given)) {
    const share = shareIn(value);
    if (!names.includes(name)) problems.push(violation(["a name in reserve"], name, allowed));
    else if (name === names.at(-1))
      problems.push(violation(["reserve", name], value, "left out: nothing is less important"));
    else if (share === undefined)
      problems.push(violation(["reserve", name], value, 'a part such as "20%", above 0 and below 100%'));
    else reserve[name] = share;
  }
  const isKept = Object.keys(reserve).length > 0;
  if (isKept && policy.pool !== undefined)
    problems.push(
      violation(["reserve"], given, 'left out with pool = "redis": the pool knows no priorities'),
    );
  const unfit = policy.rules.find(
    ({ algorithm }) =>
      algorithm.limitNow !== undefined ||
      algorithm.isLasting === true ||
      algorithm.fields["limit"] === undefined,
  );
  if (isKept && unfit !== undefined)
    problems.push(violation(["reserve"], given, `left out with algorithm "${unfit.algorithm.name}"`));
  if (problems.length > 0) return { problems };
  const seen = new Map<string, Policy>();
  const priorities = { names, usual, reserve, ageingMs, seen };
  let part = 0;
  for (const name of isKept ? names : []) {
    const [first, ...others] = policy.rules;
    const rules =
      part === 0
        ? policy.rules
        : ([withApart(first, part), ...others.map((rule) => withApart(rule, part))] as const);
    const empty = rules.find(({ capacity }) => capacity < 1);
    if (empty !== undefined)
      problems.push(
        violation(["reserve"], given, `such that ${name} calls see at least one unit of ${empty.name}`),
      );
    seen.set(name, { ...policy, rules, priority: name, priorities });
    part += Object.hasOwn(reserve, name) ? (reserve[name] ?? 0) : 0;
  }
  return problems.length > 0 ? { problems } : priorities;
}

/** The rule with a part of its capacity kept for others, rounded up. */
function withApart(rule: Rule, part: number): Rule {
  // A sum of parts may be a little too large, and rounding up must not keep a unit more for that.
  const apart = Math.ceil(rule.capacity * part - 1e-9);
  return { ...rule, apart, capacity: rule.capacity - apart };
}

function shareIn(value: unknown): number | undefined {
  const match = typeof value === "string" ? /^(\d{1,2}(?:\.\d{1,3})?)\s?%$/.exec(value) : null;
  const share = match === null ? 0 : Number(match[1]) / 100;
  return share > 0 && share < 1 ? share : undefined;
}
