import { toJsonSchema } from "@valibot/to-json-schema";
import * as v from "valibot";
import {
  AllDecisions,
  Decision,
  KeyReport,
  Lease,
  PolicyList,
  ProblemDetails,
  QuotaExceeded,
} from "../calls/answer-schemas.ts";
import {
  AcquireRequest,
  HoldRequest,
  LimitAllRequest,
  LimitRequest,
  RefundRequest,
  RenewRequest,
  SettleRequest,
} from "../calls/request-schemas.ts";
import { openApiPaths } from "./openapi-paths.ts";

let document: object | undefined;

/** The OpenAPI 3.1 document. It is made of the schemas that the parser uses, when it is first asked for. */
export function openApiDocument(): object {
  document ??= {
    openapi: "3.1.0",
    info: {
      title: "Weir",
      version: "0.1.0",
      summary: "An exact rate and concurrency limiter for the edge",
      description:
        "Decisions are answered with 200 whether they admit or not: the call worked. Durations are integers of " +
        "milliseconds and end in `Ms`. Errors are RFC 9457 problem details.",
      license: { name: "MIT", identifier: "MIT" },
    },
    servers: [{ url: "/" }],
    security: [{ token: [] }],
    paths: openApiPaths(),
    components: {
      securitySchemes: { token: { type: "http", scheme: "bearer" } },
      schemas: {
        LimitRequest: schema(LimitRequest, "input"),
        LimitAllRequest: schema(LimitAllRequest, "input"),
        RefundRequest: schema(RefundRequest, "input"),
        HoldRequest: schema(HoldRequest, "input"),
        SettleRequest: schema(withoutId(SettleRequest.entries), "input"),
        AcquireRequest: schema(AcquireRequest, "input"),
        RenewRequest: schema(withoutId(RenewRequest.entries), "input"),
        Decision: schema(Decision, "output"),
        AllDecisions: schema(AllDecisions, "output"),
        Lease: schema(Lease, "output"),
        KeyReport: schema(KeyReport, "output"),
        PolicyList: schema(PolicyList, "output"),
        Problem: schema(ProblemDetails, "output"),
        QuotaExceeded: schema(QuotaExceeded, "output"),
      },
    },
  };
  return document;
}

/** A schema without `id`: over HTTP the id is part of the address. */
function withoutId(entries: v.ObjectEntries): v.GenericSchema {
  return v.strictObject(Object.fromEntries(Object.entries(entries).filter(([field]) => field !== "id")));
}

/** A schema as JSON Schema. What that cannot say (bytes of UTF-8) is in the descriptions. */
function schema(source: v.GenericSchema, typeMode: "input" | "output"): object {
  const { $schema: _, ...converted } = toJsonSchema(source, { typeMode, ignoreActions: ["check"] });
  return converted;
}
