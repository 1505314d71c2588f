/** What a policy is, once it has been parsed. */
import type { AnyAlgorithm, LeaseTerms, LocalDecisions, Quota } from "../algorithms/algorithm.ts";
import type { Lifetimes } from "./lifetimes.ts";
import type { Region } from "./regions.ts";

/** One limit: an algorithm with its configuration. */
export interface Rule {
  readonly name: string;
  readonly algorithm: AnyAlgorithm;
  /** Made by `algorithm.configure`, and only ever given back to it. */
  readonly config: object;
  readonly capacity: number;
  readonly quota: Quota;
  /** What its units are; a cost may be given for each unit by this name. */
  readonly unit: string;
  /** Present when units are leased and not used up. */
  readonly lease?: LeaseTerms;
}

/** What a key is limited by, as the deployer wrote it in `[vars.POLICIES.<name>]`. */
export interface Policy {
  readonly name: string;
  readonly rules: readonly [Rule, ...Rule[]];
  /** Present when some rule leases units: a call is an acquire, on the strictest terms of those rules. */
  readonly lease?: LeaseTerms;
  /** What to answer when the level beneath does not; `local`: a region whose pool does not answer goes on alone. */
  readonly onFailure: "closed" | "open" | "local";
  /** Present when units are in a pool that regions share. */
  readonly pool?: Pool;
  /** Present in a region's copy of it, whose name says so too: see regional-policies.ts. */
  readonly region?: Region;
  /** The longest a caller waits for the object, in milliseconds. */
  readonly deadlineMs: number;
  /** One object a key, or so many objects that share all keys. */
  readonly objects: "per-key" | number;
  /** How long isolates may reserve units; 0 when they do not, and every call is decided by the object. */
  readonly reservation: Lifetimes;
  /** What an isolate may decide, as far as every rule allows it. */
  readonly localDecisions: LocalDecisions;
  /** Decide and report, never deny. */
  readonly shadow: boolean;
  /** `ip`: keys are addresses, an IPv6 one counts with its /64. */
  readonly keyKind: "text" | "ip";
}

export interface Pool {
  readonly kind: "redis";
  /** The part of the limit that a region goes on with alone; absent: 1 divided by the number of regions. */
  readonly localShare?: number;
}

export type Policies = ReadonlyMap<string, Policy>;
