/**
 * A worker that calls one object as fast as it can, in place of Weir's own: `/run` starts callers, each with one call
 * after the other, by the client's own transport. No request comes in for a decision, so the object is what is measured,
 * and what it takes to ask it.
 */
import { waitUntil } from "cloudflare:workers";
// @ts-expect-error The built bundle, given to workerd under this name.
import * as weir from "weir.js";
import { BatchQueues } from "../client/transports/batch-queue.ts";
import { Objects, type LimiterNamespace } from "../client/transports/objects.ts";
import { SYSTEM_TIME } from "../core/clock.ts";
import { parsePolicies } from "../core/policies/parse-policies.ts";
import type { Policy } from "../core/policies/policy.ts";
import type { Decided } from "../core/protocol/answers.ts";
import type { LimiterObject as Real } from "../durable-objects/limiter-object.ts";

interface Env {
  readonly OBJECTS: LimiterNamespace;
  readonly POLICIES: Readonly<Record<string, object>>;
}

/** The decisions of an isolate, and the messages of the objects. */
export interface Asked {
  readonly decisions: number;
  readonly messages: number;
}

let messages = 0;

export class LimiterObject extends (weir.LimiterObject as typeof Real) {}

for (const name of ["limit", "limitCall", "reserve"]) {
  const method = Reflect.get(weir.LimiterObject.prototype, name) as (...args: unknown[]) => unknown;
  Reflect.set(LimiterObject.prototype, name, function counted(this: unknown, ...args: unknown[]) {
    messages += 1;
    return method.apply(this, args);
  });
}

export const Limiter = weir.Limiter;

/** Lets callers ask for `forMs`, and returns how often they were answered. */
async function run(objects: Objects, policy: Policy, search: URLSearchParams): Promise<number> {
  const [forMs, callers, keys] = ["ms", "callers", "keys"].map((name) => Number(search.get(name)));
  const untilMs = Date.now() + Number(forMs);
  let decisions = 0;
  const ask = async (caller: number) => {
    for (let call = caller; Date.now() < untilMs; call += Number(callers)) {
      const key = `key ${(call * 7919) % Number(keys)}`;
      const limit = { policy: policy.name, key, cost: 1 };
      const asked = await objects.call<Decided>(policy, key, { limit });
      if (asked === undefined || asked.answer.rules[0]?.success !== true)
        throw new Error(`not admitted: ${JSON.stringify(asked)}`);
      decisions += 1;
    }
  };
  await Promise.all(Array.from({ length: Number(callers) }, (_, caller) => ask(caller)));
  return decisions;
}

export default {
  async fetch(request: Request, { OBJECTS, POLICIES }: Env): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname !== "/run") return Response.json({ decisions: 0, messages } satisfies Asked);
    const policy = parsePolicies(POLICIES).get(searchParams.get("policy") ?? "");
    if (policy === undefined) return new Response("no such policy", { status: 404 });
    const together = { queues: new BatchQueues(), inBackground: waitUntil };
    const objects = new Objects(OBJECTS, SYSTEM_TIME, searchParams.has("together") ? together : undefined);
    return Response.json({ decisions: await run(objects, policy, searchParams), messages } satisfies Asked);
  },
};
