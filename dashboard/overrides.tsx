import { useState } from "preact/hooks";
import type { Override, Problem } from "./answers.ts";
import { path } from "./api.ts";
import { useRights, useSession } from "./context.ts";
import { jsonIn } from "./json.ts";
import { removeOverride, writeOverride } from "./key-changes.ts";
import { Confirm, DoneNote, Part, ProblemNote, Rows, type Done, type Question } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { instant, overrideFields, overrideLine } from "./words.ts";

const EVERY_MS = 5_000;

interface Props {
  readonly policy: string;
  readonly onChanged: () => Promise<void>;
}

export function OverridesPart({ policy, onChanged }: Props) {
  const { ask } = useSession();
  const rights = useRights();
  const [edited, setEdited] = useState<Override | "new">();
  const [question, setQuestion] = useState<Question>();
  const [done, setDone] = useState<Done>();
  const [cursor, setCursor] = useState<string>();
  const { value, problem, again } = usePoll(`${policy} ${cursor ?? ""}`, EVERY_MS, () =>
    ask<{ overrides: Override[]; cursor?: string }>("GET", path("policies", policy, "overrides"), {
      query: { cursor },
    }),
  );
  const changed = (what: Done | undefined) => {
    setDone(what);
    setEdited(undefined);
    void again();
    void onChanged();
  };
  const remove = (override: Override) =>
    setQuestion({
      title: `Delete the override of ${override.pattern}?`,
      says: `It says: ${overrideLine(override)}. Its keys have the limits of the policy again.`,
      yes: "Delete",
      act: async () => {
        const { problem: refused, undo } = await removeOverride(ask, override);
        if (undo !== undefined) changed({ says: `The override of ${override.pattern} is deleted.`, undo });
        return refused;
      },
    });
  return (
    <Part
      title="Overrides"
      beside={
        rights.changes && (
          <button type="button" class="small outline" onClick={() => setEdited("new")}>
            Add an override
          </button>
        )
      }
    >
      <DoneNote done={done} onEnd={() => changed(undefined)} />
      <ProblemNote problem={problem} />
      {edited !== undefined && (
        <OverrideForm policy={policy} before={edited} onDone={changed} key={JSON.stringify(edited)} />
      )}
      {value !== undefined && value.overrides.length === 0 && <p class="quiet">None.</p>}
      {value !== undefined && value.overrides.length > 0 && (
        <Rows
          label="Overrides"
          heads={["keys", "says", "until", "note", ...(rights.changes ? ["change"] : [])]}
        >
          {value.overrides.map((each) => (
            <tr key={each.pattern}>
              <td class="key">{each.pattern}</td>
              <td>{overrideLine(each)}</td>
              <td>{each.expiresAt === undefined ? "–" : instant(each.expiresAt)}</td>
              <td>{each.note ?? ""}</td>
              {rights.changes && (
                <td class="row">
                  <button type="button" class="small outline" onClick={() => setEdited(each)}>
                    Edit
                  </button>
                  <button type="button" class="small outline" onClick={() => remove(each)}>
                    Delete
                  </button>
                </td>
              )}
            </tr>
          ))}
        </Rows>
      )}
      {value?.cursor !== undefined && (
        <button type="button" class="small outline" onClick={() => setCursor(value.cursor)}>
          Next page
        </button>
      )}
      {cursor !== undefined && (
        <button type="button" class="small outline" onClick={() => setCursor(undefined)}>
          First page
        </button>
      )}
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}

function OverrideForm(props: {
  readonly policy: string;
  readonly before: Override | "new";
  readonly onDone: (done: Done | undefined) => void;
}) {
  const { policy, before, onDone } = props;
  const { ask } = useSession();
  const there = before === "new" ? undefined : before;
  const [pattern, setPattern] = useState(there?.pattern ?? "");
  const [text, setText] = useState(JSON.stringify(there ? overrideFields(there) : { multiply: 2 }, null, 2));
  const [problem, setProblem] = useState<Problem>();
  const save = async () => {
    const read = jsonIn(text);
    if (read.problem !== undefined) return setProblem(read.problem);
    const { problem: refused, undo } = await writeOverride(ask, { policy, pattern }, read.value, there);
    setProblem(refused);
    if (undo !== undefined) onDone({ says: `The override of ${pattern} is saved.`, undo });
  };
  return (
    <form
      class="box"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <label>
        Keys
        <input
          name="pattern"
          required
          readOnly={there !== undefined}
          value={pattern}
          onInput={(event) => setPattern(event.currentTarget.value)}
        />
        <small>One key, or a pattern with *: trial:*</small>
      </label>
      <label>
        Says
        <textarea
          name="fields"
          rows={4}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <small>
          {'Such as { "limit": 1000 }, { "multiply": 10 }, { "blocked": true }, with "expiresAt" and "note".'}
        </small>
      </label>
      <ProblemNote problem={problem} />
      <div class="row">
        <button type="submit">Save override</button>
        <button type="button" class="outline secondary" onClick={() => onDone(undefined)}>
          Cancel
        </button>
      </div>
    </form>
  );
}
