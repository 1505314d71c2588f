/**
 * The catalog's requests and answers, for the OpenAPI document. The fields of policies and overrides are those that the
 * parser reads (core/policies/policy-fields.ts) and those of the algorithms, as callers write them.
 */
import * as v from "valibot";
import { algorithms } from "../../../core/policies/algorithms.ts";
import {
  FAIR_FIELDS,
  fieldsOf,
  OVERRIDE_FIELDS,
  PENALTY_FIELDS,
  POLICY_FIELDS,
  RULE_FIELDS,
} from "../../../core/policies/policy-fields.ts";
import { SHED } from "../../../core/policies/priorities.ts";
import { described, shapeOf } from "../../../core/validation.ts";
import { SCOPE_LIST, TokenFields } from "../../auth/tokens.ts";
import { INTEGER, optional } from "../schemas/request-schemas.ts";

const version = described(INTEGER, "Rises with each change. It is the entity tag, too.");
const instant = described(v.pipe(v.string(), v.isoTimestamp()), "An instant, as RFC 3339 writes it.");
const fields = v.record(v.string(), v.any());

/** A field as callers write it, without what the parser makes of it. */
function written(schema: v.GenericSchema): v.GenericSchema {
  const inner = "wrapped" in schema ? (schema.wrapped as v.GenericSchema) : schema;
  const [first] = "pipe" in inner ? (inner.pipe as readonly v.GenericSchema[]) : [];
  return first !== undefined && shapeOf(first) !== undefined ? first : inner;
}

/** By field of any algorithm: what it is in those that have it. */
const FIGURES: Readonly<Record<string, v.GenericSchema>> = Object.fromEntries(figures());

function figures(): [field: string, v.GenericSchema][] {
  const found = new Map<string, { readonly kinds: Map<string, v.GenericSchema>; readonly names: string[] }>();
  for (const algorithm of algorithms.values())
    for (const [field, schema] of Object.entries(fieldsOf(algorithm))) {
      const { kinds, names } = found.get(field) ?? { kinds: new Map<string, v.GenericSchema>(), names: [] };
      const kind = String(algorithm.fields[field]).replace("?", "");
      // A count is 0 or more units.
      if (kind === "count") kinds.set("units", written(schema));
      else if (!kinds.has(kind)) kinds.set(kind, written(schema));
      found.set(field, { kinds, names: [...names, algorithm.name] });
    }
  return [...found].map(([field, { kinds, names }]) => {
    const [first = v.any(), ...others] = kinds.values();
    const lacking = [...algorithms.keys()].filter((name) => !names.includes(name));
    const of = lacking.length < names.length ? `all algorithms but ${lacking.join(", ")}` : names.join(", ");
    return [field, optional(others.length === 0 ? first : v.union([first, ...others]), `Of ${of}.`)];
  });
}

const RULE = {
  ...RULE_FIELDS,
  ...PENALTY_FIELDS,
  fair: optional(
    written(FAIR_FIELDS.fair),
    "Groups share the limit: each call that is decided names its group.",
  ),
  weights: optional(written(FAIR_FIELDS.weights), "The weights of groups; of others 1."),
};

export const RuleFigures = v.strictObject(FIGURES);
export const RuleFields = v.strictObject({
  ...FIGURES,
  ...RULE,
  algorithm: v.picklist([...algorithms.keys()]),
});
export const PolicyFigures = v.strictObject({
  ...FIGURES,
  rules: optional(v.record(v.string(), RuleFigures), "The same by rule, of a policy with several."),
});

/** The fields of every policy. Those that other modules parse are named here. */
const POLICY = {
  ...POLICY_FIELDS,
  onFailure: optional(
    written(POLICY_FIELDS.onFailure),
    'What decides while the object or the pool does not answer. Default: "closed".',
  ),
  notify: optional(written(POLICY_FIELDS.notify), "The fractions of the limit at which a notice is sent."),
  shed: optional(v.union([v.boolean(), SHED]), "Which calls are shed while machines are too busy."),
  plans: optional(v.record(v.string(), PolicyFigures), "What each plan has instead, by its name."),
  limitInCall: optional(
    v.strictObject({ max: v.pipe(v.number(), v.integer(), v.minValue(1)) }),
    "Calls may bring limits of their own, up to this.",
  ),
};

/** A field of an algorithm that every policy may have, too, is the policy's here. */
export const PolicyOfOneRule = v.strictObject({ ...RuleFields.entries, ...POLICY });
export const PolicyOfRules = v.strictObject({ rules: v.record(v.string(), RuleFields), ...POLICY });
export const PolicyFields = v.union([PolicyOfOneRule, PolicyOfRules]);

export const PolicyInForce = v.looseObject({
  ...PolicyOfOneRule.entries,
  algorithm: v.optional(v.picklist([...algorithms.keys()])),
  rules: v.optional(PolicyOfRules.entries.rules),
  policy: v.string(),
  version,
  source: described(v.picklist(["file", "catalog"]), "Where it comes from."),
  overrides: described(INTEGER, "How many overrides its keys have."),
  removedPlans: optional(
    v.array(v.string()),
    "After a write: plans that it removed. Calls that name one are refused. Absent: none.",
  ),
});

const candidate = {
  policy: v.string(),
  version,
  candidate: PolicyFields,
  since: described(v.pipe(v.string(), v.isoTimestamp()), "When it was set, as RFC 3339 writes it."),
};

export const Candidate = v.object(candidate);

export const ComparedCandidate = v.object({
  ...candidate,
  compared: optional(
    v.object({
      calls: described(INTEGER, "Calls of which both have decided."),
      admittedByBoth: INTEGER,
      deniedByBoth: INTEGER,
      deniedByPolicyAlone: INTEGER,
      deniedByCandidateAlone: INTEGER,
      undecided: described(INTEGER, "Calls of which one of them could not decide."),
    }),
    "Absent: this deployment counts nothing.",
  ),
  keys: optional(
    v.array(v.object({ key: v.string(), count: INTEGER, error: INTEGER })),
    "The keys that the candidate alone has denied most, in this hour and the last one. For the scope `admin`.",
  ),
});

const { multiply, blocked, unlimited, ...others } = OVERRIDE_FIELDS;
const override = {
  ...PolicyFigures.entries,
  multiply: optional(written(multiply), "All limits times so much."),
  blocked: optional(written(blocked), "Every call is denied."),
  unlimited: optional(written(unlimited), "Every call is admitted, and none is counted."),
  ...others,
};

export const OverrideRequest = v.strictObject(override);

export const Override = v.looseObject({ policy: v.string(), pattern: v.string(), version, ...override });

const cursor = optional(v.string(), "Where the next page begins. Absent: this is the last.");
export const OverrideList = v.object({ overrides: v.array(Override), cursor });

const token = {
  name: v.string(),
  scopes: SCOPE_LIST,
  policies: v.optional(v.array(v.string())),
  keyPrefix: v.optional(v.string()),
  maxCallsAtOnce: v.optional(INTEGER),
  maxNewKeysPerSecond: v.optional(INTEGER),
};
export const OwnToken = described(
  v.object({ name: token.name, scopes: token.scopes, policies: token.policies, keyPrefix: token.keyPrefix }),
  "What a token may do. Without `policies` or `keyPrefix` it may use all of them.",
);
export const TokenRequest = TokenFields;
export const IssuedToken = v.object({ ...token, token: described(v.string(), "Shown this once.") });
export const TokenList = v.object({ tokens: v.array(v.object(token)) });

export const Catalog = v.object({
  policies: v.record(v.string(), fields),
  overrides: described(v.record(v.string(), v.record(v.string(), fields)), "By policy and pattern."),
  tokens: described(v.record(v.string(), fields), "By name, with their SHA-256."),
  candidates: optional(v.record(v.string(), fields), "By policy."),
});

const entry = v.object({
  id: INTEGER,
  at: instant,
  by: v.string(),
  target: described(v.string(), "Such as `override api customer:7`."),
  before: v.nullable(fields),
  after: v.nullable(fields),
});
export const AuditLog = v.object({ entries: v.array(entry), cursor });
