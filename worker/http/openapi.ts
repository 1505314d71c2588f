import { toJsonSchema } from "@valibot/to-json-schema";
import * as v from "valibot";
import {
  AllDecisions,
  Decision,
  KeyReport,
  Lease,
  ProblemDetails,
  QuotaExceeded,
} from "../calls/answer-schemas.ts";
import { KeyCount, KeyList } from "../calls/key-requests.ts";
import { PolicyList } from "../calls/policy-list-schema.ts";
import { ReleaseRequest } from "../calls/release-request.ts";
import {
  AcquireRequest,
  HoldRequest,
  LimitAllRequest,
  LimitRequest,
  RefundRequest,
  RenewRequest,
  SettleRequest,
} from "../calls/request-schemas.ts";
import { ReservationsAnswer, ReservationsRequest } from "../calls/reservation-schemas.ts";
import { SetRequest } from "../calls/set-schema.ts";
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
        ReleaseRequest: schema(withoutId(ReleaseRequest.entries), "input"),
        ReservationsRequest: schema(ReservationsRequest, "input"),
        SetRequest: schema(withoutPlace(SetRequest.entries), "input"),
        Decision: schema(Decision, "output"),
        AllDecisions: schema(AllDecisions, "output"),
        Lease: schema(Lease, "output"),
        KeyReport: schema(KeyReport, "output"),
        KeyList: schema(KeyList, "output"),
        KeyCount: schema(KeyCount, "output"),
        ReservationsAnswer: schema(ReservationsAnswer, "output"),
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
  return without(entries, ["id"]);
}

/** A schema without policy and key, which are parts of the address too. */
function withoutPlace(entries: v.ObjectEntries): v.GenericSchema {
  return without(entries, ["policy", "key"]);
}

function without(entries: v.ObjectEntries, inAddress: readonly string[]): v.GenericSchema {
  const left = Object.entries(entries).filter(([field]) => !inAddress.includes(field));
  return v.strictObject(Object.fromEntries(left));
}

/** A schema as JSON Schema. What that cannot say (bytes of UTF-8) is in the descriptions. */
function schema(source: v.GenericSchema, typeMode: "input" | "output"): object {
  const { $schema: _, ...converted } = toJsonSchema(source, { typeMode, ignoreActions: ["check"] });
  return converted;
}
