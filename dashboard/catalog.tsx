/** The page of tokens, the audit log and the document. */
import { useState } from "preact/hooks";
import type { AuditEntry } from "./answers.ts";
import { useSession } from "./context.ts";
import { DocumentPart } from "./document.tsx";
import { NewPolicyPart } from "./new-policy.tsx";
import { Part, ProblemNote, Rows } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { TokensPart } from "./tokens.tsx";
import { instant } from "./words.ts";

export function CatalogPage() {
  return (
    <>
      <h1>Catalog</h1>
      <p class="quiet">
        What was changed at run time. Policies that are there are changed on their own pages.
      </p>
      <NewPolicyPart />
      <TokensPart />
      <DocumentPart />
      <AuditPart />
    </>
  );
}

function AuditPart() {
  const { ask } = useSession();
  const [cursor, setCursor] = useState<string>();
  const { value, problem, again } = usePoll(`audit ${cursor ?? ""}`, 0, () =>
    ask<{ entries: AuditEntry[]; cursor?: string }>("GET", "/v1/audit", { query: { cursor } }),
  );
  return (
    <Part
      title="Who changed what"
      beside={
        <button type="button" class="small outline" onClick={() => void again()}>
          Look again
        </button>
      }
    >
      <ProblemNote problem={problem} />
      {value?.entries.length === 0 && <p class="quiet">Nothing was changed.</p>}
      {value !== undefined && value.entries.length > 0 && (
        <Rows label="Changes" heads={["when", "who", "what", "before", "after"]}>
          {value.entries.map((entry) => (
            <tr key={entry.id}>
              <td>{instant(entry.at)}</td>
              <td>{entry.by}</td>
              <td class="key">{entry.target}</td>
              <td>{shown(entry.before)}</td>
              <td>{shown(entry.after)}</td>
            </tr>
          ))}
        </Rows>
      )}
      <div class="row">
        {cursor !== undefined && (
          <button type="button" class="small outline" onClick={() => setCursor(undefined)}>
            Latest
          </button>
        )}
        {value?.cursor !== undefined && (
          <button type="button" class="small outline" onClick={() => setCursor(value.cursor)}>
            Earlier
          </button>
        )}
      </div>
    </Part>
  );
}

function shown(value: unknown) {
  return value === null || value === undefined ? "–" : <code>{JSON.stringify(value)}</code>;
}
