import type { CatalogDocument } from "../../../core/catalog/calls.ts";

/** What errors say that a document is. */
export const DOCUMENT_ALLOWED =
  '{ "policies": { NAME: { ... } }, "overrides": { POLICY: { PATTERN: { ... } } }, "tokens": { NAME: { ... } } } and nothing else';

/** Whether a value has the shape of a document. What is in it is checked piece by piece. */
export function isDocument(value: unknown): value is CatalogDocument {
  if (!isTable(value) || Object.keys(value).toSorted().join() !== "overrides,policies,tokens") return false;
  const { policies, overrides, tokens } = value;
  return (
    [policies, overrides, tokens].every(isTableOfTables) &&
    Object.values(overrides as object).every(isTableOfTables)
  );
}

function isTable(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isTableOfTables(value: unknown): boolean {
  return isTable(value) && Object.values(value).every(isTable);
}
