/** The types of the policies that a project has, where `weir types` has written them; otherwise any text is allowed. */
import type { Cost as AnyCost } from "../../core/policies/policy.ts";

/**
 * The policies that calls may name, for the compiler alone. It is empty, and `weir types` writes an augmentation:
 *
 *     declare module "weir-limiter" {
 *       interface Policies {
 *         api: { unit: "requests"; plan: "pro"; keyKind: "text" };
 *       }
 *     }
 */
// oxlint-disable-next-line typescript/no-empty-object-type, typescript/no-empty-interface
export interface Policies {}

/** `Loose` without an augmentation, and `Strict` with one. */
type Where<Strict, Loose> = [keyof Policies] extends [never] ? Loose : Strict;

/** The texts that the policies have in a field. */
type TextsOf<Field extends string> = {
  [Name in keyof Policies]: Policies[Name] extends Record<Field, infer Text extends string> ? Text : never;
}[keyof Policies];

/** The name of a policy. */
export type PolicyName = Where<Extract<keyof Policies, string>, string>;

/** The name of a plan of any policy. */
export type PlanName = Where<TextsOf<"plan">, string>;

/** The units of a call: a number for every rule, or one for each unit of any policy, 1 by default. */
export type Cost = Where<number | { readonly [Unit in TextsOf<"unit">]?: number }, AnyCost>;

/** Limits that a call brings, by unit. */
export type Limits = Where<{ readonly [Unit in TextsOf<"unit">]?: number }, Readonly<Record<string, number>>>;
