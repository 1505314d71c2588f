/** What may be written to the catalog, and why something may not. */
import { MAX_TABLE_LENGTH, type Refusal } from "../../core/catalog/calls.ts";
import { readOverride, type Table, problemsOf } from "../../core/catalog/overrides.ts";
import { PATTERN_ALLOWED, RANGE_ALLOWED, parsePattern } from "../../core/catalog/patterns.ts";
import { parsePolicy } from "../../core/policies/parse-policies.ts";
import { NAME, NAME_ALLOWED } from "../../core/policies/policy-fields.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { meant, violation, type Violation } from "../../core/validation.ts";

/** What the deployment's file says, by the policy's name. */
export interface Deployed {
  readonly tables: ReadonlyMap<string, Table>;
}

/** What a policy is, and what it was before it was taken away. */
export interface Base {
  readonly fields?: Table | undefined;
  readonly last?: Table | undefined;
}

/** An override that may be written. */
export interface CheckedOverride {
  readonly pattern: string;
  readonly isManifold: boolean;
  readonly endsAtMs?: number;
}

/**
 * Says where keys are, and which keys there are. A change of these moves keys between objects, and only a deployment
 * can do that: objects and isolates have to know both layouts.
 */
const PLACES = ["objects", "objectsBefore", "keyKind", "pool", "locationHint", "jurisdiction"] as const;

export function isRefusal(answer: object): answer is Refusal {
  return "refused" in answer;
}

/** The refusal of a policy; `undefined`: it may be written. */
export function checkedPolicy(name: string, { fields: file, last }: Base, given: Table): Refusal | undefined {
  if (!NAME.test(name))
    return notAllowed([{ path: ["policy"], detail: violation(["policy"], name, NAME_ALLOWED) }]);
  const long = lengthProblem(given);
  if (long !== undefined) return long;
  const problems = problemsOf(name, given);
  if (problems.length > 0) return notAllowed(problems);
  if (given["pool"] !== undefined)
    return notAllowed([
      { path: ["pool"], detail: 'pool is "redis": must be left out of a policy that is made at run time' },
    ]);
  const before = read(name, file ?? last);
  const after = read(name, given);
  if (before === undefined || after === undefined) return undefined;
  const moved = PLACES.filter((field) => JSON.stringify(before[field]) !== JSON.stringify(after[field]));
  if (moved.length === 0) return undefined;
  const where = file === undefined ? "as it was when the policy was made" : "as in wrangler.toml";
  return notAllowed(
    moved.map((field) => ({
      path: [field],
      detail: `${field} is ${shown(after[field])}: must be ${shown(before[field])}, ${where}, since only a deployment moves keys`,
    })),
  );
}

/** An override as it is stored, or why it may not be. */
export function checkedOverride(
  name: string,
  { fields: base = {} }: Base,
  givenPattern: string,
  given: Table,
  nowMs = -Infinity,
): CheckedOverride | Refusal {
  const policy = read(name, base);
  const kind = { keyKind: policy?.keyKind ?? "text" };
  const pattern = parsePattern(kind, givenPattern);
  if (pattern === undefined) {
    const allowed = kind.keyKind === "ip" ? RANGE_ALLOWED : PATTERN_ALLOWED;
    return notAllowed([{ path: ["pattern"], detail: violation(["pattern"], givenPattern, allowed) }]);
  }
  const long = lengthProblem(given);
  if (long !== undefined) return long;
  const checked = readOverride(name, base, given);
  if ("problems" in checked) return notAllowed(checked.problems);
  const { endsAtMs } = checked;
  if (policy?.pool !== undefined)
    return notAllowed([
      {
        path: [],
        detail:
          'the policy has pool = "redis": its regions share one limit, and its keys can have no overrides',
      },
    ]);
  if (endsAtMs !== undefined && !(endsAtMs > nowMs)) {
    const detail = violation(["expiresAt"], given["expiresAt"], "an instant in the future (RFC 3339)");
    return notAllowed([{ path: ["expiresAt"], detail }]);
  }
  const isManifold = pattern.kind === "glob" && pattern.parts.length > 2;
  return { pattern: pattern.text, isManifold, ...(endsAtMs !== undefined && { endsAtMs }) };
}

/**
 * The refusal of a token that may use policies which there are not; `undefined`: it may be written.
 *
 * @param names those of all policies. They are read for an error alone.
 */
export function checkedToken(
  { policies = [] }: Table,
  isThere: (policy: string) => boolean,
  names: () => Iterable<string>,
): Refusal | undefined {
  const given = policies as readonly string[];
  if (given.every(isThere)) return undefined;
  const known = [...names()];
  const violations = given.flatMap((name, index) => {
    if (isThere(name)) return [];
    const path = ["policies", String(index)];
    return { path, detail: violation(path, name, `the name of a policy that there is${meant(name, known)}`) };
  });
  return notAllowed(violations);
}

function lengthProblem(table: Table): Refusal | undefined {
  const { length } = JSON.stringify(table);
  if (length <= MAX_TABLE_LENGTH) return undefined;
  return notAllowed([
    { path: [], detail: `it has ${length} characters as JSON: must have at most ${MAX_TABLE_LENGTH}` },
  ]);
}

/** The refusal of something that breaks these rules. */
export function notAllowed(violations: readonly Violation[]): Refusal {
  return { refused: "not-allowed", detail: violations.map(({ detail }) => detail).join("; "), violations };
}

function read(name: string, fields: Table | undefined): Policy | undefined {
  const parsed = fields && parsePolicy(name, fields);
  return parsed === undefined || "problems" in parsed ? undefined : parsed;
}

function shown(value: unknown): string {
  return value === undefined ? "left out" : JSON.stringify(value);
}
