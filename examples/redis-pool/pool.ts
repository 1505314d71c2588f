/**
 * A pool that Weir keeps in Redis, for a program beside it. Copy this file, and pool.lua, which print-script.ts prints.
 *
 * Every call is one script, which Redis runs alone from beginning to end, by its own clock.
 */
import { randomUUID } from "node:crypto";

/** What is needed of a Redis client; node-redis has it as it is. */
export interface RedisClient {
  evalSha(digest: string, call: { keys: string[]; arguments: string[] }): Promise<unknown>;
  scriptLoad(script: string): Promise<string>;
}

/** A rule as the policy has it, in milliseconds. The name of a policy's only rule is that of the policy. */
export type Rule = { readonly name: string; readonly limit: number } & (
  | { readonly algorithm: "token-bucket"; readonly windowMs: number; readonly burst: number }
  | {
      readonly algorithm: "sliding-log";
      readonly windowMs: number;
      readonly minIntervalMs?: number;
      readonly countDenied?: boolean;
    }
  | { readonly algorithm: "concurrency" }
);

/** What a rule says. `retryAfterMs` is null when the cost is over the limit. */
export interface RuleDecision {
  readonly name: string;
  readonly success: boolean;
  readonly limit: number;
  readonly remaining: number;
  readonly resetAfterMs: number;
  readonly retryAfterMs: number | null;
  readonly reason: string;
}

/** `success` says yes or no. */
export interface Answer {
  readonly success: boolean;
  /** Absent after `renew`, and when there is no such hold. */
  readonly rules?: readonly RuleDecision[];
  /** Of a hold or lease that was granted. Leases have a fencing token, a number too large for some languages. */
  readonly hold?: { readonly id: string; readonly expiresAfterMs: number; readonly fencingToken?: string };
  readonly expiresAfterMs?: number;
  /** There is no such hold or lease, or no longer. */
  readonly missing?: true;
}

interface Call {
  readonly op: "limit" | "peek" | "hold" | "settle" | "renew";
  readonly cost: readonly number[];
  readonly id?: string;
  readonly ttlMs?: number;
  readonly used?: readonly number[];
}

/** The keys of one policy. Costs are units of each rule, in the order of the rules. */
export class RedisPool {
  readonly #client: RedisClient;
  readonly #script: string;
  readonly #policy: string;
  readonly #rules: readonly Rule[];
  #digest: Promise<string> | undefined;

  constructor(client: RedisClient, script: string, policy: string, rules: readonly Rule[]) {
    this.#client = client;
    this.#script = script;
    this.#policy = policy;
    this.#rules = rules;
  }

  /** Takes a cost, of all rules or of none. */
  limit(key: string, cost = this.#each(1)): Promise<Answer> {
    return this.#call(key, { op: "limit", cost });
  }

  /** What `limit` would say; takes nothing. */
  peek(key: string, cost = this.#each(1)): Promise<Answer> {
    return this.#call(key, { op: "peek", cost });
  }

  /** Sets units apart until `settle`. After `ttlMs` they count as used; those of a concurrency rule are free. */
  hold(key: string, cost: readonly number[], ttlMs: number): Promise<Answer> {
    return this.#call(key, { op: "hold", cost, id: randomUUID(), ttlMs });
  }

  /** Ends a hold: so much of it was used, which may be more. Without `used` nothing was, and a lease is released. */
  settle(key: string, id: string, used?: readonly number[]): Promise<Answer> {
    return this.#call(key, { op: "settle", cost: this.#each(0), id, ...(used && { used }) });
  }

  /** Moves the end of a hold or lease to `ttlMs` from now. */
  renew(key: string, id: string, ttlMs: number): Promise<Answer> {
    return this.#call(key, { op: "renew", cost: this.#each(0), id, ttlMs });
  }

  async #call(key: string, call: Call): Promise<Answer> {
    // All that comes before the } is the same, so in a cluster the keys are on one node.
    const name = `weir:{${this.#policy}/${key}}`;
    const logs = this.#rules.map((rule) => `${name}:log:${rule.name}`);
    const answers = call.id === undefined ? [] : [`${name}:answer:${encodeURIComponent(call.id)}`];
    const keys = [name, `${name}:holds`, ...logs, ...answers];
    const said = await this.#run(keys, [JSON.stringify({ rules: this.#rules, ...call }), "{}"]);
    const answer = JSON.parse(String(said)) as Omit<Answer, "success">;
    const success = answer.missing !== true && (answer.rules ?? []).every((rule) => rule.success);
    return { success, ...answer };
  }

  /** By its digest; a server that was started anew has to be given the script again. */
  async #run(keys: string[], args: string[]): Promise<unknown> {
    this.#digest ??= this.#client.scriptLoad(this.#script);
    try {
      return await this.#client.evalSha(await this.#digest, { keys, arguments: args });
    } catch (error) {
      this.#digest = undefined;
      if (!String(error).includes("NOSCRIPT")) throw error;
      this.#digest = this.#client.scriptLoad(this.#script);
      return await this.#client.evalSha(await this.#digest, { keys, arguments: args });
    }
  }

  #each(units: number): number[] {
    return this.#rules.map(() => units);
  }
}
