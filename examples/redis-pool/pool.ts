/**
 * A client for a pool that Weir keeps in Redis. To use it in another program, copy this file and pool.lua, which
 * print-script.ts prints.
 *
 * Every call runs the script once. Redis runs nothing else meanwhile, and its own clock counts.
 */
import { randomUUID } from "node:crypto";

/** The methods of a Redis client that are used here. A client of node-redis has them. */
export interface RedisClient {
  evalSha(digest: string, call: { keys: string[]; arguments: string[] }): Promise<unknown>;
  scriptLoad(script: string): Promise<string>;
}

/** A rule of the policy, with durations in milliseconds. If a policy has one rule, the rule has the policy's name. */
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

/** What a rule says of a cost. `retryAfterMs` is `null` when the cost can never pass. */
export interface RuleDecision {
  readonly name: string;
  readonly success: boolean;
  readonly limit: number;
  readonly remaining: number;
  readonly resetAfterMs: number;
  readonly retryAfterMs: number | null;
  readonly reason: string;
}

export interface Answer {
  /** Every rule admits the cost; or the hold or lease was found. */
  readonly success: boolean;
  /** Absent after `renew`, and when there is no such hold. */
  readonly rules?: readonly RuleDecision[];
  /** What was granted. A lease has a `fencingToken`: as text, because the number is too large for some languages. */
  readonly hold?: { readonly id: string; readonly expiresAfterMs: number; readonly fencingToken?: string };
  /** After `renew`: how long the hold or lease lasts now. */
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

/** The pool of one policy. A cost is an array: units of each rule, in the order of the rules. */
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

  /** Takes a cost if every rule admits it, and nothing otherwise. */
  limit(key: string, cost = this.#each(1)): Promise<Answer> {
    return this.#call(key, { op: "limit", cost });
  }

  /** What `limit` would answer. Takes nothing. */
  peek(key: string, cost = this.#each(1)): Promise<Answer> {
    return this.#call(key, { op: "peek", cost });
  }

  /** Holds units until `settle`. After `ttlMs` they count as used; those of a concurrency rule are free again. */
  hold(key: string, cost: readonly number[], ttlMs: number): Promise<Answer> {
    return this.#call(key, { op: "hold", cost, id: randomUUID(), ttlMs });
  }

  /** Ends a hold with the units used, which may be more than were held. Without `used`, none were. Releases a lease. */
  settle(key: string, id: string, used?: readonly number[]): Promise<Answer> {
    return this.#call(key, { op: "settle", cost: this.#each(0), id, ...(used && { used }) });
  }

  /** Moves the end of a hold or lease to `ttlMs` from now. */
  renew(key: string, id: string, ttlMs: number): Promise<Answer> {
    return this.#call(key, { op: "renew", cost: this.#each(0), id, ttlMs });
  }

  async #call(key: string, call: Call): Promise<Answer> {
    // In a Redis cluster the text between { and } chooses the node, so all keys of a pool are on the same one.
    const name = `weir:{${this.#policy}/${key}}`;
    const logs = this.#rules.map((rule) => `${name}:log:${rule.name}`);
    const answers = call.id === undefined ? [] : [`${name}:answer:${encodeURIComponent(call.id)}`];
    const keys = [name, `${name}:holds`, ...logs, ...answers];
    const said = await this.#run(keys, [JSON.stringify({ rules: this.#rules, ...call }), "{}"]);
    const answer = JSON.parse(String(said)) as Omit<Answer, "success">;
    const success = answer.missing !== true && (answer.rules ?? []).every((rule) => rule.success);
    return { success, ...answer };
  }

  /** Runs the script by its digest. A server that has restarted does not know the script, and is sent it again. */
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
