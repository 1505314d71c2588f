/** Changes of one key, and how they are undone. */
import type { Override, Problem } from "./answers.ts";
import { path, type Ask } from "./api.ts";
import { overrideFields } from "./words.ts";

export type Fields = Readonly<Record<string, unknown>>;

export type Changed =
  | { readonly problem: Problem; readonly undo?: undefined }
  | { readonly problem?: undefined; readonly undo: () => Promise<Problem | undefined> };

/** Writes the override of exactly this pattern. Undoing restores `before`, unless it has changed since. */
export async function writeOverride(
  ask: Ask,
  place: { readonly policy: string; readonly pattern: string },
  fields: Fields,
  before: Override | undefined,
): Promise<Changed> {
  const address = path("policies", place.policy, "overrides", place.pattern);
  const condition = before === undefined ? { ifNoneMatch: "*" as const } : { ifMatch: tagOf(before) };
  const written = await ask<Override>("PUT", address, { body: fields, ...condition });
  if (written.problem !== undefined) return { problem: written.problem };
  const ifMatch = tagOf(written.value);
  const undo = async () => {
    if (before === undefined) return (await ask("DELETE", address, { ifMatch })).problem;
    return (await ask("PUT", address, { body: overrideFields(before), ifMatch })).problem;
  };
  return { undo };
}

export async function removeOverride(ask: Ask, override: Override): Promise<Changed> {
  const address = path("policies", override.policy, "overrides", override.pattern);
  const { problem } = await ask("DELETE", address, { ifMatch: tagOf(override) });
  if (problem !== undefined) return { problem };
  const undo = async () =>
    (await ask("PUT", address, { body: overrideFields(override), ifNoneMatch: "*" })).problem;
  return { undo };
}

/** The current override of exactly this pattern; `undefined`: none. */
export async function readOverride(
  ask: Ask,
  policy: string,
  pattern: string,
): Promise<{ readonly value?: Override; readonly problem?: Problem }> {
  const read = await ask<Override>("GET", path("policies", policy, "overrides", pattern));
  if (read.problem === undefined) return { value: read.value };
  return read.problem.status === 404 ? {} : { problem: read.problem };
}

function tagOf({ version }: Override): string {
  return `"${version}"`;
}
