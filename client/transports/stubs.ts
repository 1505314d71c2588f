import type { ObjectStub } from "../../core/protocol/object-methods.ts";

/** The object's methods as a client calls them. */
export type LimiterStub = ObjectStub;

/** The part of the binding OBJECTS that is used. The runtime's own type for it loses unions in the answers. */
export interface LimiterNamespace {
  getByName(name: string, options?: { readonly locationHint?: DurableObjectLocationHint }): LimiterStub;
}
