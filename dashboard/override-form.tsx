/** The form of an override: its keys, its effect, how long it lasts. */
import { useState } from "preact/hooks";
import type { Override, PolicyDescription, Problem, RuleDescription } from "./answers.ts";
import { useSession } from "./context.ts";
import { writeOverride, type Fields } from "./key-changes.ts";
import { Lasting, type EndsAt } from "./lasting.tsx";
import { ProblemNote, type Done } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { overrideFields, SOON, wireDuration } from "./words.ts";

const EFFECTS = {
  limits: "own limits",
  multiply: "all limits multiplied",
  blocked: "blocked: all calls denied",
  unlimited: "unlimited: no call denied",
} as const;
type Effect = keyof typeof EFFECTS;
/** Entered values by the address of their field, as in a problem: `/limit`, `/rules/tokens/limit`. */
type Entered = Readonly<Record<string, string>>;

interface Field {
  readonly pointer: string;
  readonly name: string;
  /** The policy's own value. */
  readonly now: string;
}

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
      ...(endsAt !== undefined && { expiresAt: endsAt }),
      ...(note !== "" && { note }),
    };
    const { problem: refused, undo } = await writeOverride(ask, { policy, pattern }, value, there);
    setProblem(refused);
    if (undo !== undefined) onDone({ says: `The override of ${pattern} is saved. ${SOON}`, undo });
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
        <Lasting endsAt={endsAt} onEndsAt={setEndsAt} />
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

function effectOf(override: Override): Effect {
  if (override.blocked === true) return "blocked";
  if (override.unlimited === true) return "unlimited";
  return override.multiply === undefined ? "limits" : "multiply";
}

const BESIDE: ReadonlySet<string> = new Set(["expiresAt", "note", "blocked", "unlimited", "multiply"]);

/** The values of an override. */
export function enteredIn(override: Override): Entered {
  const entered: Record<string, string> = {};
  const enter = (table: object, at: string) => {
    for (const [name, value] of Object.entries(table) as [string, unknown][])
      if (typeof value === "object" && value !== null) enter(value, `${at}/${name}`);
      else entered[`${at}/${name}`] = String(value);
  };
  enter(
    Object.fromEntries(Object.entries(overrideFields(override)).filter(([name]) => !BESIDE.has(name))),
    "",
  );
  return entered;
}

/** The body with what was entered: numbers, `true` and `false` are what they seem. */
export function limitsOf(entered: Entered): Fields {
  const body: Record<string, unknown> = {};
  for (const [pointer, text] of Object.entries(entered)) {
    if (text.trim() === "") continue;
    const names = pointer.split("/").slice(1);
    const last = names.pop() ?? "";
    let table = body;
    for (const name of names) table = (table[name] ??= {}) as Record<string, unknown>;
    table[last] = valueOf(text.trim());
  }
  return body;
}

/** What a rule has beside its algorithm's fields, or cannot have for one key. */
const NOT_OWN: ReadonlySet<string> = new Set(["name", "algorithm", "unit", "capacity"]);

function valueOf(text: string): string | number | boolean {
  if (text === "true" || text === "false") return text === "true";
  return Number.isNaN(Number(text)) ? text : Number(text);
}

/** By rule ("": the policy has no named rules): the fields of its algorithm, and others that the override has. */
export function fieldsOf(
  policy: string,
  rules: readonly RuleDescription[],
  entered: Entered,
): readonly (readonly [string, readonly Field[]])[] {
  return rules.map((described) => {
    const rule = described.name;
    const isAlone = rules.length === 1 && rule === policy;
    const at = isAlone ? "" : `/rules/${rule}`;
    const values = Object.entries(described).filter(([field]) => !NOT_OWN.has(field));
    const own = values.map(([field, value]) => {
      const isDuration = field.endsWith("Ms") && typeof value === "number";
      const name = isDuration ? field.slice(0, -"Ms".length) : field;
      return { name, pointer: `${at}/${name}`, now: isDuration ? wireDuration(value) : String(value) };
    });
    const known = new Set(own.map(({ pointer }) => pointer));
    const others = Object.keys(entered)
      .filter((pointer) => pointer.startsWith(`${at}/`) && !known.has(pointer))
      .map((pointer) => ({ name: pointer.slice(at.length + 1), pointer, now: "" }));
    return [isAlone ? "" : rule, [...own, ...others]] as const;
  });
}
