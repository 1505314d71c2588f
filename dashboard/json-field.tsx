/** A field for JSON: its problems stand beside it. */
import type { Problem } from "./answers.ts";
import { ProblemNote } from "./parts.tsx";

const MAX_ROWS = 20;

export function JsonField(props: {
  readonly name: string;
  readonly label: string;
  readonly text: string;
  readonly problem: Problem | undefined;
  readonly onText: (text: string) => void;
}) {
  const { name, label, text, problem, onText } = props;
  const id = `${name}-problem`;
  return (
    <>
      <label>
        {label}
        <textarea
          name={name}
          class="code"
          spellcheck={false}
          rows={Math.min(MAX_ROWS, text.split("\n").length + 1)}
          value={text}
          aria-invalid={problem === undefined ? undefined : true}
          aria-describedby={problem === undefined ? undefined : id}
          onInput={(event) => onText(event.currentTarget.value)}
        />
      </label>
      <div id={id}>
        <ProblemNote problem={problem} />
      </div>
    </>
  );
}

type Table = Readonly<Record<string, unknown>>;

/** A table in a text, or its mistake. */
export function jsonIn(
  text: string,
):
  | { readonly value: Table; readonly problem?: undefined }
  | { readonly problem: Problem; readonly value?: undefined } {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value))
      return { value: value as Table };
    return { problem: problemOf("the text must be a JSON object, such as { }") };
  } catch (error) {
    return {
      problem: problemOf(`the text is not JSON: ${error instanceof Error ? error.message : String(error)}`),
    };
  }
}

function problemOf(detail: string): Problem {
  return { type: "", title: "Not JSON", status: 0, detail };
}
