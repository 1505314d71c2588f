/** The keys of a policy, with their leases and queues, updated live. */
import { useState } from "preact/hooks";
import type { KeyReport, ListedKey, PolicyDescription, TopKey } from "./answers.ts";
import { canStandInAddress, path, type Answer, type Ask, type CallOptions } from "./api.ts";
import { useSession } from "./context.ts";
import { Part, ProblemNote, Rows, To } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { count, duration } from "./words.ts";

const EVERY_MS = 5_000;
/** Each time it makes a call for each key. */
const ACTIVE_EVERY_MS = 10_000;
const ON_A_PAGE = 50;
/** The number of keys read by separate calls: a list has no queues, and some policies have no list. */
const LOOKED_AT = 8;

export function KeysPart({ policy }: { readonly policy: PolicyDescription }) {
  const isListed = typeof policy.objects === "number" && policy.pool === undefined;
  return (
    <Part title="Keys">
      {isListed ? <ListedKeys policy={policy.name} /> : <ActiveKeys policy={policy.name} />}
    </Part>
  );
}

function ListedKeys({ policy }: { readonly policy: string }) {
  const { ask } = useSession();
  const [prefix, setPrefix] = useState("");
  const [cursors, setCursors] = useState<readonly string[]>([]);
  const cursor = cursors.at(-1);
  const { value, problem } = usePoll(`${policy} ${prefix} ${cursor ?? ""}`, EVERY_MS, () =>
    listed(ask, policy, { limit: String(ON_A_PAGE), cursor, ...(prefix !== "" && { prefix }) }),
  );
  const find = (begins: string) => {
    setPrefix(begins);
    setCursors([]);
  };
  return (
    <>
      <label class="find">
        Keys that begin with
        <input type="search" value={prefix} onInput={(event) => find(event.currentTarget.value)} />
      </label>
      <ProblemNote problem={problem} />
      <Rows label="Keys" heads={HEADS}>
        {(value?.keys ?? []).map((each) => (
          <KeyRow policy={policy} report={each} key={each.key} />
        ))}
      </Rows>
      {value?.keys.length === 0 && <p class="quiet">None on this page.</p>}
      <div class="row">
        {cursors.length > 0 && (
          <button type="button" class="small outline" onClick={() => setCursors(cursors.slice(0, -1))}>
            Previous page
          </button>
        )}
        {value?.cursor !== undefined && (
          <button
            type="button"
            class="small outline"
            onClick={() => setCursors([...cursors, value.cursor ?? ""])}
          >
            Next page
          </button>
        )}
      </div>
    </>
  );
}

function ActiveKeys({ policy }: { readonly policy: string }) {
  const { ask } = useSession();
  const { value = [], problem } = usePoll(policy, ACTIVE_EVERY_MS, () => activeReports(ask, policy));
  return (
    <>
      <p class="quiet">
        Each key of this policy has an object of its own, so they cannot be listed. These come most often.
      </p>
      <ProblemNote problem={problem} />
      {value.length > 0 && (
        <Rows label="Keys" heads={HEADS}>
          {value.map((each) => (
            <KeyRow policy={policy} report={each} key={each.key} />
          ))}
        </Rows>
      )}
    </>
  );
}

const HEADS = ["key", "left", "of", "in use", "holds", "leases", "waiting", "longest wait"];

/** A key's known values: a list does not include waiting calls. */
type ListedReport = Omit<ListedKey, "remaining" | "resetAfterMs"> & {
  readonly remaining?: number;
  readonly queueLength?: number;
  readonly longestWaitMs?: number;
};

function KeyRow({ policy, report }: { readonly policy: string; readonly report: ListedReport }) {
  const { key, remaining, queueLength, longestWaitMs } = report;
  const shown = (value: number | undefined) => (value === undefined ? "–" : count(value));
  return (
    <tr>
      <td class="key">
        <To place={{ at: "key", policy, key }}>{key}</To>
      </td>
      <td>{shown(remaining)}</td>
      <td>{count(report.limit)}</td>
      <td>{count(report.outstanding)}</td>
      <td>{count(report.holds)}</td>
      <td>{count(report.leases)}</td>
      <td>{shown(queueLength)}</td>
      <td>{longestWaitMs === undefined ? "–" : duration(longestWaitMs)}</td>
    </tr>
  );
}

interface KeyPageOf {
  readonly keys: readonly ListedReport[];
  readonly cursor?: string;
}

/** A page of keys; those with nothing left are read one by one, since calls may wait there. */
async function listed(
  ask: Ask,
  policy: string,
  query: NonNullable<CallOptions["query"]>,
): Promise<Answer<KeyPageOf>> {
  const page = await ask<{ keys: ListedKey[]; cursor?: string }>("GET", path("policies", policy, "keys"), {
    query,
  });
  if (page.problem !== undefined) return page;
  const full = page.value.keys.filter(({ key, remaining }) => remaining === 0 && canStandInAddress(key));
  const reports = await reportsOf(
    ask,
    policy,
    full.slice(0, LOOKED_AT).map(({ key }) => key),
  );
  const byKey = new Map(reports.map((report) => [report.key, report]));
  const keys = page.value.keys.map((each) => byKey.get(each.key) ?? each);
  return { value: { ...page.value, keys }, etag: undefined };
}

async function reportsOf(ask: Ask, policy: string, keys: readonly string[]): Promise<readonly KeyReport[]> {
  const read = await Promise.all(
    keys.map((key) => ask<KeyReport>("GET", path("policies", policy, "keys", key))),
  );
  return read.flatMap(({ value }) => (value === undefined ? [] : [value]));
}

async function activeReports(ask: Ask, policy: string): Promise<Answer<readonly KeyReport[]>> {
  const top = await ask<{ keys: TopKey[] }>("GET", "/v1/stats/keys", { query: { policy, by: "active" } });
  if (top.problem !== undefined) return top;
  const names = top.value.keys.map(({ key }) => key).filter(canStandInAddress);
  return { value: await reportsOf(ask, policy, names.slice(0, LOOKED_AT)), etag: undefined };
}
