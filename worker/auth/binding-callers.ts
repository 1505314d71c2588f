/** The callers over service bindings, as the bindings' `props` describe them. */
import * as v from "valibot";
import { Problem } from "../../core/protocol/problems.ts";
import { table } from "../../core/validation.ts";
import { boundsOf, CALLER_NAME, GRANT_FIELDS, type Principal, SCOPE_LIST, SCOPES } from "./tokens.ts";

export const Props = table({
  policy: v.optional(v.string("the name of a policy")),
  region: v.optional(v.string("the name of a region")),
  /** Names the binding: what it makes stays its own when other props change. */
  name: v.optional(CALLER_NAME),
  scopes: v.optional(SCOPE_LIST),
  ...GRANT_FIELDS,
});
export type Props = Readonly<v.InferOutput<typeof Props>>;

export interface BindingCaller extends Pick<Props, "policy" | "region"> {
  readonly principal: Principal;
}

/** By the text of the props, so that a caller's bounds outlive a call. The oldest is dropped first. */
const known = new Map<string, BindingCaller>();
const MAX_KNOWN = 1_000;

/** A binding without scopes has all, because the owner of the account made it. */
export function bindingCaller(
  props: unknown,
  parse: (schema: typeof Props, value: unknown) => Props | Problem,
): BindingCaller | Problem {
  const text = JSON.stringify(props ?? {});
  const found = known.get(text);
  if (found !== undefined) return found;
  const parsed = parse(Props, props ?? {});
  if (parsed instanceof Problem) return parsed;
  const { name, policy, region, scopes = SCOPES, policies, keyPrefix, ...bounds } = parsed;
  const principal: Principal = {
    title: name === undefined ? "the service binding" : `the service binding ${JSON.stringify(name)}`,
    id: JSON.stringify({ binding: name ?? sorted(parsed) }),
    scopes,
    policies,
    keyPrefix,
    bounds: boundsOf(bounds),
  };
  const caller = {
    principal,
    ...(policy !== undefined && { policy }),
    ...(region !== undefined && { region }),
  };
  for (const oldest of known.keys()) {
    if (known.size < MAX_KNOWN) break;
    known.delete(oldest);
  }
  known.set(text, caller);
  return caller;
}

/** One order of fields, so that equal props are one caller. */
function sorted(props: Props): object {
  return Object.fromEntries(Object.entries(props).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}
