/** The keys of a policy with the most denials, and with the most calls. */
import type { TopKey } from "./answers.ts";
import { useSession } from "./context.ts";
import { Part, ProblemNote, Rows, To } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { count } from "./words.ts";

const EVERY_MS = 10_000;
const SHOWN = 10;

export function TopKeysPart({ policy }: { readonly policy: string }) {
  return (
    <Part title="Top keys">
      <p class="quiet">Of this hour and the last one.</p>
      <div class="columns">
        <TopKeys policy={policy} by="denied" title="Denied most" />
        <TopKeys policy={policy} by="active" title="Most active" />
      </div>
    </Part>
  );
}

function TopKeys(props: {
  readonly policy: string;
  readonly by: "denied" | "active";
  readonly title: string;
}) {
  const { policy, by, title } = props;
  const { value, problem } = useTopKeys(policy, by, EVERY_MS);
  return (
    <div data-top={by}>
      <h3>{title}</h3>
      <ProblemNote problem={problem} />
      {value !== undefined && value.keys.length === 0 && <p class="quiet">None.</p>}
      {value !== undefined && value.keys.length > 0 && (
        <Rows label={title} heads={["key", by === "denied" ? "denied" : "calls"]}>
          {value.keys.slice(0, SHOWN).map(({ key, count: calls, error, plan }) => (
            <tr key={key}>
              <td class="key">
                <To place={{ at: "key", policy, key }}>{key}</To>
                {plan !== undefined && <small> plan {plan}</small>}
              </td>
              <td>
                {count(calls)}
                {error > 0 && <small> (at least {count(calls - error)})</small>}
              </td>
            </tr>
          ))}
        </Rows>
      )}
    </div>
  );
}

export function useTopKeys(policy: string, by: "denied" | "active", everyMs: number) {
  const { ask } = useSession();
  return usePoll(`${policy} ${by}`, everyMs, () =>
    ask<{ keys: TopKey[] }>("GET", "/v1/stats/keys", { query: { policy, by } }),
  );
}
