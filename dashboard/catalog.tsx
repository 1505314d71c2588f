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
      <p class="quiet">What was changed at run time. To change a policy that is there, open its page.</p>
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
      title="Audit log"
      beside={
        <button type="button" class="small outline" onClick={() => void again()}>
          Refresh
        </button>
      }
    >
      <ProblemNote problem={problem} />
      {value?.entries.length === 0 && <p class="quiet">Nothing was changed.</p>}
      <Rows
        label="Audit log"
        heads={["when", "who", "what", "before", "after"]}
        rows={(value?.entries ?? []).map((entry) => ({
          key: entry.id,
          cells: [
            instant(entry.at),
            entry.by,
            <span class="key">{entry.target}</span>,
            shown(entry.before),
            shown(entry.after),
          ],
        }))}
      />
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
