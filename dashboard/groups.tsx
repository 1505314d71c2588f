/** The groups that share a key (core/algorithms/fair.ts): how many are active, and those that owe most with their parts. */
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
      {busiest.length > 0 && (
        <Rows label="Groups" heads={["group", "left for sure", "part of the limit"]}>
          {busiest.map(({ group, limit, remaining }) => (
            <tr key={group}>
              <td class="key">{group}</td>
              <td>{count(remaining)}</td>
              <td>{count(limit)}</td>
            </tr>
          ))}
        </Rows>
      )}
    </Part>
  );
}
