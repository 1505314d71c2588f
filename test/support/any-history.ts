import { LimiterClient } from "../../client/objects/limiter-client.ts";
/**
 * Random histories of calls that charge the first check that admits: workers that die, answers that are lost, objects that
 * crash, and keys that are drained and refilled in between. The laws are checked at every message.
 */
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { parseDeployment, RegionalPolicies } from "../../core/policies/parse-policies.ts";
import { DEFAULT_BOUNDS } from "../../core/policies/policy.ts";
import type { LimitCall } from "../../core/protocol/calls.ts";
import type { AnyDecision } from "../../core/protocol/decision.ts";
import type { KeyCall } from "../../core/protocol/object-methods.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { KeyCalls } from "../../durable-objects/key-calls.ts";
import { OwnerRouting, stubOf, type WireMethod, writeAnswer } from "../../durable-objects/wire-methods.ts";
import { callLimitAny } from "../../worker/calls/limit-any.ts";
import { AlarmedObject, known } from "./alarmed-object.ts";
import { pick, seededRandom, whole } from "./random.ts";

/** One small policy of each algorithm that counts a rate. */
export const ANY_POLICIES = {
  "token-bucket": { limit: 3, window: "10s" },
  gcra: { limit: 2, window: "10s" },
  "sliding-log": { limit: 3, window: "10s", minInterval: "100ms" },
  "fixed-window": { limit: 3, window: "10s" },
  "sliding-window-counter": { limit: 3, window: "10s" },
  "leaky-bucket": { limit: 1, window: "5s", burst: 2 },
  "permits-per-cycle": { limit: 2, window: "5s", timeout: "5s" },
  "smooth-bursty": { limit: 1, window: "5s", maxBurst: "10s", maxDelay: "10s" },
  "smooth-warming-up": { limit: 1, window: "5s", warmup: "20s", maxDelay: "30s" },
  credits: { limit: 100, initial: 2 },
  unlimited: {},
};
const NAMES = Object.keys(ANY_POLICIES);
const POLICIES = Object.fromEntries(
  Object.entries(ANY_POLICIES).map(([algorithm, fields]) => [algorithm, { algorithm, ...fields }]),
);
const START_MS = 1_767_225_600_000;
const KEYS = ["a", "b"];
const CALLER: object = { title: "a test", id: '"test"', scopes: ["limit"], bounds: DEFAULT_BOUNDS };

type Stub = Readonly<Record<string, (...args: unknown[]) => Promise<string>>>;
type Send = () => Promise<string>;

/** A fault between worker and object. @param send delivers the message; with another one, that instead */
export type Plant = (call: LimitCall, send: (call: LimitCall) => Promise<string>) => Promise<string>;

interface Call {
  readonly idempotencyKey?: string;
  readonly checks: readonly { readonly policy: string; readonly key: string; readonly cost: number }[];
  /** By check (policy, key and idempotency key): the answer that charged it. */
  readonly charged: Map<string, string>;
}

interface Attempt {
  readonly call: Call;
  pending?: {
    readonly send: Send;
    readonly resolve: (text: string) => void;
    readonly reject: (why: Error) => void;
  };
  isUncertain: boolean;
  answer?: AnyDecision | Problem;
}

/** What a history has met: a law that meets nothing says nothing. */
export interface Met {
  charged: number;
  second: number;
  retried: number;
  lost: number;
  denied: number;
}

/** @throws Error that names the broken law */
export async function runAnyHistory(seed: number, plant: Plant = (call, send) => send(call)): Promise<Met> {
  const history = new AnyHistory(seed, plant);
  for (let step = 0; step < 120; step += 1) await history.step();
  await history.end();
  return history.met;
}

class AnyHistory {
  readonly met: Met = { charged: 0, second: 0, retried: 0, lost: 0, denied: 0 };
  readonly #random: () => number;
  readonly #plant: Plant;
  /** An object for each policy. */
  readonly #objects = new Map(NAMES.map((name) => [name, new AlarmedObject(known(POLICIES), START_MS)]));
  readonly #policies: RegionalPolicies;
  readonly #calls: Call[] = [];
  #live: Attempt[] = [];
  readonly #stubs = new Map<string, Stub>();
  #nowMs = START_MS;
  #broken: Error | undefined;

  constructor(seed: number, plant: Plant) {
    this.#random = seededRandom(seed);
    this.#plant = plant;
    const { policies, regions } = parseDeployment({ policies: POLICIES });
    this.#policies = new RegionalPolicies(policies, regions);
    for (const name of NAMES) this.#connect(name);
  }

  async step(): Promise<void> {
    const random = this.#random;
    const kind = random();
    if (kind < 0.12) this.#begin(this.#newCall());
    else if (kind < 0.27) this.#retry();
    else if (kind < 0.75) await this.#deliver();
    else if (kind < 0.84) this.#drain();
    else if (kind < 0.93) await this.#refill(pick(random, NAMES), pick(random, KEYS));
    else if (kind < 0.97) await this.#pass(whole(random, 4_000));
    else await this.#crash();
    await this.#settled();
  }

  /** Every call that can be repeated is made again, twice and without faults, when one of its keys has nothing used. */
  async end(): Promise<void> {
    while (this.#live.length > 0) await this.#finish(this.#live[0] as Attempt);
    for (const call of this.#calls) {
      if (call.idempotencyKey === undefined) continue;
      const { policy, key } = pick(this.#random, call.checks);
      await this.#refill(policy, key);
      const first = await this.#finish(this.#begin(call));
      law(
        first.success,
        "a call that was charged, or that all have denied before, is denied when it comes again",
      );
      const second = await this.#finish(this.#begin(call));
      law(JSON.stringify(second) === JSON.stringify(first), "an answer under an idempotency key has changed");
    }
  }

  #newCall(): Call {
    const random = this.#random;
    const checks = Array.from({ length: 2 + whole(random, 3) }, () => ({
      policy: pick(random, random() < 0.9 ? NAMES.filter((name) => name !== "unlimited") : NAMES),
      key: pick(random, KEYS),
      cost: 1 + whole(random, 2),
    }));
    const once = random() < 0.7 ? { idempotencyKey: `call ${this.#calls.length}` } : {};
    const call = { ...once, checks, charged: new Map<string, string>() };
    this.#calls.push(call);
    return call;
  }

  #retry(): void {
    const repeatable = this.#calls.filter(({ idempotencyKey }) => idempotencyKey !== undefined).slice(-3);
    if (repeatable.length === 0) return;
    const call = pick(this.#random, repeatable);
    if (call.charged.size > 0) this.met.retried += 1;
    this.#begin(call);
  }

  /** An attempt in a worker of its own. */
  #begin(call: Call): Attempt {
    const attempt: Attempt = { call, isUncertain: false };
    const ask =
      (method: string) =>
      (...args: unknown[]) =>
        new Promise<string>((resolve, reject) => {
          attempt.pending = { send: () => this.#make(attempt, method, args), resolve, reject };
        });
    const namespace = { getByName: () => ({ limit: ask("limit"), limitCall: ask("limitCall") }) };
    const time = { nowMs: () => this.#nowMs, after: () => () => undefined };
    const objects = new Objects(namespace as unknown as LimiterNamespace, time, undefined, {
      unanswered: () => undefined,
    });
    const parts = { objects, policies: this.#policies, time, inBackground: () => undefined };
    const context = { client: new LimiterClient(parts), principal: CALLER as never };
    const { idempotencyKey, checks } = call;
    const input = { checks, ...(idempotencyKey !== undefined && { idempotencyKey }) };
    void callLimitAny(context, input).then((answered) => {
      attempt.answer = answered instanceof Problem ? answered : answered.answer;
      this.#live = this.#live.filter((each) => each !== attempt);
      try {
        this.#answered(attempt);
      } catch (error) {
        this.#broken ??= error as Error;
      }
    });
    this.#live.push(attempt);
    return attempt;
  }

  /** Waits until each attempt has sent a message, or is answered. */
  async #settled(): Promise<void> {
    for (let turn = 0; turn < 2 || this.#live.some(({ pending }) => pending === undefined); turn += 1)
      await new Promise<void>((done) => setImmediate(done));
    if (this.#broken !== undefined) throw this.#broken;
  }

  async #deliver(): Promise<void> {
    const random = this.#random;
    await this.#settled();
    if (this.#live.length === 0) return;
    const attempt = pick(random, this.#live);
    const { pending } = attempt;
    delete attempt.pending;
    const fate = random();
    if (pending === undefined) return;
    const text = fate < 0.85 ? await pending.send() : "";
    if (fate < 0.7) return pending.resolve(text);
    attempt.isUncertain = true;
    this.met.lost += 1;
    // The answer or the message is lost; otherwise the worker has died, after its message or before.
    if (fate < 0.77 || fate >= 0.93) return pending.reject(new Error("lost"));
    this.#live = this.#live.filter((each) => each !== attempt);
  }

  async #finish(attempt: Attempt): Promise<AnyDecision> {
    for (await this.#settled(); attempt.answer === undefined; await this.#settled()) {
      const { pending } = attempt;
      delete attempt.pending;
      pending?.resolve(await pending.send());
    }
    if (attempt.answer instanceof Problem) throw attempt.answer.toError();
    return attempt.answer;
  }

  #drain(): void {
    const [random, policy] = [this.#random, pick(this.#random, NAMES)];
    this.#objectOf(policy).limit(pick(random, KEYS), 1 + whole(random, 2), policy);
  }

  async #refill(policy: string, key: string): Promise<void> {
    await this.#stubs.get(policy)?.["setUsed"]?.({ protocol: 1, policy, key, used: 0 });
  }

  async #pass(ms: number): Promise<void> {
    this.#nowMs += ms;
    for (const object of this.#objects.values()) await object.pass(ms);
  }

  /** An object loses its memory. What is under way goes to the one that starts then. */
  async #crash(): Promise<void> {
    const policy = pick(this.#random, NAMES);
    await this.#objectOf(policy).restart(known(POLICIES));
    this.#connect(policy);
  }

  #connect(policy: string): void {
    const object = this.#objectOf(policy);
    const calls = new KeyCalls({ ...object.parts, sockets: { closeLost: () => undefined } });
    const answer = (message: KeyCall, method: WireMethod) => writeAnswer(method, calls.call(message));
    const routing = new OwnerRouting(answer, { time: { nowMs: () => object.nowMs } });
    this.#stubs.set(policy, stubOf(routing) as unknown as Stub);
  }

  #objectOf(policy: string): AlarmedObject {
    const object = this.#objects.get(policy);
    if (object === undefined) throw new Error(`no object of ${policy}`);
    return object;
  }

  /** Delivers a message, and checks what it has changed. */
  async #make(attempt: Attempt, method: string, args: readonly unknown[]): Promise<string> {
    const plain = { policy: args[0], key: args[1], cost: args[2], idempotencyKey: args[3] };
    const call = (method === "limit" ? plain : args[0]) as LimitCall;
    const before = this.#stateOf(call);
    const text = await this.#plant(call, async (sent) =>
      String(await this.#stubs.get(sent.policy)?.["limitCall"]?.({ ...sent })),
    );
    const after = this.#stateOf(call);
    const { rules = [] } = JSON.parse(text) as { rules?: readonly { success: boolean }[] };
    if (rules.some(({ success }) => !success)) {
      this.met.denied += 1;
      law(after === before, `a denied check has changed: ${before} is ${after}`);
      return text;
    }
    const { charged } = attempt.call;
    const name = JSON.stringify([call.policy, call.key, call.idempotencyKey ?? charged.size]);
    if (charged.has(name)) law(after === before, "a repeated check was charged again");
    else if (call.policy !== "unlimited") law(after !== before, "a check that admits was not charged");
    charged.set(name, text);
    law(charged.size === 1, `two checks were charged: ${[...charged.keys()].join(" and ")}`);
    return text;
  }

  #stateOf({ policy, key }: LimitCall): string {
    return this.#objectOf(policy).ask(
      key,
      (operations, keyState, nowMs) => {
        const peeked = operations.peek(keyState, nowMs);
        return JSON.stringify([keyState.ruleStates.map(({ account }) => account.state), peeked]);
      },
      policy,
    );
  }

  #answered({ call, answer, isUncertain }: Attempt): void {
    if (answer === undefined || answer instanceof Problem) return;
    const { success, chosen, decisions } = answer;
    if (success) {
      this.met.charged += 1;
      if (chosen !== 0) this.met.second += 1;
      const check = call.checks[chosen ?? -1];
      // Without an idempotency key an unlimited key is decided without a message.
      const [name = '["unlimited"]'] = call.charged.keys();
      const [policy, key = check?.key] = JSON.parse(name) as string[];
      const isCharged = check?.policy === policy && check?.key === key;
      law(isCharged, "the answer names another check than the charged one");
    } else if (!isUncertain && call.idempotencyKey === undefined)
      law(call.charged.size === 0, "a call was denied, and a check is charged");
    law(decisions.length === (chosen ?? decisions.length - 1) + 1, "a check after the chosen one was tried");
  }
}

function law(holds: boolean, says: string): void {
  if (!holds) throw new Error(says);
}
