import type { HeldPolicy } from "../../core/policies/held-policy.ts";
import type { Jurisdiction, LocationHint } from "../../core/policies/placement.ts";
import type { ObjectStub } from "../../core/protocol/object-methods.ts";

/** The object's methods as a client calls them. */
export type LimiterStub = ObjectStub;

/** The part of the binding OBJECTS that is used. The runtime's own type for it loses unions in the answers. */
export interface LimiterNamespace {
  /** The objects of a jurisdiction. Plain workerd has none: there this throws. */
  jurisdiction?(name: Jurisdiction): LimiterNamespace;
  getByName(name: string, options?: { readonly locationHint?: LocationHint }): LimiterStub;
}

/** The objects of a policy's jurisdiction. */
export function within(namespace: LimiterNamespace, { jurisdiction }: HeldPolicy): LimiterNamespace {
  if (jurisdiction === undefined) return namespace;
  const there = namespace.jurisdiction?.(jurisdiction);
  if (there === undefined) throw new Error(`there are no objects in the jurisdiction ${jurisdiction} here`);
  return there;
}
