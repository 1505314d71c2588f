import type { CatalogDocument } from "../core/catalog/calls.ts";

type Tables = Readonly<Record<string, unknown>>;

/** What would change if the catalog became another document: a line for each thing, the old value before the new one. */
export function catalogLines(before: CatalogDocument, after: Partial<CatalogDocument>): string[] {
  return [
    ...changedIn("policy", before.policies, after.policies),
    ...[...namesOf(before.overrides, after.overrides)].flatMap((policy) =>
      changedIn(`override ${policy}`, before.overrides[policy], after.overrides?.[policy]),
    ),
    ...changedIn("candidate", before.candidates, after.candidates),
    ...changedIn("token", before.tokens, after.tokens),
  ];
}

function changedIn(what: string, before: Tables = {}, after: Tables = {}): string[] {
  return [...namesOf(before, after)].flatMap((name) => {
    const [old, made] = [textOf(before[name]), textOf(after[name])];
    if (old === made) return [];
    if (made === undefined) return [`- ${what} ${name}: ${old}`];
    return old === undefined ? [`+ ${what} ${name}: ${made}`] : [`~ ${what} ${name}: ${old} -> ${made}`];
  });
}

function namesOf(before: Tables = {}, after: Tables = {}): Set<string> {
  return new Set([...Object.keys(before), ...Object.keys(after)].toSorted());
}

/** Its fields in one order: where they stand means nothing. */
function textOf(value: unknown): string | undefined {
  if (value === undefined) return undefined;
  return JSON.stringify(value, (_, each: unknown) =>
    typeof each === "object" && each !== null && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : each,
  );
}
