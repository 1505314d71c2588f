import type { Problem } from "./answers.ts";

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
