/** The types of the policies that a project has, where `weir types` has written them; otherwise any text is allowed. */
import type { Cost as AnyCost } from "../../core/policies/policy.ts";

/**
 * The policies that calls may name, for the compiler alone. It is empty, and `weir types` writes an augmentation:
 *
 *     declare module "weir-limiter" {
 *       interface Policies {
 *         api: { unit: "requests"; plan: "pro"; priority: "high" | "low"; keyKind: "text" };
 *         shared: { unit: "tokens"; priority: "high" | "low"; keyKind: "text"; fair: true };
 *       }
 *     }
 */
// oxlint-disable-next-line typescript/no-empty-object-type, typescript/no-empty-interface
export interface Policies {}

/** `Loose` without an augmentation, and `Strict` with one. */
type Where<Strict, Loose> = [keyof Policies] extends [never] ? Loose : Strict;

type Names = keyof Policies;

/** The texts that a policy has in a field. */
type TextsOf<Name extends Names, Field extends string> =
  Policies[Name] extends Record<Field, infer Text extends string> ? Text : never;

/** The texts that any of these policies has in a field. */
type AnyText<Field extends string, Set extends Names = Names> = {
  [Name in Set]: TextsOf<Name, Field>;
}[Set];

/** The texts that each of these policies has in a field. Parameters are contravariant, so the inferred type is in all. */
type CommonText<Set extends Names, Field extends string> = {
  [Name in Set]: (text: TextsOf<Name, Field>) => void;
}[Set] extends (text: infer Text extends string) => void
  ? Text
  : never;

/** The policies with `fair`. */
type Fair = { [Name in Names]: Policies[Name] extends { readonly fair: true } ? Name : never }[Names];

/** The name of a policy. */
export type PolicyName = Where<Extract<Names, string>, string>;

/** The name of a plan: of this policy (`PlanName<"api">`), or of any. */
export type PlanName<Name extends PolicyName = PolicyName> = Where<
  AnyText<"plan", Extract<Name, Names>>,
  string
>;

/** The name of a priority: of this policy, or of any. */
export type PriorityName<Name extends PolicyName = PolicyName> = Where<
  AnyText<"priority", Extract<Name, Names>>,
  string
>;

/** Without a unit it is no object: `{}` would admit every object. */
type LimitsOf<Unit extends string> = [Unit] extends [never]
  ? never
  : string extends Unit
    ? Readonly<Record<string, number>>
    : { readonly [Each in Unit]?: number };

type CostOf<Unit extends string> = number | LimitsOf<Unit>;

/** The units of a call: a number for every rule, or one for each unit of this policy, or of any, 1 by default. */
export type Cost<Name extends PolicyName = PolicyName> = Where<
  CostOf<AnyText<"unit", Extract<Name, Names>>>,
  AnyCost
>;

/** The fields of calls whose values depend on the policy. */
interface Fields<Plan extends string, Priority extends string, Unit extends string> {
  /** The plan whose figures count, one of the policy's. Absent: the policy's own, or of a key that is only read, its own. */
  readonly plan?: Plan | "";
  readonly priority?: Priority;
  /** Units to take if they all fit; 0 takes nothing. Absent: 1. */
  readonly cost?: CostOf<Unit>;
  /** Units to hold, to lease (absent: 1) or to return. */
  readonly units?: CostOf<Unit>;
  /** Limits of the caller's own, by unit. Under a policy with `limitInCall`. */
  readonly limits?: LimitsOf<Unit>;
}

interface AnyGroup {
  /** Whose call it is. Needed under a policy with `fair`, whose groups share the limit. */
  readonly group?: string;
}

/** The policies that have `fair` as this one has it, or has not. */
type Alike<Name extends Names> = Name extends Fair ? Fair : Exclude<Names, Fair>;

type GroupOf<Set extends Names> = [Set] extends [Fair] ? Required<AnyGroup> : { readonly group?: never };

type FieldName = keyof Fields<string, string, string>;

/** The fields `May` and `Must` of a call under any of these policies. */
type CallUnder<Set extends Names, May extends FieldName | "group", Must extends FieldName> = {
  readonly policy: Set;
} & Picked<
  Fields<CommonText<Set, "plan">, CommonText<Set, "priority">, CommonText<Set, "unit">>,
  GroupOf<Set>,
  May,
  Must
>;

type Picked<Given extends Partial<Record<FieldName, unknown>>, Group, May, Must> = Pick<
  Given,
  Extract<May, keyof Given>
> &
  Required<Pick<Given, Extract<Must, keyof Given>>> &
  ("group" extends May ? Group : unknown);

/**
 * Fields of a call that depend on its policy: those that it may have, and those that it must have. A call that names no
 * policy has what any policy has, since the limiter's own is not known here. Names that are not known one by one (the
 * compiler compares at most 25) have what each policy has, those with `fair` and those without apart.
 */
export type CallFields<May extends FieldName | "group", Must extends FieldName = never> = Where<
  // oxlint-disable-next-line typescript/no-redundant-type-constituents -- `never` without an augmentation
  | { [Name in Names]: CallUnder<Name, May, Must> | CallUnder<Alike<Name>, May, Must> }[Names]
  | ({ readonly policy?: never } & Picked<
      Fields<AnyText<"plan">, AnyText<"priority">, AnyText<"unit">>,
      AnyGroup,
      May,
      Must
    >),
  { readonly policy?: string } & Picked<Fields<string, string, string>, AnyGroup, May, Must>
>;
