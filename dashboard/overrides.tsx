import { useState } from "preact/hooks";
import type { Override } from "./answers.ts";
import { path } from "./api.ts";
import { readClockMs } from "./clock.ts";
import { useRights, useSession } from "./context.ts";
import { removeOverride } from "./key-changes.ts";
import { OverrideForm } from "./override-form.tsx";
import { Confirm, DoneNote, Part, ProblemNote, Rows, type Done, type Question } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { instant, overrideLine, scheduledLine, SOON } from "./words.ts";

const EVERY_MS = 5_000;

export function OverridesPart({ policy }: { readonly policy: string }) {
  const { ask } = useSession();
  const rights = useRights();
  const [edited, setEdited] = useState<Override | "new">();
  const [question, setQuestion] = useState<Question>();
  const [done, setDone] = useState<Done>();
  const [cursor, setCursor] = useState<string>();
  const { value, problem } = usePoll(`${policy} ${cursor ?? ""}`, EVERY_MS, () =>
    ask<{ overrides: Override[]; cursor?: string }>("GET", path("policies", policy, "overrides"), {
      query: { cursor },
    }),
  );
  const changed = (what: Done | undefined) => {
    setDone(what);
    setEdited(undefined);
  };
  const remove = (override: Override) =>
    setQuestion({
      title: `Remove the override of ${override.pattern}?`,
      says: `Its effect: ${overrideLine(override)}. Its keys get the limits of the policy, or of a wider override, everywhere within 10 s.`,
      yes: "Remove",
      act: async () => {
        const { problem: refused, undo } = await removeOverride(ask, override);
        if (undo !== undefined)
          changed({ says: `The override of ${override.pattern} is removed. ${SOON}`, undo });
        return refused;
      },
    });
  const small = (label: string, act: () => void) => (
    <button type="button" class="small outline" onClick={act}>
      {label}
    </button>
  );
  const actions = (each: Override) => (
    <span class="row">
      {small("Edit", () => setEdited(each))}
      {small("Remove", () => remove(each))}
    </span>
  );
  return (
    <Part title="Overrides" beside={rights.changes && small("Add override", () => setEdited("new"))}>
      <DoneNote done={done} onEnd={() => changed(undefined)} />
      <ProblemNote problem={problem} />
      {edited !== undefined && (
        <OverrideForm
          policy={policy}
          there={edited === "new" ? undefined : edited}
          onDone={changed}
          key={JSON.stringify(edited)}
        />
      )}
      {value?.overrides.length === 0 && <p class="quiet">None.</p>}
      <Rows
        label="Overrides"
        heads={["keys", "effect", "until", "note", ...(rights.changes ? ["change"] : [])]}
        rows={(value?.overrides ?? []).map((each) => ({
          key: each.pattern,
          cells: [
            <span class="key">{each.pattern}</span>,
            scheduledLine(each, readClockMs()),
            each.expiresAt === undefined ? "–" : instant(each.expiresAt),
            each.note ?? "–",
            ...(rights.changes ? [actions(each)] : []),
          ],
        }))}
      />
      <div class="row">
        {value?.cursor !== undefined && small("Next page", () => setCursor(value.cursor))}
        {cursor !== undefined && small("First page", () => setCursor(undefined))}
      </div>
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}
