/** What the model of a pool's script remembers: holders, answers, and the terms by which time returns units. */
import { advance, broughtTo } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import type { TokenBucketConfig } from "../../core/algorithms/token-bucket.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { PoolAnswer, PoolCall, PoolGrant } from "../../durable-objects/pool/protocol.ts";

export interface Holder {
  readonly begun: number;
  readonly turn: number;
  readonly hold: string;
  readonly used: readonly number[];
  readonly wanted: readonly number[];
  readonly untilMs: number;
  readonly mark: PoolGrant["mark"];
  readonly leases: number;
  readonly queueLength: number;
}

export interface Kept {
  readonly request: string | undefined;
  readonly answer: PoolAnswer;
  readonly isDenied?: boolean;
  readonly charge?: {
    readonly units: Record<string, number>;
    readonly atMs: number;
    readonly rules: readonly Rule[];
  };
}

export interface Own {
  readonly lacking: readonly number[];
  /** The turn at which this life of the holder began. */
  readonly begun: number;
  readonly id: string;
  readonly isNew: boolean;
  readonly used: readonly number[];
  readonly kept: readonly number[];
  /** The end of the hold that the holder continues, before this message. */
  readonly beforeMs: number;
  readonly rememberMs: number;
}

/** Those of the last call that took some. */
export class PoolTerms {
  /** By rule: since when terms have been in force, the latest last; none: nothing has been stored. */
  since: readonly (readonly { readonly atMs: number; readonly rule: Rule }[])[] = [];

  /** Debits what has expired and brings accounts to `nowMs`, where a call's terms are others than those in force. */
  brought(rule: Rule, index: number, account: Account, nowMs: number): Account {
    const inForce = this.#inForce(rule, index);
    const advanced = advance(inForce, account, nowMs);
    return isSame(inForce, rule) ? advanced : broughtTo(inForce, advanced, nowMs);
  }

  /** Returns whether the call puts other terms in force. */
  follow(rules: readonly Rule[], { op, cost, holding }: PoolCall, nowMs: number): boolean {
    const takes = (units: readonly number[] = []) => units.some((each) => each > 0);
    const isTaking = op === "hold" ? takes(cost) : op === "limit" && (takes(cost) || takes(holding?.wanted));
    const others = rules.map((rule, index) => isTaking && !isSame(this.#inForce(rule, index), rule));
    this.since = rules.map((rule, index) => {
      const since = this.since[index] ?? [];
      return since.length === 0 || others[index] === true ? [...since, { atMs: nowMs, rule }] : since;
    });
    return others.includes(true);
  }

  /** The parts of a unit that time has returned between two instants, if all had the same window. */
  returned(index: number, fromMs: number, toMs: number): number {
    const since = this.since[index] ?? [];
    let parts = 0;
    for (const [at, { atMs, rule }] of since.entries()) {
      const endMs = Math.min(toMs, since[at + 1]?.atMs ?? Infinity);
      const ms = Math.max(0, endMs - Math.max(fromMs, atMs));
      parts += ms * (rule.config as TokenBucketConfig).limit;
    }
    return parts;
  }

  #inForce(rule: Rule, index: number): Rule {
    return rule.algorithm.refilled === undefined ? rule : (this.since[index]?.at(-1)?.rule ?? rule);
  }
}

function isSame(one: Rule, other: Rule): boolean {
  return one === other || JSON.stringify(one.config) === JSON.stringify(other.config);
}
