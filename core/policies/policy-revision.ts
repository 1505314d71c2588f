/** What was changed at run time, as policies carry it from isolates to objects. */

/**
 * Which version of a policy is in force for a key. Versions rise with each change of the policy or of an override for its
 * keys, and `sinceMs` within a version, so an object that has seen one never goes back (`later`). Sent and stored: never
 * rename a field.
 */
export interface PolicyRevision {
  readonly version: number;
  /** The policy's table as JSON text, with the override of the key in it. Absent: as the deployment's file says. */
  readonly fields?: string;
  /**
   * When the last of the key's overrides ended that have ended by themselves in this version, in milliseconds since 1970:
   * an override ends at its instant, and the version rises when the catalog has written so. Absent: none has.
   */
  readonly sinceMs?: number;
  /** In a candidate: which one it is (`Candidate.version`). The keys of another one begin untouched. */
  readonly candidate?: number;
}

/** Whether a key, decided by one version before, is of another candidate now. */
export function isOfAnother(before: PolicyRevision | undefined, now: PolicyRevision | undefined): boolean {
  return now?.candidate !== undefined && now.candidate !== before?.candidate;
}

/** The later of what two calls say; of the same the first. */
export function later(
  one: PolicyRevision | undefined,
  other: PolicyRevision | undefined,
): PolicyRevision | undefined {
  const versions = (other?.version ?? 0) - (one?.version ?? 0);
  if (versions !== 0) return versions > 0 ? other : one;
  return (other?.sinceMs ?? 0) > (one?.sinceMs ?? 0) ? other : one;
}

/** The override that applies to a key. */
export interface AppliedOverride {
  /** As answers name it. */
  readonly pattern: string;
  /** Absent: other figures, by which the key is decided as any other. */
  readonly effect?: "blocked" | "unlimited";
  /** When it ends by itself, in milliseconds since 1970. Absent: not before it is deleted. */
  readonly endsAtMs?: number;
}

/**
 * Finds the policy of a key by the override that is in force for it at this instant, or after the one that has ended;
 * `undefined`: it has none.
 */
export interface Overrides<Found> {
  find(key: string, nowMs: number): Found | undefined;
}

/** What a message says of the version that is in force; empty: the deployment's file says it. */
export function versionOf({ inForce }: { readonly inForce?: PolicyRevision }): {
  readonly inForce?: PolicyRevision;
} {
  return inForce === undefined ? {} : { inForce };
}

/** Whether two versions of a policy, which were both changed at run time, say the same of a key. */
export function saysTheSame(one: Versioned, other: Versioned): boolean {
  if (one.inForce === undefined || other.inForce === undefined) return false;
  const isOfOne = one.inForce.candidate === other.inForce.candidate;
  const areSame = one.inForce.fields === other.inForce.fields;
  return isOfOne && areSame && one.override?.pattern === other.override?.pattern;
}

interface Versioned {
  readonly inForce?: PolicyRevision;
  readonly override?: AppliedOverride;
}
