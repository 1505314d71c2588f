/**
 * The worker that is deployed on trial: the whole limiter, and objects that are measured. Its calls below `/trial/` need
 * the token of this run.
 */
import { DurableObject } from "cloudflare:workers";
import type { LimiterNamespace, LimiterStub } from "../../../client/transports/objects.ts";
import type { LocationHint } from "../../../core/policies/policy.ts";
import { createObjectsLimiter } from "../../../package/objects.ts";
import { handler } from "../../../worker/http/fast-path.ts";

export { Limiter } from "../../../worker/rpc/limiter.ts";
export { LimiterObject } from "../../../durable-objects/limiter-object.ts";
export { CatalogObject } from "../../../durable-objects/catalog/catalog-object.ts";
export { StatsObject } from "../../../durable-objects/stats/stats-object.ts";

interface TrialMethods {
  isolate(): Promise<string>;
  hit(): Promise<number>;
  wait(ms: number): Promise<number>;
  colo(traceUrl: string): Promise<string>;
}

interface TrialNamespace {
  getByName(name: string, options?: { readonly locationHint: LocationHint }): TrialMethods;
}

interface Env {
  readonly OBJECTS: LimiterNamespace;
  readonly TRIAL: TrialNamespace;
  readonly WAITING: TrialNamespace;
  readonly POLICIES: object;
  /** The SHA-256 of the run's token, in hexadecimal. */
  readonly TRIAL_SHA256: string;
  readonly TRIAL_VERSION: string;
}

/** Of this isolate. It is drawn at the first request: there is no randomness before. */
let isolateId: string | undefined;
const isolate = () => (isolateId ??= crypto.randomUUID());
const later = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));

export class TrialObject extends DurableObject implements TrialMethods {
  #hits = 0;

  async isolate(): Promise<string> {
    return isolate();
  }

  async hit(): Promise<number> {
    this.#hits += 1;
    return this.#hits;
  }

  /** Answers after so many milliseconds: a caller that waits for a push. */
  async wait(ms: number): Promise<number> {
    await later(ms);
    return ms;
  }

  /** The place in which this object runs, as a trace address answers. */
  async colo(traceUrl: string): Promise<string> {
    const answered = await fetch(traceUrl, { signal: AbortSignal.timeout(5_000) });
    return /^colo=(\w+)$/m.exec(await answered.text())?.[1] ?? "an unknown place";
  }
}

/** The same in a namespace of its own, whose billed time is that of waiting calls alone. */
export class WaitingObject extends TrialObject {}

export default {
  async fetch(request: Request, env: Env, ctx: ExecutionContext): Promise<Response> {
    const { pathname } = new URL(request.url);
    const call = pathname.startsWith("/trial/") ? CALLS.get(pathname.slice("/trial/".length)) : undefined;
    if (call === undefined) return handler.fetch(request, env, ctx);
    if (!(await isAllowed(request, env))) return new Response("not allowed", { status: 401 });
    const asked: unknown = request.method === "POST" ? await request.json() : {};
    return Response.json(await call(asked as Asked, env, request));
  },
};

async function isAllowed(request: Request, { TRIAL_SHA256 }: Env): Promise<boolean> {
  const token = request.headers.get("authorization")?.replace(/^Bearer /, "") ?? "";
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(token));
  const digits = Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0"));
  return digits.join("") === TRIAL_SHA256;
}

interface Asked {
  readonly from: number;
  readonly count: number;
  readonly object: string;
  readonly ms: number;
  readonly traceUrl: string;
  readonly hint?: LocationHint;
  readonly seconds: number;
  readonly perSecond: number;
}
type Call = (asked: Asked, env: Env, request: Request) => Promise<object> | object;

const CALLS: ReadonlyMap<string, Call> = new Map<string, Call>([
  [
    "isolate",
    (_, { TRIAL_VERSION: version }, { cf }) => ({ isolate: isolate(), version, colo: cf?.["colo"] ?? "" }),
  ],
  ["objects", isolatesOfObjects],
  ["load", load],
  ["wait", async ({ object, ms }, { WAITING }) => ({ waitedMs: await WAITING.getByName(object).wait(ms) })],
  ["place", place],
  ["subrequests", subrequests],
  ["hot", hotKey],
]);

/** The isolate of each object, by number; an empty one: it did not answer. */
async function isolatesOfObjects({ from, count }: Asked, { TRIAL }: Env) {
  const asked = Array.from({ length: count }, (_, index) => TRIAL.getByName(`one of many ${from + index}`));
  const settled = await Promise.allSettled(asked.map((object) => object.isolate()));
  return { isolates: settled.map((each) => (each.status === "fulfilled" ? each.value : "")) };
}

/** So many messages to one object at once, and what became of them. */
async function load({ object, count }: Asked, { TRIAL }: Env) {
  const tookMs: number[] = [];
  const failed = { overloaded: 0, others: 0, error: "" };
  const send = async () => {
    const sentAtMs = Date.now();
    try {
      await TRIAL.getByName(object).hit();
      tookMs.push(Date.now() - sentAtMs);
    } catch (error) {
      const isOverload = (error as { overloaded?: boolean }).overloaded === true;
      failed[isOverload ? "overloaded" : "others"] += 1;
      failed.error = String(error);
    }
  };
  await Promise.all(Array.from({ length: count }, send));
  return { tookMs, ...failed };
}

/** Where an object is that is made near a region, or near this worker, and its round trip from here. */
async function place({ object, hint, traceUrl, count }: Asked, { TRIAL }: Env) {
  const stub = TRIAL.getByName(object, hint && { locationHint: hint });
  const colo = await stub.colo(traceUrl);
  const tookMs: number[] = [];
  for (let time = 0; time < count; time += 1) {
    const sentAtMs = Date.now();
    await stub.hit();
    tookMs.push(Date.now() - sentAtMs);
  }
  return { colo, tookMs };
}

/** Calls to an object, one after the other in this invocation, until one fails. */
async function subrequests({ count }: Asked, { TRIAL }: Env) {
  const stub = TRIAL.getByName("subrequests");
  for (let answered = 0; answered < count; answered += 1)
    try {
      await stub.hit();
    } catch (error) {
      return { answered, error: String(error) };
    }
  return { answered: count };
}

const TICK_MS = 10;

/** Calls on one key, decided in this isolate, whose object is farther away by `ms` of round trip. */
async function hotKey({ object: key, ms, seconds, perSecond }: Asked, { OBJECTS, POLICIES }: Env) {
  const limiter = createObjectsLimiter({ namespace: farther(OBJECTS, ms), policies: POLICIES });
  const calls: Promise<void>[] = [];
  const tookMs: number[] = [];
  let [degraded, denied] = [0, 0];
  const call = async (index: number) => {
    const sentAtMs = Date.now();
    const { success, reason } = await limiter.limit({ policy: "hot", key });
    tookMs[index] = Date.now() - sentAtMs;
    if (reason === "degraded") degraded += 1;
    else if (!success) denied += 1;
  };
  const perTick = Math.max(1, Math.round((perSecond * TICK_MS) / 1_000));
  for (let tick = 0; tick < (seconds * 1_000) / TICK_MS; tick += 1) {
    for (let each = 0; each < perTick; each += 1) calls.push(call(calls.length));
    await later(TICK_MS);
  }
  await Promise.all(calls);
  await limiter[Symbol.asyncDispose]();
  return { tookMs, degraded, denied };
}

type AnyMethods = Readonly<Record<string, (...args: readonly unknown[]) => Promise<unknown>>>;

/** The same objects, to which each call takes longer: half of it before, half after. */
function farther(namespace: LimiterNamespace, ms: number): LimiterNamespace {
  const slow = (stub: LimiterStub) =>
    new Proxy(stub, {
      get:
        (_, method) =>
        async (...args: readonly unknown[]) => {
          await later(ms / 2);
          // Called on the stub: of its methods, `apply` would be a remote one too.
          const answer = await (stub as unknown as AnyMethods)[String(method)]?.(...args);
          await later(ms / 2);
          return answer;
        },
    });
  return { getByName: (name, options) => slow(namespace.getByName(name, options)) };
}
