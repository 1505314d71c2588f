/** What an option may be: a value, or a function of the request that finds it. */
export type Given<Args extends readonly unknown[], Value> =
  | Value
  | ((...args: Args) => Value | Promise<Value>);

/** The value of an option for this request. */
export function valueOf<Args extends readonly unknown[], Value extends string | number | object | undefined>(
  given: Given<Args, Value>,
  args: Args,
): Value | Promise<Value> {
  return typeof given === "function" ? given(...args) : given;
}
