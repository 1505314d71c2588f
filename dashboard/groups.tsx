/** The groups that share a key (core/algorithms/fair/fair.ts): how many are active, and those that owe most with their parts. */
import type { GroupsReport } from "./answers.ts";
import { Part, Rows } from "./parts.tsx";
import { count } from "./words.ts";

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
