/** The types of the policies that a project has, where `weir types` has written them; otherwise any text is allowed. */
import type { Cost as AnyCost } from "../../core/policies/policy.ts";

/**
 * The policies that calls may name, for the compiler alone. It is empty, and `weir types` writes an augmentation:
 *
 *     declare module "weir-limiter" {
 *       interface Policies {
 *         api: { unit: "requests"; plan: "pro"; priority: "high" | "low"; keyKind: "text" };
 *         shared: { unit: "tokens"; limits: "tokens"; priority: "high" | "low"; keyKind: "text"; fair: true };
 *         export: { unit: "requests"; priority: "high" | "low"; keyKind: "text"; leases: true };
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

/** The policies that have a flag. */
type Having<Flag extends string> = {
  [Name in Names]: Policies[Name] extends Readonly<Record<Flag, true>> ? Name : never;
}[Names];
type Fair = Having<"fair">;

/** What no value is: the compiler's error has the reason. */
interface Refused<Reason> {
  readonly [refused]: Reason;
}
declare const refused: unique symbol;

/** What a call does with units: it leases those of slots, and takes those of other policies. */
type Use = "leases" | "takes" | "neither";

/** The policies whose units a call cannot use, and why. */
interface Unfit {
  readonly leases: Exclude<Names, Having<"leases">>;
  readonly takes: Having<"leases">;
  readonly neither: never;
}
interface Reasons {
  readonly leases: "units of this policy are not leased: limit or hold";
  readonly takes: "units of this policy are leased: acquire";
  readonly neither: never;
}

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
type ByUnit<Unit extends string, None = never> = [Unit] extends [never]
  ? None
  : string extends Unit
    ? Readonly<Record<string, number>>
    : { readonly [Each in Unit]?: number };

type CostOf<Unit extends string> = number | ByUnit<Unit>;

/** The units of a call: a number for every rule, or one for each unit of this policy, or of any, 1 by default. */
export type Cost<Name extends PolicyName = PolicyName> = Where<
  CostOf<AnyText<"unit", Extract<Name, Names>>>,
  AnyCost
>;

/** The fields of calls whose values depend on the policy. */
interface Fields<Plan extends string, Priority extends string, Unit extends string, Limited extends string> {
  /** The plan whose figures count, one of the policy's. Absent: the policy's own, or of a key that is only read, its own. */
  readonly plan?: "" | ([Plan] extends [never] ? Refused<"the policy has no plans"> : Plan);
  readonly priority?: Priority;
  /** Units to take if they all fit; 0 takes nothing. Absent: 1. */
  readonly cost?: CostOf<Unit>;
  /** Units to hold, to lease (absent: 1) or to return. */
  readonly units?: CostOf<Unit>;
  /** Limits of the caller's own, by unit. Under a policy with `limitInCall`. */
  readonly limits?: ByUnit<Limited, Refused<"the policy has no limitInCall">>;
}

interface AnyGroup {
  /** Whose call it is. Needed under a policy with `fair`, whose groups share the limit. */
  readonly group?: string;
}

/** The policies that have `fair` as this one has it, or has not. */
type Alike<Name extends Names> = Name extends Fair ? Fair : Exclude<Names, Fair>;

type GroupOf<Set extends Names> = [Set] extends [Fair]
  ? Required<AnyGroup>
  : { readonly group?: Refused<"the policy has no fair = true"> };

type AnyFields = Fields<string, string, string, string>;

/** The fields `May` and `Must` of a call under any of these policies. */
type CallUnder<Set extends Names, May, Must> = { readonly policy: Set } & Picked<
  Fields<
    CommonText<Set, "plan">,
    CommonText<Set, "priority">,
    CommonText<Set, "unit">,
    CommonText<Set, "limits">
  >,
  GroupOf<Set>,
  May,
  Must
>;

type Picked<Given extends Partial<Record<keyof AnyFields, unknown>>, Group, May, Must> = Pick<
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
export type CallFields<
  Does extends Use,
  May extends keyof AnyFields | "group",
  Must extends keyof AnyFields = never,
> = Where<
  // oxlint-disable-next-line typescript/no-redundant-type-constituents -- `never` without an augmentation
  | {
      [Name in Names]: Name extends Unfit[Does]
        ? { readonly policy: Name } & { readonly [Reason in Reasons[Does]]: never }
        : CallUnder<Name, May, Must> | CallUnder<Exclude<Alike<Name>, Unfit[Does]>, May, Must>;
    }[Names]
  | ({ readonly policy?: never } & Picked<
      Fields<AnyText<"plan">, AnyText<"priority">, AnyText<"unit">, AnyText<"limits">>,
      AnyGroup,
      May,
      Must
    >),
  { readonly policy?: string } & Picked<AnyFields, AnyGroup, May, Must>
>;
