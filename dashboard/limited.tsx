/** The keys that are denied now, over all policies. */
import { useRef } from "preact/hooks";
import type { KeyReport, TopKey } from "./answers.ts";
import type { Answer, Ask } from "./api.ts";
import { useSession } from "./context.ts";
import { reportsOf } from "./keys.tsx";
import { KeyLink, Part, ProblemNote, Rows } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { ratesOf, type Reading } from "./rates.ts";
import { admittedIn, count } from "./words.ts";

/** Each time it makes a call for each policy and each key. */
const EVERY_MS = 10_000;
const MAX_POLICIES = 6;
const MAX_KEYS = 10;

interface Denied {
  readonly policy: string;
  readonly key: string;
  readonly denials: number;
}
interface Limited extends Denied {
  readonly report: KeyReport | undefined;
}

export function LimitedPart({ readings }: { readonly readings: readonly Reading[] }) {
  const { ask } = useSession();
  const before = useRef<ReadonlyMap<string, number>>(new Map());
  const policies = deniedMost(readings);
  const { value, problem } = usePoll(`limited ${policies.length > 0}`, EVERY_MS, async () => {
    const denied = await deniedKeys(ask, policies);
    if (denied.problem !== undefined) return denied;
    const isGrowing = growingSince(before.current);
    before.current = new Map(denied.value.map((each) => [idOf(each), each.denials]));
    return await limitedOf(ask, denied.value, isGrowing);
  });
  return (
    <Part title="Limited right now">
      <ProblemNote problem={problem} />
      {(readings.length === 0 || (value === undefined && problem === undefined)) && (
        <p aria-busy="true">Measuring…</p>
      )}
      {readings.length > 0 && value?.length === 0 && <p class="quiet">No key is denied now.</p>}
      <div data-limited>
        <Rows
          label="Keys that are denied now"
          heads={["key", "policy", "reason", "denied", "admitted again in"]}
          rows={(value ?? []).map((each) => ({
            key: idOf(each),
            cells: [
              <KeyLink policy={each.policy} name={each.key} />,
              each.policy,
              each.report?.success === false ? each.report.reason : "–",
              count(each.denials),
              each.report === undefined
                ? "–"
                : admittedIn({
                    success: each.report.success,
                    retryAfterMs: each.report.retryAfterMs ?? null,
                  }),
            ],
          }))}
        />
      </div>
    </Part>
  );
}

const idOf = ({ policy, key }: Pick<Denied, "policy" | "key">) => JSON.stringify([policy, key]);

/** The policies with most denials: in the last half minute, or while that is not known since counting began. */
export function deniedMost(readings: readonly Reading[]): readonly string[] {
  const last = readings.at(-1)?.totals ?? new Map<string, { denied: number }>();
  const denials = [...last].map(([name, { denied }]) => ({
    name,
    denied: ratesOf(readings, name)?.deniedPerSecond ?? denied,
  }));
  return denials
    .filter(({ name, denied }) => denied > 0 && !name.startsWith("_"))
    .toSorted((one, other) => other.denied - one.denied)
    .slice(0, MAX_POLICIES)
    .map(({ name }) => name);
}

async function deniedKeys(ask: Ask, policies: readonly string[]): Promise<Answer<readonly Denied[]>> {
  const lists = await Promise.all(
    policies.map(async (policy) => {
      const query = { policy, by: "denied" };
      return { policy, read: await ask<{ keys: TopKey[] }>("GET", "/v1/stats/keys", { query }) };
    }),
  );
  const problem = lists.find(({ read }) => read.problem !== undefined)?.read.problem;
  if (problem !== undefined) return { problem };
  const keys = lists.flatMap(({ policy, read }) =>
    (read.value?.keys ?? []).map(({ key, count: denials }) => ({ policy, key, denials })),
  );
  return { value: keys, etag: undefined };
}

/** Whether a key was denied since the last look; of the first look nothing is known. */
function growingSince(before: ReadonlyMap<string, number>): (key: Denied) => boolean {
  return (key) => before.size > 0 && key.denials > (before.get(idOf(key)) ?? 0);
}

/** Those of which a call is denied now, or calls were denied since the last look; these first. */
async function limitedOf(
  ask: Ask,
  denied: readonly Denied[],
  isGrowing: (key: Denied) => boolean,
): Promise<Answer<readonly Limited[]>> {
  const order = (each: Denied) => (isGrowing(each) ? 1 : 0);
  const looked = denied
    .toSorted((one, other) => order(other) - order(one) || other.denials - one.denials)
    .slice(0, MAX_KEYS);
  const byPolicy = Map.groupBy(looked, ({ policy }) => policy);
  const reports = new Map(
    await Promise.all(
      [...byPolicy].map(async ([policy, keys]) => {
        const names = keys.map(({ key }) => key);
        return [policy, await reportsOf(ask, policy, names)] as const;
      }),
    ),
  );
  const limited = looked
    .map((each) => ({ ...each, report: reports.get(each.policy)?.get(each.key) }))
    .filter((each) => each.report?.success === false || isGrowing(each));
  return { value: limited, etag: undefined };
}
