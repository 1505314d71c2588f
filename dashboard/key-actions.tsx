/** The actions on a key: reset, block, raise. */
import { useState } from "preact/hooks";
import type { Override, Problem } from "./answers.ts";
import { path } from "./api.ts";
import { instantText, readClockMs } from "./clock.ts";
import { useSession } from "./context.ts";
import { readOverride, removeOverride, writeOverride, type Changed, type Fields } from "./key-changes.ts";
import { Confirm, Part, ProblemNote, type Done, type Question } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { overrideLine } from "./words.ts";

const EVERY_MS = 5_000;
const LIVES = [
  { name: "until it is taken back", ms: 0 },
  { name: "for an hour", ms: 3_600_000 },
  { name: "for a day", ms: 86_400_000 },
  { name: "for a week", ms: 7 * 86_400_000 },
];

interface Props {
  readonly policy: string;
  readonly name: string;
  readonly onDone: (done: Done) => void;
}

export function KeyActions({ policy, name, onDone }: Props) {
  const { ask } = useSession();
  const [question, setQuestion] = useState<Question>();
  const [lifeMs, setLifeMs] = useState(0);
  const [factor, setFactor] = useState("3");
  const own = usePoll<Override | undefined>(`${policy} ${name}`, EVERY_MS, async () => {
    const read = await readOverride(ask, policy, name);
    return read.problem === undefined ? { value: read.value, etag: undefined } : { problem: read.problem };
  });
  // A key with a * in it would be a pattern, and mean other keys too.
  const isPattern = name.includes("*");

  const finish = async (says: string, change: Promise<Changed>): Promise<Problem | undefined> => {
    const { problem, undo } = await change;
    if (problem !== undefined) return problem;
    void own.again();
    onDone({
      says,
      undo: async () => {
        const refused = await undo();
        void own.again();
        return refused;
      },
    });
    return undefined;
  };
  /** Reads the old override at the moment of the change, so that undoing restores exactly that. */
  const override = async (says: string, fields: Fields): Promise<Problem | undefined> => {
    const before = await readOverride(ask, policy, name);
    if (before.problem !== undefined) return before.problem;
    const expiresAt = lifeMs === 0 ? {} : { expiresAt: instantText(readClockMs() + lifeMs) };
    const value = { ...fields, ...expiresAt, note: "from the dashboard" };
    return await finish(says, writeOverride(ask, { policy, pattern: name }, value, before.value));
  };
  const replaces =
    own.value === undefined ? "" : ` It replaces the override of this key: ${overrideLine(own.value)}.`;
  const askBlock = () =>
    setQuestion({
      title: `Block ${name}?`,
      says: `Every call on this key is denied, everywhere within 10 seconds.${replaces}`,
      yes: "Block",
      act: () => override(`${name} is blocked.`, { blocked: true }),
    });
  const askRaise = (times: number) =>
    setQuestion({
      title: `Raise ${name}?`,
      says: `All limits of this key become ${times} times those of the policy, everywhere within 10 seconds.${replaces}`,
      yes: `Raise × ${times}`,
      act: () => override(`${name} has ${times} times the limits.`, { multiply: times }),
    });
  const askReset = () =>
    setQuestion({
      title: `Reset ${name}?`,
      says: "The key is as new. Its holds, leases and idempotency keys are forgotten. This cannot be undone.",
      yes: "Reset",
      act: async () => {
        const { problem } = await ask("DELETE", path("policies", policy, "keys", name));
        if (problem === undefined) onDone({ says: `${name} is as new.` });
        return problem;
      },
    });
  const askRemove = (there: Override) =>
    setQuestion({
      title: there.blocked === true ? `Unblock ${name}?` : `Take the override of ${name} back?`,
      says: "The key has the limits of the policy again, or those of a wider override, everywhere within 10 seconds.",
      yes: there.blocked === true ? "Unblock" : "Take back",
      act: () => finish(`${name} has no override of its own any more.`, removeOverride(ask, there)),
    });
  const times = Number(factor);
  return (
    <Part title="Change">
      <ProblemNote problem={isPattern ? undefined : own.problem} />
      {isPattern && (
        <p class="note bad">A key with * in it has no override of its own: it would be a pattern.</p>
      )}
      <div class="row">
        <button type="button" class="outline" onClick={askReset}>
          Reset
        </button>
        {!isPattern && own.value !== undefined && (
          <button type="button" class="outline" onClick={() => own.value && askRemove(own.value)}>
            {own.value.blocked === true ? "Unblock" : "Take override back"}
          </button>
        )}
        {!isPattern && own.value?.blocked !== true && (
          <button type="button" class="danger" onClick={askBlock}>
            Block
          </button>
        )}
      </div>
      {!isPattern && (
        <div class="row">
          <button type="button" class="outline" onClick={() => askRaise(2)}>
            Raise × 2
          </button>
          <button type="button" class="outline" onClick={() => askRaise(10)}>
            Raise × 10
          </button>
          <form
            class="line"
            onSubmit={(event) => {
              event.preventDefault();
              askRaise(times);
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
          <label>
            Lasts
            <select value={lifeMs} onChange={(event) => setLifeMs(Number(event.currentTarget.value))}>
              {LIVES.map(({ name: life, ms }) => (
                <option value={ms} key={ms}>
                  {life}
                </option>
              ))}
            </select>
          </label>
        </div>
      )}
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}
