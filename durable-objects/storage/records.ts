/** What storage keeps of a key. All of it is stored as JSON or in columns: the names of fields are for ever. */

/** One rule's part of a key's record. It is stored as JSON: the field names are for ever. */
export interface StoredAccount {
  readonly algorithm: string;
  /** What the algorithm's `pack` made. Absent: untouched. */
  readonly state?: unknown;
  readonly ahead: number;
  /** How long somebody may still spend units that were reserved; absent in records of before there were reservations. */
  readonly ttlMs?: number;
}

/** One key's record: its policy and, by rule name, what is stored of each rule. */
export interface StoredKey {
  readonly key: string;
  readonly policy: string;
  readonly rules: Readonly<Record<string, StoredAccount>>;
}

/** A hold or lease that a caller has: a row of its own. Stored as JSON: the field names are for ever. */
export interface Claim {
  /** Unguessable, and unique within its key. */
  readonly id: string;
  readonly kind: "hold" | "lease";
  /** By the name of the rule. */
  readonly units: Readonly<Record<string, number>>;
  /** How long it was asked for, and when it ends unless it is renewed. */
  readonly ttlMs: number;
  readonly expiresAtMs: number;
  /** Of a lease. */
  readonly fencingToken?: number;
  /** Kept by an open WebSocket. */
  readonly isSocket?: boolean;
  /** Of a hold for a call that decides on several keys: it ends within moments. */
  readonly isProvisional?: boolean;
  /** Of a hold: the lease that was taken with it, and what the call is remembered under. */
  readonly lease?: string;
  readonly idempotencyKey?: string;
}
