import { parsePolicy } from "../../core/policies/parse-policies.ts";
/**
 * Which version of a policy an object decides by. The file that was deployed says what a policy is, until a call says that
 * a later version is in force for its key (core/policies/policy-revision.ts). The latest one counts that was heard of a key, or
 * that is stored with it, so nobody who lags behind takes the key back.
 */
import { later, type PolicyRevision } from "../../core/policies/policy-revision.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { StoredAccount } from "../storage/records.ts";

/** Where a record says which version it was written under. No rule has this name. Stored: never rename it. */
const PLACE = "@";
/** What stands there for the name of an algorithm, which no algorithm has. Stored: never rename it. */
const KIND = "in-force";

/** So many texts are kept as they were read, and so many keys wait to be opened. */
const MAX_READ = 256;
const MAX_TOLD = 1_000;

/** By policy and text: the policies that were read. All objects of an isolate share them. */
const read = new Map<string, Policy>();

/** A policy, and the version that says so; absent: the file does. */
export interface ChosenVersion {
  readonly policy: Policy;
  readonly inForce: PolicyRevision | undefined;
}

/** Chooses the policy of a key, from the version that its record was written under. */
export type Choose = (kept: PolicyRevision | undefined) => ChosenVersion;

/** The versions that calls have told for keys that are not in memory, or not yet by that version. */
export class Versions {
  readonly #told = new Map<string, PolicyRevision>();

  /** A call has come that says what is in force for its key. */
  tell(key: string, inForce: PolicyRevision): void {
    const told = later(this.#told.get(key), inForce);
    if (told === undefined) return;
    for (const oldest of this.#told.keys()) {
      if (this.#told.size < MAX_TOLD) break;
      this.#told.delete(oldest);
    }
    this.#told.set(key, told);
  }

  /** What was told of a key last; from now on the key itself knows. */
  take(key: string): PolicyRevision | undefined {
    if (this.#told.size === 0) return undefined;
    const told = this.#told.get(key);
    this.#told.delete(key);
    return told;
  }
}

/**
 * The policy that a version says.
 *
 * @param file what the deployment's file says; `undefined`: it has no such policy
 * @throws Error when there is no policy
 */
export function chosen(
  name: string,
  file: Policy | undefined,
  inForce: PolicyRevision | undefined,
): ChosenVersion {
  const policy = (inForce?.fields === undefined ? undefined : readPolicy(name, inForce.fields)) ?? file;
  if (policy === undefined)
    throw new Error(`this version of the object has no policy ${JSON.stringify(name)}`);
  return { policy, inForce };
}

function readPolicy(name: string, fields: string): Policy | undefined {
  const id = `${name}/${fields}`;
  const known = read.get(id);
  if (known !== undefined) return known;
  const policy = parsePolicy(name, JSON.parse(fields));
  if ("problems" in policy) {
    console.warn(
      `policy ${name}: another version has what this one cannot read: ${policy.problems.join("; ")}`,
    );
    return undefined;
  }
  for (const oldest of read.keys()) {
    if (read.size < MAX_READ) break;
    read.delete(oldest);
  }
  read.set(id, policy);
  return policy;
}

/** The version as a part of a record, beside its rules; empty: the file is in force. */
export function storedVersion(inForce: PolicyRevision | undefined): Readonly<Record<string, StoredAccount>> {
  return inForce === undefined ? {} : { [PLACE]: { algorithm: KIND, ahead: 0, state: inForce } };
}

/** The version under which a record was written. */
export function versionIn(
  rules: Readonly<Record<string, StoredAccount>> | undefined,
): PolicyRevision | undefined {
  return rules !== undefined && Object.hasOwn(rules, PLACE)
    ? (rules[PLACE]?.state as PolicyRevision)
    : undefined;
}
