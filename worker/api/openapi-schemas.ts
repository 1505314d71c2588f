/** The named schemas of the OpenAPI document, made of the schemas that the parser uses. They refer to each other. */
import { toJsonSchema } from "@valibot/to-json-schema";
import * as v from "valibot";
import { DURATION, PERIOD } from "../../core/policies/policy-fields.ts";
import { type Shape, shapeOf } from "../../core/validation.ts";
import * as catalog from "../calls/catalog/catalog-schemas.ts";
import * as keys from "../calls/keys.ts";
import * as answers from "../calls/schemas/answer-schemas.ts";
import * as problems from "../calls/schemas/problem-schemas.ts";
import * as requests from "../calls/schemas/request-schemas.ts";
import * as reservations from "../calls/schemas/reservation-schemas.ts";
import * as stats from "../calls/stats.ts";

const REQUESTS = {
  ...pick(
    requests,
    "Cost",
    "Units",
    "LimitRequest",
    "Check",
    "LimitAllRequest",
    "LimitAnyRequest",
    "RefundRequest",
    "HoldRequest",
  ),
  SettleRequest: without(requests.SettleRequest.entries, ["id"]),
  AcquireRequest: requests.AcquireRequest,
  RenewRequest: without(requests.RenewRequest.entries, ["id"]),
  ReleaseRequest: without(requests.ReleaseRequest.entries, ["id"]),
  ...pick(reservations, "ReservationCall", "ReservationsRequest"),
  SetRequest: without(requests.SetRequest.entries, ["policy", "key"]),
  ...pick(catalog, "RuleFigures", "RuleFields", "PolicyFigures", "PolicyOfOneRule", "PolicyOfRules"),
  ...pick(catalog, "PolicyFields", "OverrideRequest", "TokenRequest"),
  Duration: DURATION.pipe[0],
  Period: PERIOD.pipe[0],
  // What is stored is answered as it was written.
  ...pick(catalog, "PolicyInForce", "Candidate", "ComparedCandidate", "Override", "OverrideList"),
};
const { RuleDecision, Lease, Hold, ...decisions } = answers;
const ANSWERS = {
  RuleDecision,
  Lease,
  Hold,
  ...decisions,
  ...pick(keys, "ListedKey", "KeyList", "KeyCount"),
  Reserved: reservations.Reserved,
  ReservationDecided: reservations.Decided,
  ...pick(reservations, "ReservationAnswer", "ReservationsAnswer"),
  PolicyRule: keys.PolicyRule,
  Policy: keys.PolicyDescription,
  PolicyList: keys.PolicyList,
  OwnToken: catalog.OwnToken,
  ...pick(catalog, "IssuedToken", "TokenList", "Catalog", "AuditLog"),
  ...pick(stats, "HistoryPoint", "History", "TopKey", "TopKeyList", "TopGroup", "TopGroupList"),
  Problem: problems.ProblemDetails,
  ...problems.PROBLEM_SCHEMAS,
  ...pick(problems, "QuotaExceeded", "ReducedCapacity", "SeveralExceeded", "SeveralReduced"),
};

/** The name of a schema in the document. */
export type SchemaName = keyof typeof REQUESTS | keyof typeof ANSWERS;

/** One of them, or `{ Name: schema }`: the schema of one call, which is listed after them. */
export type Component = SchemaName | Sources;

/** By schema: its name. A schema with a description is another one, which refers to the schema that it describes. */
const NAMES = new Map<v.GenericSchema, string>(
  Object.entries<v.GenericSchema>({ ...REQUESTS, ...ANSWERS }).map(([name, source]) => [source, name]),
);

const DESCRIPTIONS: Readonly<Partial<Record<string, string>>> = {
  Cost: "A number of units for every rule, or a table by unit.",
  Units: "A number of units for every rule, above 0, or a table by unit.",
  Decision: "Whether a call may go on. `success` and `reason` say which of these it is.",
  HoldDecision: "The same of a hold: it is there when `success` is true and `reason` is `ok`.",
  LeaseDecision: "The same of a lease: it is there when `success` is true and `reason` is `ok`.",
  CheckDecision: "The same of one check among several.",
  Admitted: "The call may go on.",
  AdmittedInShadow: "The call may go on, since the policy only reports.",
  AdmittedDegraded: "The call may go on, though the limiter could not decide: the policy says so.",
  Denied: "The call may not go on: a rule denied it, or its turn did not come.",
  Shed: "The call may not go on: more important calls come first.",
  DeniedDegraded: "The call may not go on, since the limiter could not decide.",
  QuotaExceeded: "A denial under `?deny=429`.",
  ReducedCapacity: "A denial under `?deny=429` that is not the caller's doing.",
  SeveralExceeded: "The same as QuotaExceeded, of several checks.",
  SeveralReduced: "The same as ReducedCapacity, of several checks.",
  Duration: "A duration of 1 ms or more with its unit, as `250ms`, `10s`, `15m`, `1h` or `30d`.",
  Period: "A duration, or one of the calendar, as `1 day` or `1 month`.",
  RuleFigures: "The figures of a rule that an override or a plan may change: which ones, its algorithm says.",
  RuleFields: "A rule. Which further fields it has, its algorithm says.",
  PolicyFields: "The fields that a policy has in wrangler.toml: those of its only rule, or `rules`.",
  OverrideRequest: "Figures of the policy, or one of `multiply`, `blocked` and `unlimited`.",
  PolicyRule: "A rule with the fields that its algorithm has: limits in units, durations in milliseconds.",
} satisfies Partial<Record<SchemaName, string>>;

/** All named schemas, by name: those of this file, then those that records define. */
export function namedSchemas(inputs: Sources, outputs: Sources): Record<string, object> {
  const named: Record<string, object> = {};
  for (const [name, source] of Object.entries({ ...REQUESTS, ...ANSWERS, ...inputs, ...outputs })) {
    const description = DESCRIPTIONS[name];
    const typeMode = Object.hasOwn({ ...REQUESTS, ...inputs }, name) ? "input" : "output";
    named[name] = { ...(description !== undefined && { description }), ...schema(source, typeMode) };
  }
  return named;
}

type Sources = Readonly<Record<string, v.GenericSchema>>;

/** A schema that refers to a named one. */
export function reference(component: Component): { readonly $ref: string } {
  const name = typeof component === "string" ? component : Object.keys(component).join("");
  return { $ref: `#/components/schemas/${name}` };
}

function pick<Module extends object, Name extends keyof Module>(module: Module, ...names: readonly Name[]) {
  return Object.fromEntries(names.map((name) => [name, module[name]])) as Pick<Module, Name>;
}

/** A schema without fields that are parts of the address. */
function without(entries: v.ObjectEntries, inAddress: readonly string[]): v.GenericSchema {
  const left = Object.entries(entries).filter(([field]) => !inAddress.includes(field));
  return v.strictObject(Object.fromEntries(left));
}

/** A schema as JSON Schema. What that cannot say (bytes of UTF-8) is in the descriptions. */
function schema(source: v.GenericSchema, typeMode: "input" | "output"): object {
  const { $schema: _, ...converted } = toJsonSchema(source, {
    target: "draft-2020-12",
    typeMode,
    ignoreActions: ["check", "entries"],
    overrideSchema: ({ valibotSchema, jsonSchema }) => {
      const name = valibotSchema === source ? undefined : NAMES.get(valibotSchema);
      if (name !== undefined) return { $ref: `#/components/schemas/${name}` };
      const shape = shapeOf(valibotSchema);
      if (shape !== undefined) return inSentences(shape);
      if (valibotSchema === requests.Limits) return schema(requests.LimitsByUnit, typeMode);
      if (jsonSchema.const !== undefined) return { type: typeOf(jsonSchema.const), ...jsonSchema };
      return jsonSchema.default === undefined ? undefined : withDefaultInWords(jsonSchema);
    },
  });
  return converted;
}

/** What the parser's errors allow, as a sentence. */
function inSentences({ description, ...shape }: Shape): Shape {
  if (typeof description !== "string") return shape;
  return { ...shape, description: `${description.slice(0, 1).toUpperCase()}${description.slice(1)}.` };
}

/**
 * A default as words. With the keyword, generators (openapi-typescript is one) take the field for one that is always
 * there, and callers would have to give it.
 */
function withDefaultInWords<Converted extends { default?: unknown; description?: string | undefined }>({
  default: value,
  description = "",
  ...rest
}: Converted) {
  return { ...rest, description: `${description} Default: ${JSON.stringify(value)}.`.trim() };
}

/** Generators read the type before the value. */
function typeOf(value: unknown): "string" | "boolean" | "integer" {
  const type = typeof value;
  return type === "string" || type === "boolean" ? type : "integer";
}
