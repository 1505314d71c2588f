/** How the catalog is asked, and who may ask for what. */
import * as v from "valibot";
import type { CatalogMethods, Refusal, Versioned, Write } from "../../../core/catalog/calls.ts";
import { Problem, PROBLEMS } from "../../../core/protocol/problems.ts";
import type { StatsNamespace } from "../../../core/stats/messages.ts";
import { clip, describe, integer, table } from "../../../core/validation.ts";
import { isConfigured, mayUse, patternProblem, type Principal, scopeProblem } from "../../auth/tokens.ts";
import { plainProblem } from "../plain-data.ts";
import { notAllowed, parse, refused } from "../validate.ts";

/** What a call needs: the catalog, who calls, and how an isolate learns at once of what it has changed. */
export interface CatalogCaller {
  readonly catalog: CatalogMethods;
  readonly principal: Principal;
  readonly onWritten: () => Promise<void>;
  /** Counts what candidates decide. Absent: nobody does. */
  readonly stats?: StatsNamespace | undefined;
  /** The secret API_TOKENS, whose names no other token may have. */
  readonly secret: string | undefined;
}

/** The conditions of a write. */
export interface Conditions {
  readonly ifMatch?: readonly string[] | undefined;
  readonly ifNoneMatch?: true | undefined;
  readonly isDryRun?: true | undefined;
}

/** Writes to the catalog, if the caller may. */
export async function write(
  caller: CatalogCaller,
  what: Write,
  conditions: Conditions,
): Promise<Versioned<unknown> | Problem> {
  const { catalog, principal, onWritten } = caller;
  const refusal =
    scopeProblem(principal, ["admin"]) ?? writeProblem(principal, what) ?? takenProblem(caller.secret, what);
  if (refusal !== undefined) return refusal;
  const { title: by, keyPrefix } = principal;
  const written = await asked(
    catalog.write({ write: what, by, ...(keyPrefix !== undefined && { keyPrefix }), ...conditions }),
  );
  if (!(written instanceof Problem) && conditions.isDryRun !== true) await onWritten();
  return written;
}

/** Whoever may use some policies or keys only may change those only. */
function writeProblem(principal: Principal, what: Write): Problem | undefined {
  if (what.kind === "override") return forbiddenOverride(principal, what.policy, what.pattern);
  if (what.kind === "token" || what.kind === "catalog") return notForAll(principal);
  const policy = what.kind === "policy" ? what.name : what.policy;
  return (
    forbidden(principal, policy) ?? (principal.keyPrefix === undefined ? undefined : notForAll(principal))
  );
}

const FREE_NAME = "a name that no token of the secret API_TOKENS has";

/** A caller is known by its token's name: a token of the catalog with a name of the secret would be that caller. */
function takenProblem(secret: string | undefined, what: Write): Problem | undefined {
  if (what.kind === "token" && what.entry !== null && isConfigured(secret, what.name))
    return refused(["name"], what.name, FREE_NAME);
  if (what.kind !== "catalog") return undefined;
  const taken = Object.keys(what.document.tokens).filter((name) => isConfigured(secret, name));
  if (taken.length === 0) return undefined;
  return notAllowed(
    taken.map((name) => {
      const path = ["tokens", name];
      return { path, detail: `${clip(path.join("."))} has the name ${describe(name)}: must be ${FREE_NAME}` };
    }),
  );
}

/** The problem of a policy that the caller may not use; `undefined`: the caller may. */
export function forbidden(principal: Principal, policy: string): Problem | undefined {
  if (mayUse(principal, policy)) return undefined;
  return new Problem(PROBLEMS.forbidden, `${principal.title} may not use this policy`);
}

/** The problem of somebody who may not see what concerns all policies and keys. */
export function notForAdmin(principal: Principal): Problem | undefined {
  return scopeProblem(principal, ["admin"]) ?? notForAll(principal);
}

/** The problem of an override that the caller may not see or change: it may be for keys of others. */
export function forbiddenOverride(
  principal: Principal,
  policy: string,
  pattern: string,
): Problem | undefined {
  return forbidden(principal, policy) ?? patternProblem(principal, pattern);
}

/** What concerns all policies and keys is only for those who may use all. */
export function notForAll({ title, policies, keyPrefix }: Principal): Problem | undefined {
  if (policies === undefined && keyPrefix === undefined) return undefined;
  return new Problem(
    PROBLEMS.forbidden,
    `${title} may use some policies or keys only, and this concerns all of them`,
  );
}

/** What the runtime says when there is no room, and has undone the whole write. */
const FULL = "SQLITE_FULL";
const IS_FULL = "the storage of the catalog is full, so nothing was changed: make room, and write again";
const IS_SILENT = "the catalog did not answer: whether anything was changed is not known, so read it again";

/** The catalog's answer, or the problem. */
export async function asked<Answer extends object>(
  answer: Promise<Answer | Refusal>,
): Promise<Exclude<Answer, Refusal> | Problem> {
  try {
    const value = await answer;
    return "refused" in value ? problemOf(value) : (value as Exclude<Answer, Refusal>);
  } catch (error) {
    console.warn(`the catalog does not answer: ${String(error)}`);
    return new Problem(PROBLEMS.unavailable, String(error).includes(FULL) ? IS_FULL : IS_SILENT);
  }
}

function problemOf({ refused: why, detail, violations = [] }: Refusal): Problem {
  if (why === "not-allowed") return notAllowed(violations.length > 0 ? violations : [{ path: [], detail }]);
  const kind = { missing: PROBLEMS.notInCatalog, changed: PROBLEMS.preconditionFailed, full: PROBLEMS.bound }[
    why
  ];
  return new Problem(kind, detail);
}

/** The problem, if the answer is one. */
export function problemIn(answer: unknown): Problem | undefined {
  return answer instanceof Problem ? answer : undefined;
}

/* The conditions of a write, as a caller of the service binding gives them. */

const BoundConditions = table({
  ifMatch: v.optional(integer(0, Number.MAX_SAFE_INTEGER)),
  dryRun: v.optional(v.boolean("true or false")),
});

/** The conditions; none: they were left out. */
export function readConditions(given: unknown = {}): Conditions | Problem {
  const read = plainProblem(given) ?? parse(BoundConditions, given);
  if (read instanceof Problem) return read;
  const { ifMatch, dryRun } = read;
  return {
    ...(ifMatch !== undefined && { ifMatch: [String(ifMatch)] }),
    ...(dryRun === true && { isDryRun: true as const }),
  };
}
