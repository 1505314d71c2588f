/** The keys that are denied now, over all policies. */
import { useRef } from "preact/hooks";
import type { KeyReport, TopKey } from "./answers.ts";
import type { Answer, Ask } from "./api.ts";
import { useSession } from "./context.ts";
import { reportsOf } from "./keys.tsx";
import { KeyLink, Part, ProblemNote, Rows, To } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { deniedMost, type Reading } from "./rates.ts";
import { retryAfter, count } from "./words.ts";

/** Each time it makes a call for each policy and each key. */
const EVERY_MS = 10_000;
const MAX_POLICIES = 6;
const MAX_KEYS = 10;

interface Denied {
  readonly policy: string;
  readonly key: string;
  readonly denials: number;
}
/** The policies that were looked at, and the denials of their keys. */
interface Look {
  readonly policies: readonly string[];
  readonly denials: ReadonlyMap<string, number>;
}
interface Limited extends Denied {
  readonly report: KeyReport | undefined;
}

export function LimitedPart({ readings }: { readonly readings: readonly Reading[] }) {
  const { ask } = useSession();
  const before = useRef<Look | undefined>(undefined);
  const isRead = readings.length > 0;
  const policies = deniedMost(readings).slice(0, MAX_POLICIES);
  const { value, problem } = usePoll(`limited ${isRead}`, EVERY_MS, async () => {
    // Before the counters are read nothing is known of any policy.
    if (!isRead) return { value: { keys: [], isSure: false }, etag: undefined };
    const denied = await deniedKeys(ask, policies);
    if (denied.problem !== undefined) return denied;
    const last = before.current;
    before.current = {
      policies,
      denials: new Map(denied.value.map((each) => [idOf(each), each.denials])),
    };
    const isGrowing = (each: Denied) =>
      last?.policies.includes(each.policy) === true && each.denials > (last.denials.get(idOf(each)) ?? 0);
    const keys = await limitedOf(ask, denied.value, isGrowing);
    return { value: { keys, isSure: denied.value.length === 0 || last !== undefined }, etag: undefined };
  });
  const keys = value?.keys ?? [];
  const isMeasuring = value?.isSure !== true;
  return (
    <Part title="Limited right now">
      <ProblemNote problem={problem} />
      {problem === undefined && keys.length === 0 && (
        <p class="quiet" aria-busy={isMeasuring}>
          {isMeasuring ? "Measuring…" : "No key is denied now."}
        </p>
      )}
      <div data-limited>
        <Rows
          label="Keys that are denied now"
          heads={["key", "policy", "reason", "denials", "retry after"]}
          rows={keys.map(({ report, ...each }) => ({
            key: idOf(each),
            cells: [
              <KeyLink policy={each.policy} name={each.key} />,
              <To place={{ at: "policy", policy: each.policy }}>{each.policy}</To>,
              report?.success === true ? "in part" : (report?.reason ?? "–"),
              count(each.denials),
              report === undefined ? "–" : retryAfter(report),
            ],
          }))}
        />
      </div>
      {keys.length > 0 && <p class="quiet">Denials: of this hour and the last.</p>}
    </Part>
  );
}

const idOf = ({ policy, key }: Pick<Denied, "policy" | "key">) => JSON.stringify([policy, key]);

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

/** The keys whose calls are denied now, or were since the last look; the latter first. */
async function limitedOf(
  ask: Ask,
  denied: readonly Denied[],
  isGrowing: (key: Denied) => boolean,
): Promise<readonly Limited[]> {
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
  return looked
    .map((each) => ({ ...each, report: reports.get(each.policy)?.get(each.key) }))
    .filter((each) => each.report?.success === false || isGrowing(each));
}
