import type {
  CatalogChanges,
  OverrideChange,
  PolicyChange,
  TokenChange,
} from "../../core/catalog/changes.ts";
import type { Table } from "../../core/catalog/overrides.ts";
import type { Candidates, StoredCandidate } from "./candidates.ts";
import type { CatalogStore, StoredPolicy } from "./catalog-store.ts";

/** All that has changed after a revision: each thing as it is now. */
export function changesAfter(store: CatalogStore, candidates: Candidates, since: number): CatalogChanges {
  const { revision, firstRevision } = store;
  const isKnown = since > 0 && since <= revision && since >= firstRevision - 1;
  if (!isKnown) return { ...whole(store, candidates), revision, isWhole: true };
  const changed = store.changedAfter(since);
  const ofKind = (kind: string) => changed.filter((each) => each.kind === kind);
  const names = new Set(changed.flatMap(({ kind, name }) => (kind === "token" ? [] : [name])));
  return {
    revision,
    isWhole: false,
    policies: [...names]
      .flatMap((name) => store.policy(name) ?? [])
      .map((each) => policyChangeOf(each, candidates.of(each.name))),
    overrides: ofKind("override").map(({ name, pattern }) =>
      overrideChangeOf(name, pattern, store.override(name, pattern)?.fields),
    ),
    tokens: ofKind("token").map(({ name }) => tokenChangeOf(name, store.token(name))),
  };
}

function whole(
  store: CatalogStore,
  candidates: Candidates,
): Pick<CatalogChanges, "policies" | "overrides" | "tokens"> {
  const tried = new Map(candidates.all().map((each) => [each.policy, each]));
  return {
    policies: store.policies().map((each) => policyChangeOf(each, tried.get(each.name))),
    overrides: store
      .allOverrides()
      .map(({ policy, pattern, fields }) => overrideChangeOf(policy, pattern, fields)),
    tokens: store.tokens().map(({ name, entry }) => tokenChangeOf(name, entry)),
  };
}

function policyChangeOf({ name, version, fields }: StoredPolicy, tried?: StoredCandidate): PolicyChange {
  const candidate = tried && { version: tried.version, fields: tried.fields };
  return { name, version, ...(fields && { fields }), ...(candidate && { candidate }) };
}

function overrideChangeOf(policy: string, pattern: string, fields: Table | undefined): OverrideChange {
  return { policy, pattern, ...(fields && { fields }) };
}

function tokenChangeOf(name: string, entry: Table | undefined): TokenChange {
  return { name, ...(entry && { entry }) };
}
