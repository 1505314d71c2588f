/**
 * What worker and object say to each other. During a rollout versions mix, so these shapes only grow.
 */
import type { DenialReason } from "./algorithms/algorithm.ts";

/** What one rule said. */
export interface RuleDecision {
  readonly name: string;
  readonly success: boolean;
  /** The most that can be admitted at once. */
  readonly limit: number;
  /** The largest cost that would pass now. */
  readonly remaining: number;
  /** Milliseconds until the quota is whole again if nobody comes. */
  readonly resetAfterMs: number;
  /** 0 when admitted; when denied the exact wait for this cost; `null`: never. */
  readonly retryAfterMs: number | null;
  readonly reason: "ok" | DenialReason;
}

/** All rules of one decision. It was admitted when every one of them says so. */
export interface Decided {
  readonly rules: readonly RuleDecision[];
}

/** The idempotency key was used for another request; `request` is that one, in words. */
export interface Conflict {
  readonly conflict: { readonly request: string };
}

export interface Peeked extends Decided {
  /** Units held by somebody who may still use them. */
  readonly outstanding: number;
}

/** A decision or a conflict as JSON text: a nested object would cost a tenth of the whole call to send. */
export type AnswerText = string;

/** The object's methods. Costs and units are whole numbers, keys normalised: nothing is checked again. */
export interface LimiterMethods {
  limit(policy: string, key: string, cost: number, idempotencyKey?: string): AnswerText;
  refund(policy: string, key: string, units: number, idempotencyKey: string): AnswerText;
  peek(policy: string, key: string): Peeked;
  reset(policy: string, key: string): void;
}

/** Reads what `limit` and `refund` answer. */
export function readAnswer(text: AnswerText): Decided | Conflict {
  return JSON.parse(text) as Decided | Conflict;
}
