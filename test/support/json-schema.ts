/** Checks answers against the document's schemas, without `eval`, which Ajv needs and workerd forbids. */
import { dereference, validate } from "@cfworker/json-schema";

type Known = ReturnType<typeof dereference>;
/** The schemas of each document's components by their addresses: to list them takes longest. */
const knownIn = new WeakMap<object, Known>();

/** The faults of a value by a schema, which may refer to the document's components. */
export function matches(document: { readonly components: object }, schema: object, value: unknown): string[] {
  return validatorOf(document, schema)(value);
}

/** The same for many values: making the validator costs more than using it. */
export function validatorOf(
  document: { readonly components: object },
  schema: object,
): (value: unknown) => string[] {
  const { components } = document;
  const known = knownIn.get(components) ?? dereference(components, undefined, undefined, "/components");
  knownIn.set(components, known);
  const root = { ...schema };
  const lookup = dereference(root, Object.create(known) as Known);
  return (value) =>
    validate(value, root, "2020-12", lookup, false).errors.map(
      ({ instanceLocation, error }) => `${instanceLocation} ${error}`,
    );
}
