/** The keys of a policy, with their leases and queues, as they move. */
import { useState } from "preact/hooks";
import type { KeyReport, ListedKey, PolicyDescription, TopKey } from "./answers.ts";
import { canStandInAddress, path, type Answer, type Ask } from "./api.ts";
import { useSession } from "./context.ts";
import { Part, ProblemNote, Rows, To } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { count, duration } from "./words.ts";

const EVERY_MS = 2_000;
const ON_A_PAGE = 50;
/** So many keys are looked at where they cannot be listed, each with a call of its own. */
const LOOKED_AT = 8;

/** The keys: all of them where objects can be listed, else those that come most. */
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
    ask<{ keys: ListedKey[]; cursor?: string }>("GET", path("policies", policy, "keys"), {
      query: { limit: String(ON_A_PAGE), cursor, ...(prefix !== "" && { prefix }) },
    }),
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
      <Rows label="Keys" heads={["key", "left", "of", "whole in", "in use", "holds", "leases"]}>
        {(value?.keys ?? []).map((each) => (
          <tr key={each.key}>
            <td class="key">
              <To place={{ at: "key", policy, key: each.key }}>{each.key}</To>
            </td>
            <td>{count(each.remaining)}</td>
            <td>{count(each.limit)}</td>
            <td>{duration(each.resetAfterMs)}</td>
            <td>{count(each.outstanding)}</td>
            <td>{count(each.holds)}</td>
            <td>{count(each.leases)}</td>
          </tr>
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
  const { value = [], problem } = usePoll(policy, EVERY_MS, () => activeReports(ask, policy));
  return (
    <>
      <p class="quiet">
        Each key of this policy has an object of its own, so they cannot be listed. These come most often.
      </p>
      <ProblemNote problem={problem} />
      {value.length > 0 && (
        <Rows
          label="Keys"
          heads={["key", "left", "of", "in use", "holds", "leases", "waiting", "longest wait"]}
        >
          {value.map((each) => (
            <tr key={each.key}>
              <td class="key">
                <To place={{ at: "key", policy, key: each.key }}>{each.key}</To>
              </td>
              <td>{each.remaining === undefined ? "–" : count(each.remaining)}</td>
              <td>{count(each.limit)}</td>
              <td>{count(each.outstanding)}</td>
              <td>{count(each.holds)}</td>
              <td>{count(each.leases)}</td>
              <td>{count(each.queueLength)}</td>
              <td>{duration(each.longestWaitMs)}</td>
            </tr>
          ))}
        </Rows>
      )}
    </>
  );
}

async function activeReports(ask: Ask, policy: string): Promise<Answer<readonly KeyReport[]>> {
  const top = await ask<{ keys: TopKey[] }>("GET", "/v1/stats/keys", { query: { policy, by: "active" } });
  if (top.problem !== undefined) return top;
  const names = top.value.keys.map(({ key }) => key).filter(canStandInAddress);
  const looked = await Promise.all(
    names.slice(0, LOOKED_AT).map((key) => ask<KeyReport>("GET", path("policies", policy, "keys", key))),
  );
  return { value: looked.flatMap(({ value }) => (value === undefined ? [] : [value])), etag: undefined };
}
