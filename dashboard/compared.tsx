/** How a candidate compares with the policy. */
import type { Candidate } from "./answers.ts";
import { Figure, Rows, To } from "./parts.tsx";
import { count } from "./words.ts";

/** What both would have decided of the same calls. */
export function Compared({ candidate }: { readonly candidate: Candidate }) {
  const { policy, compared, keys = [] } = candidate;
  return (
    <>
      {compared !== undefined && (
        <dl class="figures">
          <Figure name="calls compared" value={count(compared.calls)} />
          <Figure name="admitted by both" value={count(compared.admittedByBoth)} />
          <Figure name="denied by both" value={count(compared.deniedByBoth)} />
          <Figure name="denied by the policy alone" value={count(compared.deniedByPolicyAlone)} />
          <Figure
            name="denied by the candidate alone"
            value={count(compared.deniedByCandidateAlone)}
            tone={compared.deniedByCandidateAlone > 0 ? "bad" : undefined}
          />
          <Figure name="not decided by one of them" value={count(compared.undecided)} />
        </dl>
      )}
      {keys.length > 0 && (
        <Rows
          label="Keys that the candidate alone would deny"
          heads={["denied by the candidate alone", "calls"]}
        >
          {keys.map((each) => (
            <tr key={each.key}>
              <td class="key">
                <To place={{ at: "key", policy, key: each.key }}>{each.key}</To>
              </td>
              <td>{count(each.count)}</td>
            </tr>
          ))}
        </Rows>
      )}
    </>
  );
}
