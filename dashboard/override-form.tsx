/** The form of an override: its keys, its effect, when it begins, how long it lasts. */
import { useState } from "preact/hooks";
import type { Override, PolicyDescription, Problem } from "./answers.ts";
import { readClockMs } from "./clock.ts";
import { useSession } from "./context.ts";
import { writeOverride, type Fields } from "./key-changes.ts";
import { Beginning, Lasting, type EndsAt, type StartsAt } from "./lasting.tsx";
import {
  EFFECTS,
  effectOf,
  enteredIn,
  fieldsOf,
  limitsOf,
  type Effect,
  type Entered,
} from "./override-fields.ts";
import { ProblemNote, type Done } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { instant, SOON } from "./words.ts";

/** @param pattern the keys, if they cannot be chosen @param there the override that is changed */
export function OverrideForm(props: {
  readonly policy: string;
  readonly pattern?: string;
  readonly there: Override | undefined;
  readonly onDone: (done: Done | undefined) => void;
}) {
  const { policy, there, onDone } = props;
  const { ask } = useSession();
  const list = usePoll("policies", 0, () => ask<{ policies: PolicyDescription[] }>("GET", "/v1/policies"));
  const [pattern, setPattern] = useState(props.pattern ?? there?.pattern ?? "");
  const [effect, setEffect] = useState<Effect>(there === undefined ? "limits" : effectOf(there));
  const [factor, setFactor] = useState(String(there?.multiply ?? 2));
  const [entered, setEntered] = useState<Entered>(there === undefined ? {} : enteredIn(there));
  const [startsAt, setStartsAt] = useState<StartsAt>(there?.startsAt);
  const [endsAt, setEndsAt] = useState<EndsAt>(there?.expiresAt);
  const [note, setNote] = useState(there?.note ?? "");
  const [problem, setProblem] = useState<Problem>();
  const rules = list.value?.policies.find(({ name }) => name === policy)?.rules ?? [];
  const save = async () => {
    const fields: Record<Effect, () => Fields> = {
      limits: () => limitsOf(entered),
      multiply: () => ({ multiply: Number(factor) }),
      blocked: () => ({ blocked: true }),
      unlimited: () => ({ unlimited: true }),
    };
    const value = {
      ...fields[effect](),
      ...(startsAt !== undefined && { startsAt }),
      ...(endsAt !== undefined && { expiresAt: endsAt }),
      ...(note !== "" && { note }),
    };
    const { problem: refused, undo } = await writeOverride(ask, { policy, pattern }, value, there);
    setProblem(refused);
    const isLater = startsAt !== undefined && Date.parse(startsAt) > readClockMs();
    const when = isLater ? `It starts at ${instant(startsAt)}.` : SOON;
    if (undo !== undefined) onDone({ says: `The override of ${pattern} is saved. ${when}`, undo });
  };
  const isFixed = props.pattern !== undefined || there !== undefined;
  return (
    <form
      class="box"
      aria-label="Override"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <div class="columns">
        <label>
          Keys
          <input
            name="pattern"
            required
            readOnly={isFixed}
            value={pattern}
            onInput={(event) => setPattern(event.currentTarget.value)}
          />
          {!isFixed && <small>One key, or a pattern: trial:*</small>}
        </label>
        <label>
          Effect
          <select
            name="effect"
            value={effect}
            onChange={(event) => setEffect(event.currentTarget.value as Effect)}
          >
            {Object.entries(EFFECTS).map(([value, name]) => (
              <option value={value} key={value}>
                {name}
              </option>
            ))}
          </select>
        </label>
        {effect === "multiply" && (
          <Entry name="multiply" value={factor} problem={problem} pointer="/multiply" onValue={setFactor} />
        )}
      </div>
      {effect === "limits" &&
        fieldsOf(policy, rules, entered).map(([rule, fields]) => (
          <fieldset key={rule}>
            <legend>{rule === "" ? "Limits" : `Limits of ${rule}`} (empty: as the policy)</legend>
            <div class="columns narrow">
              {fields.map(({ pointer, name, now }) => (
                <Entry
                  key={pointer}
                  name={name}
                  now={now}
                  pointer={pointer}
                  value={entered[pointer] ?? ""}
                  problem={problem}
                  onValue={(value) => setEntered({ ...entered, [pointer]: value })}
                />
              ))}
            </div>
          </fieldset>
        ))}
      <div class="columns">
        <Beginning startsAt={startsAt} onStartsAt={setStartsAt} />
        <Lasting startsAt={startsAt} endsAt={endsAt} onEndsAt={setEndsAt} />
        <label>
          Note
          <input name="note" value={note} onInput={(event) => setNote(event.currentTarget.value)} />
        </label>
      </div>
      <ProblemNote problem={problem ?? list.problem} />
      <div class="row">
        <button type="submit">Save override</button>
        <button type="button" class="outline secondary" onClick={() => onDone(undefined)}>
          Cancel
        </button>
      </div>
    </form>
  );
}

/** A field with its problem beside it. */
function Entry(props: {
  readonly name: string;
  readonly now?: string;
  readonly pointer: string;
  readonly value: string;
  readonly problem: Problem | undefined;
  readonly onValue: (value: string) => void;
}) {
  const { name, now, pointer, value, problem, onValue } = props;
  const wrong = problem?.errors?.filter((each) => each.pointer === pointer) ?? [];
  return (
    <label>
      {name}
      <input
        name={pointer}
        value={value}
        placeholder={now}
        aria-invalid={wrong.length > 0 ? true : undefined}
        onInput={(event) => onValue(event.currentTarget.value)}
      />
      {wrong.map(({ detail }) => (
        <small class="bad-text" key={detail}>
          {detail}
        </small>
      ))}
    </label>
  );
}
