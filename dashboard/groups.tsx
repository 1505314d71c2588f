/** The groups that share a key (core/algorithms/fair/fair.ts), and those of a policy that were denied or came most often. */
import { useState } from "preact/hooks";
import type { GroupsReport } from "./answers.ts";
import { useSession } from "./context.ts";
import { type By, SORTS, TOP_EVERY_MS, topLists, WITHIN } from "./keys.tsx";
import { Choice, Part, ProblemNote, Rows } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { count } from "./words.ts";

/** How many groups are active, and those that owe most with their parts. */
export function Groups({ groups: { active, busiest = [] } }: { readonly groups: GroupsReport }) {
  return (
    <Part title="Groups">
      <p>
        {active === 0 ? "No group is active." : `${count(active)} active.`}
        {busiest.length > 0 && busiest.length < active && ` The ${busiest.length} that owe most:`}
        {active > 0 && busiest.length === 0 && " Their names need the scope admin."}
      </p>
      <Rows
        label="Groups"
        heads={["group", "remaining", "part of the limit"]}
        rows={busiest.map(({ group, limit, remaining }) => ({
          key: group,
          cells: [<span class="key">{group}</span>, count(remaining), count(limit)],
        }))}
      />
    </Part>
  );
}

export function TopGroupsPart({ policy }: { readonly policy: string }) {
  const { ask } = useSession();
  const [by, setBy] = useState<By>("denied");
  const { value, problem } = usePoll(`${policy} ${by}`, TOP_EVERY_MS, () =>
    topLists(ask, "groups", policy, by),
  );
  return (
    <Part title="Top groups">
      <Choice label="Sort groups" among={SORTS} chosen={by} onChosen={setBy} />
      <ProblemNote problem={problem} />
      {value?.names.length === 0 && <p class="quiet">None in this hour and the last.</p>}
      <div data-top-groups={by}>
        <Rows
          label="Top groups"
          heads={["group", "denied", "calls"]}
          rows={(value?.names ?? []).map((group) => ({
            key: group,
            cells: [<span class="key">{group}</span>, ...(value?.cells(group) ?? [])],
          }))}
        />
      </div>
      {WITHIN}
    </Part>
  );
}
