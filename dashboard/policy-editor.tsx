import { useState } from "preact/hooks";
import type { PolicyInForce, Problem } from "./answers.ts";
import { path, type Answer, type Ask } from "./api.ts";
import { useSession } from "./context.ts";
import { jsonIn } from "./json.ts";
import { TakeAway } from "./new-policy.tsx";
import { Confirm, DoneNote, Part, ProblemNote, type Done, type Question } from "./parts.tsx";
import type { Polled } from "./poll.ts";

const BESIDE: ReadonlySet<string> = new Set(["policy", "version", "source", "overrides"]);

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

/** The editor. A change is checked, and refused if another change came first. */
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
  const address = path("policies", policy);
  const nowText = JSON.stringify(fieldsOf(now), null, 2);
  const { text, version } = draft ?? { text: nowText, version: now.version };

  const check = async () => {
    setDone(undefined);
    const read = jsonIn(text);
    if (read.problem !== undefined) return setProblem(read.problem);
    const options = { body: read.value, ifMatch: `"${version}"`, query: { dryRun: "true" } };
    const { problem: refused } = await ask<PolicyInForce>("PUT", address, options);
    setProblem(refused);
    if (refused === undefined) setDone({ says: "These fields would be accepted." });
  };
  const save = async (): Promise<Problem | undefined> => {
    const read = jsonIn(text);
    if (read.problem !== undefined) return read.problem;
    const put = (body: object, of: number) =>
      ask<PolicyInForce>("PUT", address, { body, ifMatch: `"${of}"` });
    const before = now;
    const saved = await put(read.value, version);
    await inForce.again();
    setProblem(saved.problem);
    if (saved.problem !== undefined) return saved.problem;
    setDraft(undefined);
    const undo = async () => {
      const undone = await bringBack(ask, before, saved.value.version);
      await inForce.again();
      return undone.problem;
    };
    setDone({
      says: `Version ${saved.value.version} of ${policy} is in force, everywhere within 10 seconds.`,
      undo,
    });
    return undefined;
  };
  const takenAway = async () => {
    setDraft(undefined);
    await inForce.again();
  };
  const askSave = () =>
    setQuestion({
      title: `Change ${policy}?`,
      says: "The new fields count for all of its keys, everywhere within 10 seconds. What was consumed stays consumed.",
      yes: "Save",
      act: save,
    });
  const isOutdated = draft !== undefined && draft.version !== now.version;
  return (
    <Part title="Fields">
      <DoneNote done={done} onEnd={() => setDone(undefined)} />
      <form
        onSubmit={(event) => {
          event.preventDefault();
          askSave();
        }}
      >
        <label>
          As in wrangler.toml, in JSON
          <textarea
            name="policy-fields"
            class="code"
            rows={Math.min(20, text.split("\n").length + 1)}
            value={text}
            onInput={(event) => setDraft({ text: event.currentTarget.value, version })}
          />
        </label>
        <ProblemNote problem={problem} />
        {isOutdated && (
          <div class="note bad">
            <p>This policy was changed in the meantime. It is now version {now.version}:</p>
            <pre>{nowText}</pre>
            <button type="button" class="small outline" onClick={() => setDraft(undefined)}>
              Begin again with that
            </button>
          </div>
        )}
        <div class="row">
          <button type="button" class="outline" onClick={() => void check()}>
            Check
          </button>
          <button type="submit">Save</button>
          {now.source === "catalog" && <TakeAway policy={now} onDone={takenAway} />}
        </div>
      </form>
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}
