/** The changes of a key: block, raise, own limits, reset. */
import { useState } from "preact/hooks";
import type { Override, Problem } from "./answers.ts";
import { path } from "./api.ts";
import { readClockMs } from "./clock.ts";
import { useSession } from "./context.ts";
import { removeOverride, writeOverride, type Changed, type Fields } from "./key-changes.ts";
import type { EndsAt } from "./lasting.tsx";
import { OverrideForm } from "./override-form.tsx";
import { Confirm, Part, type Done, type Question } from "./parts.tsx";
import { scheduledLine, SOON, startsInMs } from "./words.ts";

interface Props {
  readonly policy: string;
  readonly name: string;
  /** The key's own override. */
  readonly own: Override | undefined;
  readonly onDone: (done: Done) => void;
}

export function KeyActions({ policy, name, own, onDone }: Props) {
  const { ask } = useSession();
  const [question, setQuestion] = useState<Question>();
  /** The override when the form was opened. */
  const [edited, setEdited] = useState<{ readonly there: Override | undefined }>();
  const [factor, setFactor] = useState("3");
  // A key with a * in it would be a pattern, and mean other keys too.
  const isPattern = name.includes("*");

  const finish = async (says: string, change: Promise<Changed>): Promise<Problem | undefined> => {
    const { problem, undo } = await change;
    if (undo !== undefined) onDone({ says: `${says} ${SOON}`, undo });
    return problem;
  };
  /** Replaces the override that the question showed, which was there when it was asked, and no later one. */
  const override = async (says: string, fields: Fields, endsAt: EndsAt): Promise<Problem | undefined> => {
    const expiresAt = endsAt === undefined ? {} : { expiresAt: endsAt };
    const value = { ...fields, ...expiresAt, note: "from the dashboard" };
    return await finish(says, writeOverride(ask, { policy, pattern: name }, value, own));
  };
  const replaces =
    own === undefined ? "" : ` This replaces its override: ${scheduledLine(own, readClockMs())}.`;
  const askBlock = () =>
    setQuestion({
      title: `Block ${name}?`,
      says: `All calls of this key are denied, everywhere within 10 s.${replaces}`,
      yes: "Block",
      lasts: true,
      act: (endsAt) => override(`${name} is blocked.`, { blocked: true }, endsAt),
    });
  const askRaise = (times: number) =>
    setQuestion({
      title: `Raise ${name}?`,
      says: `All limits of this key are multiplied by ${times}, everywhere within 10 s.${replaces}`,
      yes: `Raise × ${times}`,
      lasts: true,
      act: (endsAt) => override(`The limits of ${name} are × ${times}.`, { multiply: times }, endsAt),
    });
  const askReset = () =>
    setQuestion({
      title: `Reset ${name}?`,
      says: "The key gets its full quota. Its holds, leases and idempotency keys are deleted. This cannot be undone.",
      yes: "Reset",
      act: async () => {
        const { problem } = await ask("DELETE", path("policies", policy, "keys", name));
        if (problem === undefined) onDone({ says: `${name} has its full quota.` });
        return problem;
      },
    });
  const unblocks = own?.blocked === true && startsInMs(own, readClockMs()) === 0;
  const askRemove = (there: Override) =>
    setQuestion({
      title: unblocks ? `Unblock ${name}?` : `Remove the override of ${name}?`,
      says: "The key gets the limits of the policy, or of a wider override, everywhere within 10 s.",
      yes: unblocks ? "Unblock" : "Remove override",
      act: () => finish(`The override of ${name} is removed.`, removeOverride(ask, there)),
    });
  const button = (label: string, act: () => void, kind = "outline") => (
    <button type="button" class={kind} onClick={act}>
      {label}
    </button>
  );
  return (
    <Part title="Change">
      {isPattern && (
        <p class="note bad">A key with * in it has no override of its own: it would be a pattern.</p>
      )}
      <div class="row">
        {!isPattern && !unblocks && button("Block", askBlock, "danger")}
        {!isPattern && own !== undefined && (
          <>{button(unblocks ? "Unblock" : "Remove override", () => askRemove(own))}</>
        )}
        {!isPattern && button("Set limits", () => setEdited({ there: own }))}
        {button("Reset", askReset)}
      </div>
      {edited !== undefined && (
        <OverrideForm
          policy={policy}
          pattern={name}
          there={edited.there}
          onDone={(done) => {
            setEdited(undefined);
            if (done !== undefined) onDone(done);
          }}
        />
      )}
      {!isPattern && (
        <div class="row">
          {button("Raise × 2", () => askRaise(2))}
          {button("Raise × 10", () => askRaise(10))}
          <form
            class="line"
            onSubmit={(event) => {
              event.preventDefault();
              askRaise(Number(factor));
            }}
          >
            <label>
              Times
              <input
                name="times"
                type="number"
                min="0.01"
                step="any"
                required
                value={factor}
                onInput={(event) => setFactor(event.currentTarget.value)}
              />
            </label>
            <button type="submit" class="outline">
              Raise
            </button>
          </form>
        </div>
      )}
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}
