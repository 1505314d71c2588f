/** The parts of a policy and of its rules that a holder of units has to know. A holder may be far from the policy. */
import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
import type { Policy, Priorities, Rule } from "./policy.ts";

/** A rule, as a holder of its units sees it. */
export interface HeldRule extends Pick<Rule, "name" | "unit" | "capacity" | "config"> {
  readonly algorithm: Pick<AnyAlgorithm, "wholeFromMs">;
}

/** A policy, as a holder of units under it sees it. */
export interface HeldPolicy extends Pick<
  Policy,
  | "name"
  | "onFailure"
  | "deadlineMs"
  | "objects"
  | "reservation"
  | "denialTtlMs"
  | "localDecisions"
  | "shadow"
  | "keyKind"
  | "pool"
  | "terms"
  | "region"
  | "locationHint"
  | "jurisdiction"
  | "priority"
  | "retryJitter"
  | "inForce"
  | "override"
> {
  readonly rules: readonly HeldRule[];
  readonly priorities: Pick<Priorities, "usual"> & { readonly seen: ReadonlyMap<string, HeldPolicy> };
}

/** A policy that the limiter has not described yet: nothing is held under it. */
export const UNDESCRIBED: Omit<HeldPolicy, "name" | "onFailure" | "deadlineMs"> = {
  objects: "per-key",
  reservation: { leastMs: 0, mostMs: 0 },
  denialTtlMs: 0,
  localDecisions: { admits: false, denies: false },
  shadow: false,
  keyKind: "text",
  rules: [{ name: "", unit: "", capacity: 0, config: {}, algorithm: { wholeFromMs: () => 0 } }],
  priorities: { usual: "", seen: new Map() },
};
