import { CLAIM_BYTES, type Claim } from "../storage/records.ts";

/** The holds and leases of callers of one key, by their ids. Storage has them too. */
export class KeyClaims {
  readonly #all: Map<string, Claim>;
  #expired: readonly Claim[] = [];

  constructor(claims: Map<string, Claim> = new Map()) {
    this.#all = claims;
  }

  get all(): ReadonlyMap<string, Claim> {
    return this.#all;
  }

  /** Those that have expired and whose rows are still in storage. */
  get expired(): readonly Claim[] {
    return this.#expired;
  }

  /** About the bytes of memory that they take. */
  get bytes(): number {
    return CLAIM_BYTES * this.#all.size;
  }

  /** Holds and leases end; others begin, or are renewed. */
  note(end: readonly Claim[], put: readonly Claim[]): void {
    for (const { id } of end) this.#all.delete(id);
    for (const claim of put) this.#all.set(claim.id, claim);
  }

  /** Those whose time is over are claims no more. */
  expire(nowMs: number): void {
    const expired = [...this.#all.values()].filter(({ expiresAtMs }) => expiresAtMs <= nowMs);
    for (const { id } of expired) this.#all.delete(id);
    this.#expired = [...this.#expired, ...expired];
  }

  /** The rows of those that have expired were deleted. */
  forgetExpired(): void {
    this.#expired = [];
  }
}
