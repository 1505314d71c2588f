import { RpcTarget } from "cloudflare:workers";
import type { CatalogConditions, CatalogService } from "../../client/transports/catalog-service.ts";
import type {
  AuditEntry,
  CandidateAnswer,
  CatalogDocument,
  ComparedCandidate,
  OverrideAnswer,
  PolicyAnswer,
} from "../../core/catalog/calls.ts";
import type { OverrideFields, Table } from "../../core/catalog/overrides.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { type CatalogCaller, type Conditions, readConditions } from "../calls/catalog/catalog-access.ts";
import {
  deleteCandidate,
  deleteOverride,
  deletePolicy,
  issueToken,
  listOverrides,
  listTokens,
  promoteCandidate,
  readAudit,
  readCandidate,
  readCatalog,
  readOverride,
  readPolicy,
  revokeToken,
  writeCandidate,
  writeCatalog,
  writeOverride,
  writePolicy,
} from "../calls/catalog/catalog-calls.ts";
import { refused } from "../calls/validate.ts";
import { orThrow } from "./bound-call.ts";

/** The catalog over the service binding: the calls of HTTP, with the same arguments and answers. */
export class CatalogTarget extends RpcTarget implements Omit<CatalogService, keyof Disposable> {
  readonly #caller: CatalogCaller;

  constructor(caller: CatalogCaller) {
    super();
    this.#caller = caller;
  }

  /** The policy as it is in force, for keys without an override. */
  async policy(name: string): Promise<PolicyAnswer> {
    return orThrow(await readPolicy(this.#caller, text("policy", name)));
  }

  /** Changes a policy, or makes one. */
  async putPolicy(name: string, fields: Table, conditions?: CatalogConditions): Promise<PolicyAnswer> {
    return orThrow(await writePolicy(this.#caller, text("policy", name), fields, conditionsOf(conditions)));
  }

  /** Takes a policy away: what the file says is in force again, or it is gone. */
  async deletePolicy(name: string, conditions?: CatalogConditions): Promise<void> {
    done(await deletePolicy(this.#caller, text("policy", name), conditionsOf(conditions)));
  }

  /** One override. */
  async override(policy: string, pattern: string): Promise<OverrideAnswer> {
    return orThrow(await readOverride(this.#caller, text("policy", policy), text("pattern", pattern)));
  }

  /** The overrides of a policy, page by page. */
  async overrides(
    policy: string,
    cursor?: string,
  ): Promise<{ overrides: OverrideAnswer[]; cursor?: string }> {
    return orThrow(await listOverrides(this.#caller, text("policy", policy), cursorOf(cursor)));
  }

  /** Sets the override of a pattern. */
  async putOverride(
    policy: string,
    pattern: string,
    fields: OverrideFields,
    conditions?: CatalogConditions,
  ): Promise<OverrideAnswer> {
    return orThrow(
      await writeOverride(
        this.#caller,
        text("policy", policy),
        text("pattern", pattern),
        fields,
        conditionsOf(conditions),
      ),
    );
  }

  /** Takes the override of a pattern away. */
  async deleteOverride(policy: string, pattern: string, conditions?: CatalogConditions): Promise<void> {
    done(
      await deleteOverride(
        this.#caller,
        text("policy", policy),
        text("pattern", pattern),
        conditionsOf(conditions),
      ),
    );
  }

  /** The candidate of a policy, with what it decided beside it. */
  async candidate(policy: string): Promise<ComparedCandidate> {
    return orThrow(await readCandidate(this.#caller, text("policy", policy)));
  }

  /** Sets a policy's candidate. */
  async putCandidate(
    policy: string,
    fields: Table,
    conditions?: CatalogConditions,
  ): Promise<CandidateAnswer> {
    return orThrow(
      await writeCandidate(this.#caller, text("policy", policy), fields, conditionsOf(conditions)),
    );
  }

  /** Takes a policy's candidate away. */
  async deleteCandidate(policy: string, conditions?: CatalogConditions): Promise<void> {
    done(await deleteCandidate(this.#caller, text("policy", policy), conditionsOf(conditions)));
  }

  /** Makes the candidate the policy. */
  async promoteCandidate(policy: string, conditions?: CatalogConditions): Promise<PolicyAnswer> {
    return orThrow(await promoteCandidate(this.#caller, text("policy", policy), conditionsOf(conditions)));
  }

  /** The tokens that were issued at run time. */
  async tokens(): Promise<{ tokens: (Table & { readonly name: string })[] }> {
    return orThrow(await listTokens(this.#caller));
  }

  /** Issues a token, which is shown this once. */
  async issueToken(fields: Table): Promise<Table & { readonly token: string }> {
    return orThrow(await issueToken(this.#caller, fields));
  }

  /** Revokes a token that was issued at run time. */
  async revokeToken(name: string): Promise<void> {
    done(await revokeToken(this.#caller, text("name", name)));
  }

  /** All of the catalog, with its version. */
  async read(): Promise<{ readonly version: number; readonly value: CatalogDocument }> {
    return orThrow(await readCatalog(this.#caller));
  }

  /** Makes the catalog what a document says. */
  async write(
    document: CatalogDocument,
    conditions?: CatalogConditions,
  ): Promise<{ readonly version: number; readonly value: CatalogDocument }> {
    return orThrow(await writeCatalog(this.#caller, document, conditionsOf(conditions)));
  }

  /** Who changed what, the latest first, page by page. */
  async audit(cursor?: string): Promise<{ entries: readonly AuditEntry[]; cursor?: string }> {
    return orThrow(await readAudit(this.#caller, cursorOf(cursor)));
  }
}

/** @throws LimiterError when they are none */
function conditionsOf(given: unknown): Conditions {
  return orThrow(readConditions(given));
}

/** @throws LimiterError when there is a problem */
function done(problem: Problem | undefined): void {
  if (problem !== undefined) throw problem.toError();
}

/** @throws LimiterError when the argument is no text */
function text(field: string, value: unknown): string {
  if (typeof value === "string") return value;
  throw refused([field], value, "text").toError();
}

/** @throws LimiterError when the cursor is no text */
function cursorOf(value: unknown): string | undefined {
  return value === undefined ? undefined : text("cursor", value);
}
