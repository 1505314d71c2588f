import type { CatalogDocument } from "../../../core/catalog/calls.ts";

/** What errors say that a document is. */
export const DOCUMENT_ALLOWED =
  '{ "policies": { NAME: { ... } }, "overrides": { POLICY: { PATTERN: { ... } } }, "tokens": { NAME: { ... } } }, with "candidates": { POLICY: { ... } } if wanted, and nothing else';

/** Whether a value has the shape of a document. What is in it is checked piece by piece. */
export function isDocument(value: unknown): value is CatalogDocument {
  if (!isTable(value)) return false;
  const { policies, overrides, tokens, candidates = {}, ...others } = value;
  return (
    Object.keys(others).length === 0 &&
    [policies, overrides, tokens, candidates].every(isTableOfTables) &&
    Object.values(overrides as object).every(isTableOfTables)
  );
}

function isTable(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isTableOfTables(value: unknown): boolean {
  return isTable(value) && Object.values(value).every(isTable);
}
