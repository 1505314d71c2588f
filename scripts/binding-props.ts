/** Checks the `props` of service bindings, whose errors would otherwise show at their first call. */
import * as v from "valibot";
import type { Policies } from "../core/policies/policy.ts";
import { violationsOf } from "../core/validation.ts";
import { meant, violation } from "../core/violations.ts";
import { Props } from "../worker/auth/tokens.ts";

export interface Bound {
  readonly name?: string | undefined;
  readonly services?:
    | readonly {
        readonly binding: string;
        readonly service: string;
        readonly entrypoint?: string;
        readonly props?: unknown;
      }[]
    | undefined;
}

/** The problems of props of bindings to this limiter, each as a sentence that names the binding. */
export function propsProblems({ name, services = [] }: Bound, policies: Policies): string[] {
  return services
    .filter(({ service, entrypoint }) => service === name && entrypoint === "Limiter")
    .flatMap(({ binding, props = {} }) =>
      problemsOf(props, policies).map((detail) => `the props of the binding ${binding}: ${detail}`),
    );
}

function problemsOf(props: unknown, policies: Policies): string[] {
  const parsed = v.safeParse(Props, props);
  if (!parsed.success) return violationsOf(parsed.issues).map(({ detail }) => detail);
  const { policy, policies: allowed = [] } = parsed.output;
  const named = [
    ...(policy === undefined ? [] : [["policy", policy] as const]),
    ...allowed.map((each, index) => [`policies.${index}`, each] as const),
  ];
  const there = [...policies.keys()];
  return named
    .filter(([, each]) => !policies.has(each))
    .map(([field, each]) => violation([field], each, `one of ${there.join(", ")}${meant(each, there)}`));
}
