/** The keys of a policy: those denied or called most, and with shared objects all of them. */
import { useState } from "preact/hooks";
import type { KeyReport, ListedKey, PolicyDescription, TopGroup, TopKey } from "./answers.ts";
import { canStandInAddress, path, type Answer, type Ask, type CallOptions } from "./api.ts";
import { useSession } from "./context.ts";
import { Choice, KeyLink, Part, ProblemNote, Rows } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { count, duration } from "./words.ts";

const EVERY_MS = 5_000;
/** Each time it makes a call for each key. */
export const TOP_EVERY_MS = 10_000;
const ON_A_PAGE = 50;
const MAX_TOP_SHOWN = 10;
/** The keys of a list that are read by separate calls: a list has no queues. */
const MAX_READ = 8;
/** A list of top keys, or groups, with fewer has all of them. */
const MAX_TOP_KEYS = 64;

export type By = "denied" | "active";
export const SORTS = [
  { name: "most denied", value: "denied" },
  { name: "most called", value: "active" },
] as const satisfies readonly { name: string; value: By }[];

interface TopRow {
  readonly key: string;
  readonly plan: string | undefined;
  readonly report: KeyReport | undefined;
}

interface Top {
  readonly rows: readonly TopRow[];
  readonly cells: TopLists["cells"];
}

/** Only keys of policies with shared objects can be listed. */
function isListed({ objects, pool }: PolicyDescription): boolean {
  return typeof objects === "number" && pool === undefined;
}

export function TopKeysPart({ policy: described }: { readonly policy: PolicyDescription }) {
  const { ask } = useSession();
  const policy = described.name;
  // A list has the states of its keys already.
  const hasStates = !isListed(described);
  const [by, setBy] = useState<By>("denied");
  const { value, problem } = usePoll(`${policy} ${by}`, TOP_EVERY_MS, () =>
    topOf(ask, policy, by, hasStates),
  );
  const states = hasStates ? statesOf((value?.rows ?? []).map(({ report }) => report)) : [];
  return (
    <Part title="Top keys">
      <Choice label="Sort keys" among={SORTS} chosen={by} onChosen={setBy} />
      <ProblemNote problem={problem} />
      {value?.rows.length === 0 && <p class="quiet">None in this hour and the last.</p>}
      <div data-top={by}>
        <Rows
          label="Top keys"
          heads={["key", "denied", "calls", ...states.map(({ head }) => head)]}
          rows={(value?.rows ?? []).map(({ key, plan, report }) => ({
            key,
            cells: [
              <>
                <KeyLink policy={policy} name={key} />
                {plan !== undefined && <small> plan {plan}</small>}
              </>,
              ...(value?.cells(key) ?? []),
              ...states.map(({ cell }) => cell(report)),
            ],
          }))}
        />
      </div>
      {WITHIN}
    </Part>
  );
}

export const WITHIN = <p class="quiet">Denied and calls: of this hour and the last.</p>;

interface TopLists {
  /** The names with most denials, or calls; those of the other list after them. */
  readonly names: readonly string[];
  readonly lists: Readonly<Record<By, ReadonlyMap<string, TopKey>>>;
  /** How often a name was denied, and came. */
  readonly cells: (name: string) => readonly string[];
}

/** The keys with most denials, or calls; or the groups. */
export async function topLists(
  ask: Ask,
  of: "keys" | "groups",
  policy: string,
  by: By,
): Promise<Answer<TopLists>> {
  const read = (kind: By) =>
    ask<{ keys?: TopKey[]; groups?: TopGroup[] }>("GET", `/v1/stats/${of}`, { query: { policy, by: kind } });
  const [denied, active] = await Promise.all([read("denied"), read("active")]);
  if (denied.problem !== undefined) return denied;
  if (active.problem !== undefined) return active;
  const byName = ({ keys = [], groups = [] }: typeof denied.value) =>
    new Map([
      ...keys.map((each) => [each.key, each] as const),
      ...groups.map(({ group, ...each }) => [group, { key: group, ...each }] as const),
    ]);
  const lists = { denied: byName(denied.value), active: byName(active.value) };
  const other = by === "denied" ? "active" : "denied";
  const names = [...new Set([...lists[by].keys(), ...lists[other].keys()])].slice(0, MAX_TOP_SHOWN);
  const cell = (list: ReadonlyMap<string, TopKey>, name: string) => {
    const counted = list.get(name);
    // In a list with fewer than there may be, whoever is missing had no such call.
    if (counted === undefined) return list.size < MAX_TOP_KEYS ? "0" : "–";
    const { count: most, error } = counted;
    return error === 0 ? count(most) : `${count(most - error)} to ${count(most)}`;
  };
  const cells = (name: string) => [cell(lists.denied, name), cell(lists.active, name)];
  return { value: { names, lists, cells }, etag: undefined };
}

/** The keys with most denials, or calls, and what is known of each. */
async function topOf(ask: Ask, policy: string, by: By, hasStates: boolean): Promise<Answer<Top>> {
  const top = await topLists(ask, "keys", policy, by);
  if (top.problem !== undefined) return top;
  const { names, lists, cells } = top.value;
  const reports = await reportsOf(ask, policy, hasStates ? names : []);
  const rows = names.map((key) => {
    const plan = (lists.active.get(key) ?? lists.denied.get(key))?.plan;
    return { key, plan, report: reports.get(key) };
  });
  return { value: { rows, cells }, etag: undefined };
}

/** All keys, for policies that can list them. */
export function KeysPart({ policy }: { readonly policy: PolicyDescription }) {
  if (!isListed(policy)) return null;
  return (
    <Part title="All keys">
      <ListedKeys policy={policy.name} />
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
  const turn = (label: string, to: readonly string[]) => (
    <button type="button" class="small outline" onClick={() => setCursors(to)}>
      {label}
    </button>
  );
  const states = statesOf(value?.keys ?? []);
  return (
    <>
      <label class="find">
        Keys that begin with
        <input type="search" value={prefix} onInput={(event) => find(event.currentTarget.value)} />
      </label>
      <ProblemNote problem={problem} />
      <Rows
        label="All keys"
        heads={["key", ...states.map(({ head }) => head)]}
        rows={(value?.keys ?? []).map((each) => ({
          key: each.key,
          cells: [<KeyLink policy={policy} name={each.key} />, ...states.map(({ cell }) => cell(each))],
        }))}
      />
      {value?.keys.length === 0 && <p class="quiet">None on this page.</p>}
      <div class="row">
        {cursors.length > 0 && turn("Previous page", cursors.slice(0, -1))}
        {value?.cursor !== undefined && turn("Next page", [...cursors, value.cursor])}
      </div>
    </>
  );
}

/** A key's known values: a list does not include waiting calls. */
type ListedReport = Omit<ListedKey, "remaining" | "resetAfterMs"> & {
  readonly remaining?: number;
  readonly queueLength?: number;
  readonly longestWaitMs?: number;
};

interface State {
  readonly head: string;
  readonly cell: (report: ListedReport | undefined) => string;
}

/** The columns of what is known of keys; holds, leases and queues only if one of the keys has any. */
function statesOf(reports: readonly (ListedReport | undefined)[]): readonly State[] {
  const shown = (value: number | undefined) => (value === undefined ? "–" : count(value));
  const state = (
    head: string,
    valueOf: (report: ListedReport) => number | undefined,
    text: (value: number | undefined) => string = shown,
  ) => ({ head, valueOf, cell: (of: ListedReport | undefined) => text(of && valueOf(of)) });
  const rare = [
    state("holds", ({ holds }) => holds),
    state("leases", ({ leases }) => leases),
    state("waiting", ({ queueLength }) => queueLength),
    state(
      "longest wait",
      ({ longestWaitMs }) => longestWaitMs,
      (ms) => (ms === undefined ? "–" : duration(ms)),
    ),
  ];
  return [
    state("remaining", ({ remaining }) => remaining),
    state("limit", ({ limit }) => limit),
    ...rare.filter(({ valueOf }) => reports.some((each) => each !== undefined && (valueOf(each) ?? 0) > 0)),
  ];
}

interface KeyPageOf {
  readonly keys: readonly ListedReport[];
  readonly cursor?: string;
}

/** A page of keys; those with nothing remaining are read one by one, since calls may wait there. */
async function listed(
  ask: Ask,
  policy: string,
  query: NonNullable<CallOptions["query"]>,
): Promise<Answer<KeyPageOf>> {
  const page = await ask<{ keys: ListedKey[]; cursor?: string }>("GET", path("policies", policy, "keys"), {
    query,
  });
  if (page.problem !== undefined) return page;
  const full = page.value.keys.filter(({ remaining }) => remaining === 0).map(({ key }) => key);
  const reports = await reportsOf(ask, policy, full.slice(0, MAX_READ));
  const keys = page.value.keys.map((each) => reports.get(each.key) ?? each);
  return { value: { ...page.value, keys }, etag: undefined };
}

/** The states of keys, of those that can be read. */
export async function reportsOf(
  ask: Ask,
  policy: string,
  keys: readonly string[],
): Promise<ReadonlyMap<string, KeyReport>> {
  const read = await Promise.all(
    keys.filter(canStandInAddress).map((key) => ask<KeyReport>("GET", path("policies", policy, "keys", key))),
  );
  return new Map(read.flatMap(({ value }) => (value === undefined ? [] : [[value.key, value] as const])));
}
