/** The named schemas of the OpenAPI document, made of the schemas that the parser uses. They refer to each other. */
import { toJsonSchema } from "@valibot/to-json-schema";
import * as v from "valibot";
import * as catalog from "../calls/catalog/catalog-schemas.ts";
import { KeyCount, KeyList, ListedKey, PolicyDescription, PolicyList, PolicyRule } from "../calls/keys.ts";
import { Hold, Lease, RuleDecision } from "../calls/schemas/answer-schemas.ts";
import * as decisions from "../calls/schemas/decision-schemas.ts";
import { KeyFigures, KeyReport } from "../calls/schemas/decision-schemas.ts";
import * as problems from "../calls/schemas/problem-schemas.ts";
import {
  AcquireRequest,
  Check,
  Cost,
  HoldRequest,
  LimitAllRequest,
  LimitRequest,
  RefundRequest,
  ReleaseRequest,
  RenewRequest,
  SetRequest,
  SettleRequest,
  Units,
} from "../calls/schemas/request-schemas.ts";
import {
  Decided,
  ReservationAnswer,
  ReservationCall,
  ReservationsAnswer,
  ReservationsRequest,
  Reserved,
} from "../calls/schemas/reservation-schemas.ts";
import { History, HistoryPoint, TopKey, TopKeyList } from "../calls/stats.ts";

const REQUESTS = {
  Cost,
  Units,
  LimitRequest,
  Check,
  LimitAllRequest,
  RefundRequest,
  HoldRequest,
  SettleRequest: without(SettleRequest.entries, ["id"]),
  AcquireRequest,
  RenewRequest: without(RenewRequest.entries, ["id"]),
  ReleaseRequest: without(ReleaseRequest.entries, ["id"]),
  ReservationCall,
  ReservationsRequest,
  SetRequest: without(SetRequest.entries, ["policy", "key"]),
  PolicyFields: catalog.PolicyFields,
  OverrideRequest: catalog.OverrideRequest,
  TokenRequest: catalog.TokenRequest,
};
const { ProblemDetails, ...byStatus } = problems;
const ANSWERS = {
  RuleDecision,
  Lease,
  Hold,
  ...decisions,
  KeyFigures,
  KeyReport,
  ListedKey,
  KeyList,
  KeyCount,
  Reserved,
  ReservationDecided: Decided,
  ReservationAnswer,
  ReservationsAnswer,
  PolicyRule,
  Policy: PolicyDescription,
  PolicyList,
  PolicyInForce: catalog.PolicyInForce,
  Candidate: catalog.Candidate,
  ComparedCandidate: catalog.ComparedCandidate,
  Override: catalog.Override,
  OverrideList: catalog.OverrideList,
  OwnToken: catalog.OwnToken,
  IssuedToken: catalog.IssuedToken,
  TokenList: catalog.TokenList,
  Catalog: catalog.Catalog,
  AuditLog: catalog.AuditLog,
  HistoryPoint,
  History,
  TopKey,
  TopKeyList,
  Problem: ProblemDetails,
  ...byStatus,
};

/** The name of a schema in the document. */
export type SchemaName = keyof typeof REQUESTS | keyof typeof ANSWERS;

/** By schema: its name. A schema with a description is another one, which refers to the schema that it describes. */
const NAMES = new Map<v.GenericSchema, string>(
  Object.entries<v.GenericSchema>({ ...REQUESTS, ...ANSWERS }).map(([name, source]) => [source, name]),
);

/** What schemas are whose fields do not say it all. */
const DESCRIPTIONS: Readonly<Record<string, { readonly description: string }>> = Object.fromEntries(
  Object.entries({
    Cost: "A number of units for every rule, or a table by unit.",
    Units: "A number of units for every rule, above 0, or a table by unit.",
    Decision: "Whether a call may go on. `success` and `reason` say which of these it is.",
    HoldDecision: "The same of a hold: it is there when `success` is true and `reason` is `ok`.",
    LeaseDecision: "The same of a lease: it is there when `success` is true and `reason` is `ok`.",
    CheckDecision: "The same of one check among several.",
    Admitted: "The call may go on.",
    AdmittedInShadow: "The call may go on, since the policy only reports.",
    AdmittedDegraded: "The call may go on, though nobody could decide: the policy says so.",
    Denied: "The call may not go on: a rule denied it, or its turn did not come.",
    Shed: "The call may not go on: more important calls come first.",
    DeniedDegraded: "The call may not go on, since nobody could decide.",
    QuotaExceeded: "A denial under `?deny=429`.",
    ReducedCapacity: "A denial under `?deny=429` that is not the caller's doing.",
    SeveralExceeded: "The same as QuotaExceeded, of several checks.",
    SeveralReduced: "The same as ReducedCapacity, of several checks.",
    PolicyRule: "Further fields are the algorithm's: limits in units, durations in milliseconds.",
  } satisfies Partial<Record<SchemaName, string>>).map(([name, description]) => [name, { description }]),
);

/** All named schemas, by name. */
export function namedSchemas(): Record<string, object> {
  const converted = (typeMode: "input" | "output", sources: Readonly<Record<string, v.GenericSchema>>) =>
    Object.entries(sources).map(([name, source]) => [
      name,
      { ...DESCRIPTIONS[name], ...schema(source, typeMode) },
    ]);
  return Object.fromEntries([...converted("input", REQUESTS), ...converted("output", ANSWERS)]) as Record<
    string,
    object
  >;
}

/** A schema that refers to the one of this name. */
export function reference(name: SchemaName): { readonly $ref: string } {
  return { $ref: `#/components/schemas/${name}` };
}

/** A schema without fields that are parts of the address. */
function without(entries: v.ObjectEntries, inAddress: readonly string[]): v.GenericSchema {
  const left = Object.entries(entries).filter(([field]) => !inAddress.includes(field));
  return v.strictObject(Object.fromEntries(left));
}

/** A schema as JSON Schema. What that cannot say (bytes of UTF-8) is in the descriptions. */
function schema(source: v.GenericSchema, typeMode: "input" | "output"): object {
  const { $schema: _, ...converted } = toJsonSchema(source, {
    typeMode,
    ignoreActions: ["check", "entries"],
    overrideSchema: ({ valibotSchema, jsonSchema }) => {
      const name = valibotSchema === source ? undefined : NAMES.get(valibotSchema);
      if (name !== undefined) return { $ref: `#/components/schemas/${name}` };
      if (jsonSchema.const !== undefined) return { type: typeOf(jsonSchema.const), ...jsonSchema };
      return jsonSchema.default === undefined ? undefined : withDefaultTold(jsonSchema);
    },
  });
  return converted;
}

/**
 * A default as words. With the keyword, generators (openapi-typescript is one) take the field for one that is always
 * there, and callers would have to give it.
 */
function withDefaultTold<Converted extends { default?: unknown; description?: string | undefined }>({
  default: value,
  description = "",
  ...rest
}: Converted) {
  return { ...rest, description: `${description} Default: ${JSON.stringify(value)}.`.trim() };
}

/** Generators look at the type before they look at the value. */
function typeOf(value: unknown): "string" | "boolean" | "integer" {
  const type = typeof value;
  return type === "string" || type === "boolean" ? type : "integer";
}
