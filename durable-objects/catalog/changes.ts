import type {
  CatalogChanges,
  OverrideChange,
  PolicyChange,
  TokenChange,
} from "../../core/catalog/changes.ts";
import type { Table } from "../../core/catalog/overrides.ts";
import type { CatalogStore, StoredPolicy } from "./catalog-store.ts";

/** All that has changed after a revision: each thing as it is now. */
export function changesAfter(store: CatalogStore, since: number): CatalogChanges {
  const { revision, firstRevision } = store;
  const isKnown = since > 0 && since <= revision && since >= firstRevision - 1;
  if (!isKnown) return { ...whole(store), revision, isWhole: true };
  const changed = store.changedAfter(since);
  const ofKind = (kind: string) => changed.filter((each) => each.kind === kind);
  const names = new Set(changed.flatMap(({ kind, name }) => (kind === "token" ? [] : [name])));
  return {
    revision,
    isWhole: false,
    policies: [...names].flatMap((name) => store.policy(name) ?? []).map(policyChangeOf),
    overrides: ofKind("override").map(({ name, pattern }) =>
      overrideChangeOf(name, pattern, store.override(name, pattern)?.fields),
    ),
    tokens: ofKind("token").map(({ name }) => tokenChangeOf(name, store.token(name))),
  };
}

function whole(store: CatalogStore): Pick<CatalogChanges, "policies" | "overrides" | "tokens"> {
  return {
    policies: store.policies().map(policyChangeOf),
    overrides: store
      .allOverrides()
      .map(({ policy, pattern, fields }) => overrideChangeOf(policy, pattern, fields)),
    tokens: store.tokens().map(({ name, entry }) => tokenChangeOf(name, entry)),
  };
}

function policyChangeOf({ name, version, fields }: StoredPolicy): PolicyChange {
  return { name, version, ...(fields && { fields }) };
}

function overrideChangeOf(policy: string, pattern: string, fields: Table | undefined): OverrideChange {
  return { policy, pattern, ...(fields && { fields }) };
}

function tokenChangeOf(name: string, entry: Table | undefined): TokenChange {
  return { name, ...(entry && { entry }) };
}
