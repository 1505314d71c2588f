import type { LimiterMethods } from "../../core/protocol/object-methods.ts";

/** The object's methods as a client calls them: each call is a message, so each answer is a promise. */
export type LimiterStub = {
  [Method in keyof LimiterMethods]: (
    ...args: Parameters<LimiterMethods[Method]>
  ) => Promise<Awaited<ReturnType<LimiterMethods[Method]>>>;
} & { fetch(url: string, init: RequestInit): Promise<Response> };

/** The part of the binding OBJECTS that is used. The runtime's own type for it loses unions in the answers. */
export interface LimiterNamespace {
  getByName(name: string, options?: { readonly locationHint?: DurableObjectLocationHint }): LimiterStub;
}
