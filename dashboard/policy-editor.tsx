import { useState } from "preact/hooks";
import type { PolicyInForce, Problem } from "./answers.ts";
import { path, type Answer, type Ask } from "./api.ts";
import { useSession } from "./context.ts";
import { JsonField, jsonIn } from "./json-field.tsx";
import { RemoveChanges } from "./new-policy.tsx";
import { Confirm, DoneNote, Part, ProblemNote, type Done, type Question } from "./parts.tsx";
import type { Polled } from "./poll.ts";
import { SOON } from "./words.ts";

const BESIDE: ReadonlySet<string> = new Set(["policy", "version", "source", "overrides", "removedPlans"]);

export function fieldsOf(policy: PolicyInForce): Record<string, unknown> {
  return Object.fromEntries(Object.entries(policy).filter(([field]) => !BESIDE.has(field)));
}

/** Restores a policy; `version` is that of the change, so no other change is undone. */
export async function bringBack(ask: Ask, before: PolicyInForce, version: number): Promise<Answer<unknown>> {
  const address = path("policies", before.policy);
  const ifMatch = `"${version}"`;
  // Without a change at run time the file defines the policy.
  if (before.source === "file") return await ask("DELETE", address, { ifMatch });
  return await ask("PUT", address, { body: fieldsOf(before), ifMatch });
}

/** The edited text, and the version that it is based on. */
interface Draft {
  readonly text: string;
  readonly version: number;
}

/** The editor. A change is checked before it is confirmed, and refused if another change came first. */
export function PolicyEditor(props: { readonly policy: string; readonly inForce: Polled<PolicyInForce> }) {
  const { policy, inForce } = props;
  const { ask } = useSession();
  const [draft, setDraft] = useState<Draft>();
  const [problem, setProblem] = useState<Problem>();
  const [question, setQuestion] = useState<Question>();
  const [done, setDone] = useState<Done>();
  const { value: now } = inForce;
  if (now === undefined)
    return (
      <Part title="Fields">
        <ProblemNote problem={inForce.problem} />
      </Part>
    );
  const nowText = JSON.stringify(fieldsOf(now), null, 2);
  const { text, version } = draft ?? { text: nowText, version: now.version };

  const write = async (query: { readonly dryRun?: string }): Promise<Answer<PolicyInForce>> => {
    const read = jsonIn(text);
    if (read.problem !== undefined) return read;
    const options = { body: read.value, ifMatch: `"${version}"`, query };
    return await ask<PolicyInForce>("PUT", path("policies", policy), options);
  };
  /** @returns what is to be known of a change that is valid */
  const check = async (): Promise<string | undefined> => {
    setDone(undefined);
    const { problem: refused, value: checked } = await write({ dryRun: "true" });
    setProblem(refused);
    if (refused !== undefined) return undefined;
    const { removedPlans = [] } = checked;
    return removedPlans.length === 0
      ? ""
      : ` Removed: ${removedPlans.join(", ")}. Calls that name a removed plan are refused.`;
  };
  const save = async (): Promise<Problem | undefined> => {
    const saved = await write({});
    setProblem(saved.problem);
    if (saved.problem !== undefined) return saved.problem;
    setDraft(undefined);
    const undo = async () => (await bringBack(ask, now, saved.value.version)).problem;
    setDone({ says: `Version ${saved.value.version} of ${policy} is saved. ${SOON}`, undo });
    return undefined;
  };
  const askSave = async () => {
    const known = await check();
    if (known === undefined) return;
    setQuestion({
      title: `Change ${policy}?`,
      says: `The new fields apply to all of its keys, everywhere within 10 s. Used units stay used.${known}`,
      yes: "Save",
      act: save,
    });
  };
  const isOutdated = draft !== undefined && draft.version !== now.version;
  return (
    <Part title="Fields">
      <DoneNote done={done} onEnd={() => setDone(undefined)} />
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void askSave();
        }}
      >
        <JsonField
          name="policy-fields"
          label="As in wrangler.toml, as JSON"
          text={text}
          problem={problem}
          onText={(edited) => setDraft({ text: edited, version })}
        />
        {isOutdated && (
          <div class="note bad">
            <p>Somebody else changed this policy. It is now version {now.version}:</p>
            <pre>{nowText}</pre>
            <button type="button" class="small outline" onClick={() => setDraft(undefined)}>
              Discard my edit
            </button>
          </div>
        )}
        <div class="row">
          <button
            type="button"
            class="outline"
            onClick={async () => {
              const known = await check();
              if (known !== undefined) setDone({ says: `These fields are valid.${known}` });
            }}
          >
            Check
          </button>
          <button type="submit">Save</button>
          {now.source === "catalog" && <RemoveChanges policy={now} onDone={() => setDraft(undefined)} />}
        </div>
      </form>
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}
