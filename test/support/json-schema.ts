/** Checks answers against the document's schemas, without `eval`, which Ajv needs and workerd forbids. */
import { Validator } from "@cfworker/json-schema";

/** The faults of a value by a schema, which may refer to the document's components. */
export function matches(document: { readonly components: object }, schema: object, value: unknown): string[] {
  return validatorOf(document, schema)(value);
}

/** The same for many values: making the validator costs more than using it. */
export function validatorOf(
  document: { readonly components: object },
  schema: object,
): (value: unknown) => string[] {
  const validator = new Validator({ ...schema, components: document.components }, "2020-12", false);
  return (value) =>
    validator.validate(value).errors.map(({ instanceLocation, error }) => `${instanceLocation} ${error}`);
}
