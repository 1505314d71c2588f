/** What a specimen of an algorithm is: see algorithms.ts. */
import type fc from "fast-check";

export interface Specimen<Fields extends Given = Given> {
  /** Fields as a policy gives them, durations in milliseconds; `configure` must accept every one. */
  readonly fields: fc.Arbitrary<Fields>;
  /** Whether `units` admitted within `lengthMs` (first to last instant) keep the bound the algorithm promises. */
  keepsBound(fields: Fields, units: number, lengthMs: number): boolean;
  /** Present when calls that are admitted may be told to wait (`delayMs`). */
  readonly delays?: {
    /** Whether `units` whose callers went on within `lengthMs`, all having waited as told, keep the bound. */
    keepsPace(fields: Fields, units: number, lengthMs: number, largestCost: number): boolean;
    /** The longest delay in milliseconds that anybody may be told. */
    mostMs(fields: Fields): number;
  };
  /** The distance between calls of cost 1 that the quota always admits, in milliseconds. */
  paceMs(fields: Fields): number;
  /** No time gives back what was taken. */
  readonly neverRefills?: true;
  /** Nothing that is taken or held makes a difference. */
  readonly countsNothing?: true;
  /** Rounding may leave a millisecond until the quota is whole, when all of a charge has been given back. */
  readonly roundsWhole?: true;
  /** A refund without a name may give back a unit less than was asked for, and never more. */
  readonly roundsCredit?: true;
}

export type Given = Readonly<Record<string, number | string>>;
