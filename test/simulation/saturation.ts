/** One key under a steady load from several isolates: the admitted share of what an exact limiter admits. */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { Objects } from "../../client/transports/objects.ts";
import { UNTOUCHED } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import { decide } from "../support/decide.ts";
import { seededRandom } from "../support/random.ts";
import { Database } from "./database.ts";
import { simulatedNamespace, type Method } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { VirtualTime } from "./virtual-time.ts";

export interface Load {
  /** Units per second. */
  readonly limit: number;
  readonly isolates: number;
  /** The first isolate gets nine tenths of all calls. */
  readonly isSkewed: boolean;
  /** Requested units, as a multiple of the limit. */
  readonly factor: number;
  readonly algorithm?: "token-bucket" | "sliding-log";
  /** Without reservations: every isolate takes this many units at a time, and returns none. */
  readonly fixedBatch?: number;
  readonly seed?: number;
}

export interface Figures {
  /** The admitted units, as a part of those that one exact limiter would admit. */
  readonly admittedShare: number;
  /** Object calls per 1,000 decisions. */
  readonly calls: number;
  /** The part of all calls that had to wait for the object. */
  readonly waitedShare: number;
  /** With fixed batches, units left at isolates in the end, where others cannot use them. */
  readonly stranded: number;
}

/** The duration of the load, in seconds of virtual time. */
export const SECONDS = 10;
/** The average one-way time of a message between isolate and object, in milliseconds. */
const MESSAGE_MS = 2;
/** The most calls in a second. For more units, each call takes more. */
const MAX_CALLS = 20_000;
const KEY = "key";

export async function saturate(load: Load): Promise<Figures> {
  const { limit, isolates, factor, isSkewed, algorithm = "token-bucket", seed = 1 } = load;
  const random = seededRandom(seed);
  const cost = Math.max(1, Math.round((limit * factor) / MAX_CALLS));
  const policies = parsePolicies({ key: { algorithm, limit, window: "1s", deadlineMs: 1_000 } });
  const policy = policies.get("key") as Policy;
  const time = new VirtualTime();
  const clock = time.clock({ ms: 1_000_000 });
  const object = new SimulatedObject(new Database(), policies, () => clock.nowMs());
  const exact = new Exact(policy);
  const sum = { calls: 0, admitted: 0, exactly: 0, messages: 0, waited: 0 };
  const handle = (method: Method, args: readonly unknown[]) => {
    sum.messages += 1;
    return object.handle(method, args);
  };
  const messageMs = () => MESSAGE_MS * (0.5 + random());
  const fateOf = () => ({ thereMs: messageMs(), backMs: messageMs() });
  const objects = new Objects(
    simulatedNamespace(time, handle, fateOf, () => false),
    clock,
  );
  const caller = { objects, time: clock, inBackground: () => undefined };
  const limiters = Array.from({ length: isolates }, (_, index) =>
    load.fixedBatch === undefined
      ? new LocalLimiter(new ReservationCache(() => `isolate-${index}`))
      : new FixedBatch(load.fixedBatch),
  );
  const done = (decision: Decision | Problem | { readonly success: boolean }) => {
    if ("success" in decision && decision.success && time.nowMs <= SECONDS * 1_000) sum.admitted += cost;
  };
  const call = (index: number) => {
    sum.calls += 1;
    if (exact.admits(cost, clock.nowMs())) sum.exactly += cost;
    const decided = limiters[index]?.limit(caller, policy, KEY, cost);
    if (decided instanceof Promise) {
      sum.waited += 1;
      void decided.then(done);
    } else if (decided !== undefined) done(decided);
  };
  const perMs = (limit * factor) / cost / 1_000;
  for (let index = 0; index < isolates; index += 1) {
    const share = isSkewed && isolates > 1 ? (index === 0 ? 0.9 : 0.1 / (isolates - 1)) : 1 / isolates;
    const next = () => {
      call(index);
      time.at(time.nowMs - Math.log(1 - random()) / (perMs * share), next);
    };
    time.at(-Math.log(1 - random()) / (perMs * share), next);
  }
  await time.run(SECONDS * 1_000, () => undefined);
  return {
    admittedShare: sum.admitted / sum.exactly,
    calls: (1_000 * sum.messages) / sum.calls,
    waitedShare: sum.waited / sum.calls,
    stranded: limiters.reduce((units, each) => units + (each instanceof FixedBatch ? each.units : 0), 0),
  };
}

/** The same calls, decided at one place and without delay. */
class Exact {
  readonly #policy: Policy;
  #account: Account = UNTOUCHED;

  constructor(policy: Policy) {
    this.#policy = policy;
  }

  admits(cost: number, nowMs: number): boolean {
    const decision = decide(this.#policy.rules[0], this.#account, nowMs, cost);
    if (decision.allowed) this.#account = decision.account;
    return decision.allowed;
  }
}

/**
 * The scheme of the literature: a batch of fixed size is debited when fetched, and kept until used. One batch
 * is fetched at a time, and its denial denies the call.
 */
class FixedBatch {
  readonly #batch: number;
  #fetch: Promise<boolean> | undefined;
  units = 0;

  constructor(batch: number) {
    this.#batch = Math.max(1, batch);
  }

  limit(
    { objects }: { readonly objects: Objects },
    policy: Policy,
    key: string,
    cost: number,
  ): { readonly success: boolean } | Promise<{ readonly success: boolean }> {
    if (this.units < cost) return this.#fetched(objects, policy, key, cost);
    this.units -= cost;
    return { success: true };
  }

  async #fetched(
    objects: Objects,
    policy: Policy,
    key: string,
    cost: number,
  ): Promise<{ readonly success: boolean }> {
    const batch = Math.max(this.#batch, cost);
    while (this.units < cost) {
      this.#fetch ??= this.#fetchBatch(objects, policy, key, batch);
      if (!(await this.#fetch) && this.units < cost) return { success: false };
    }
    this.units -= cost;
    return { success: true };
  }

  async #fetchBatch(objects: Objects, policy: Policy, key: string, batch: number): Promise<boolean> {
    const asked = await objects.ask(policy, key, (object) => object.limit(policy.name, key, batch));
    const { rules } = JSON.parse(asked?.answer ?? "{}") as { rules?: { success: boolean }[] };
    const isGranted = rules?.every(({ success }) => success) === true;
    if (isGranted) this.units += batch;
    this.#fetch = undefined;
    return isGranted;
  }
}
