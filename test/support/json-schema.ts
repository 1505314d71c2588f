/** Checks answers against the document's schemas. Ajv compiles with `eval`, which workerd forbids; this one interprets. */
import { Validator } from "@cfworker/json-schema";

/** What is wrong with a value, by a schema that may refer to the document's components; empty: nothing. */
export function matches(document: { readonly components: object }, schema: object, value: unknown): string[] {
  const validator = new Validator({ ...schema, components: document.components }, "2020-12", false);
  return validator
    .validate(value)
    .errors.map(({ instanceLocation, error }) => `${instanceLocation} ${error}`);
}
