import { Validator } from "@seriousme/openapi-schema-validator";
import * as v from "valibot";
import { expect, test } from "vitest";
import { namedSchemas, reference } from "../../../worker/api/openapi-schemas.ts";
import { openApiDocument } from "../../../worker/api/openapi.ts";
import { Decision } from "../../../worker/calls/schemas/answer-schemas.ts";
import {
  AcquireRequest,
  Cost,
  HoldRequest,
  LimitAllRequest,
  LimitAnyRequest,
} from "../../../worker/calls/schemas/request-schemas.ts";
import { matches } from "../../support/json-schema.ts";

/** As a client gets it: plain JSON. */
const document = JSON.parse(JSON.stringify(openApiDocument())) as Document;

interface Content {
  readonly schema: object;
  readonly examples?: Record<string, { readonly value: unknown }>;
}
interface Operation {
  readonly operationId: string;
  readonly tags: readonly string[];
  readonly summary: string;
  readonly parameters?: readonly { readonly name: string; readonly in: string }[];
  readonly requestBody?: { readonly content: Record<string, Content> };
  readonly responses: Record<
    string,
    { readonly description: string; readonly content?: Record<string, Content> }
  >;
}
interface Document {
  readonly tags: readonly { readonly name: string }[];
  readonly paths: Record<string, Record<string, Operation>>;
  readonly components: { readonly schemas: Record<string, Schema> };
}
interface Schema {
  readonly properties: Record<string, Record<string, unknown>>;
  readonly required: readonly string[];
  readonly additionalProperties?: boolean;
  readonly oneOf?: readonly { readonly $ref: string }[];
}
const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));

test("tuples are written as JSON Schema 2020-12 does, which is that of OpenAPI 3.1", () => {
  const text = JSON.stringify(document);
  expect(text).toContain('"prefixItems":[');
  expect(text).not.toContain('"items":[');
});

test("the document is valid OpenAPI 3.1", async () => {
  const validator = new Validator();
  expect(await validator.validate({ ...document })).toEqual({ valid: true });
  expect(validator.version).toBe("3.1");
});

test("what the parser demands stands in the document: fields, bounds, defaults", () => {
  const { LimitRequest, RefundRequest } = document.components.schemas;
  expect(LimitRequest).toMatchObject({
    required: ["policy", "key"],
    additionalProperties: false,
    properties: {
      key: { type: "string", minLength: 1, maxLength: 512 },
      cost: { $ref: "#/components/schemas/Cost", description: expect.stringMatching(/Default: 1\.$/) },
      idempotencyKey: { type: "string", minLength: 1, maxLength: 256 },
    },
  });
  expect(document.components.schemas["Cost"]).toMatchObject({
    anyOf: [
      { type: "integer", minimum: 0, maximum: 1_000_000_000 },
      { type: "object", additionalProperties: { type: "integer", minimum: 0, maximum: 1_000_000_000 } },
    ],
  });
  expect(RefundRequest?.required).toEqual(["policy", "key", "units", "idempotencyKey"]);
});

test("plans, groups and limits of calls stand in the document", () => {
  const { schemas } = document.components;
  expect(schemas["LimitRequest"]?.properties["limits"]).toMatchObject({
    type: "object",
    additionalProperties: { type: "integer", minimum: 0, maximum: 1_000_000_000 },
    description: expect.stringContaining("limitInCall"),
  });
  const queryOf = (path: string, method: string) =>
    (document.paths[path]?.[method]?.parameters ?? []).flatMap((each) =>
      each.in === "query" ? each.name : [],
    );
  const key = "/v1/policies/{policy}/keys/{key}";
  expect(queryOf(key, "get")).toEqual(["plan", "group", "waitFor", "waitMs"]);
  expect(queryOf(key, "delete")).toEqual(["plan"]);
  expect(queryOf(`${key}/waiters`, "delete")).toEqual(["plan"]);
  expect(queryOf("/v1/leases/socket", "get")).toEqual(expect.arrayContaining(["plan", "group"]));
  const { properties = {}, required } = schemas["DeniedDegraded"] ?? {};
  expect(Object.keys(properties)).toEqual(
    expect.arrayContaining(["remaining", "resetAfterMs", "retryAfterMs"]),
  );
  expect(required).not.toContain("retryAfterMs");
});

test("every operation has a name of its own, and every operation with a body says what it refuses", () => {
  expect(new Set(operations.map(({ operationId }) => operationId)).size).toBe(operations.length);
  for (const { operationId, responses } of operations.filter((operation) => "requestBody" in operation)) {
    expect({ operationId, statuses: Object.keys(responses) }).toEqual({
      operationId,
      statuses: expect.arrayContaining([
        operationId === "releaseWithReport" ? "204" : "200",
        "400",
        "401",
        "403",
        "404",
        "412" in responses ? "412" : "409",
        "413",
        "415",
        "422",
        "503",
      ]),
    });
  }
});

test("no schema has a default: generators would take its field for one that callers must give", () => {
  expect(JSON.stringify(document.components.schemas)).not.toContain('"default":');
});

test("a decision is one of several, told apart by success and reason, and no two of them fit one answer", () => {
  const { schemas } = document.components;
  for (const name of ["Decision", "HoldDecision", "LeaseDecision", "CheckDecision"]) {
    const kinds = (schemas[name]?.oneOf ?? []).flatMap(({ $ref }) => {
      const { success, reason } = schemas[$ref.split("/").at(-1) ?? ""]?.properties ?? {};
      const reasons = (reason?.["enum"] as string[] | undefined) ?? [reason?.["const"]];
      return reasons.map((each) => `${String(success?.["const"])} ${String(each)}`);
    });
    expect(kinds.length).toBeGreaterThan(5);
    expect(new Set(kinds).size).toBe(kinds.length);
  }
});

test("each problem has the schema of its status, and a 429 and a 503 of a denial carry the decision", () => {
  for (const { responses } of operations)
    for (const [status, { content = {} }] of Object.entries(responses).filter(([each]) => each >= "400")) {
      const { schema, examples } = content["application/problem+json"] ?? { schema: {} };
      const value = { ...(Object.values(examples ?? {}).at(-1)?.value as object) };
      expect(matches(document, schema, value)).toEqual([]);
      expect(matches(document, schema, { ...value, status: Number(status) + 1 })).not.toEqual([]);
    }
  const { QuotaExceeded, ReducedCapacity } = document.components.schemas;
  expect(QuotaExceeded?.required).toContain("decision");
  expect(ReducedCapacity?.required).toContain("decision");
});

test("every operation has a tag, a summary, and examples that its schemas allow", () => {
  const tags = document.tags.map(({ name }) => name);
  for (const {
    operationId,
    tags: [tag = "", ...others],
    summary,
    requestBody,
    responses,
  } of operations) {
    expect({ operationId, isTagged: tags.includes(tag), others, summary }).toEqual({
      operationId,
      isTagged: true,
      others: [],
      summary: expect.stringMatching(/^[A-Z].{10,}/),
    });
    const contents = [requestBody, ...Object.values(responses)].flatMap((each) =>
      Object.values(each?.content ?? {}),
    );
    for (const { schema, examples = {} } of contents) {
      expect({ operationId, examples: Object.keys(examples).length }).not.toMatchObject({ examples: 0 });
      for (const [name, { value }] of Object.entries(examples))
        expect({ operationId, name, wrong: matches(document, schema, value) }).toMatchObject({ wrong: [] });
    }
  }
});

test("every operation says what another method is answered, and a 401 what is missing", () => {
  for (const { responses } of operations)
    expect(responses["405"]).toMatchObject({ headers: { Allow: { schema: { type: "string" } } } });
  expect(document.paths["/v1/limit"]?.["post"]?.responses["401"]).toMatchObject({
    headers: { "WWW-Authenticate": { schema: { type: "string" } } },
  });
});

test("the parser takes the requests of the examples", () => {
  const requestOf = (path: string) =>
    document.paths[path]?.["post"]?.requestBody?.content["application/json"]?.examples?.["request"]?.value;
  expect(v.is(LimitAllRequest, requestOf("/v1/limit/all"))).toBe(true);
  expect(v.is(LimitAnyRequest, requestOf("/v1/limit/any"))).toBe(true);
  expect(v.is(HoldRequest, requestOf("/v1/holds"))).toBe(true);
  expect(v.is(AcquireRequest, requestOf("/v1/leases"))).toBe(true);
});

test("a record may define the schemas of its request and answer, beside those that are shared", () => {
  const OwnRequest = v.strictObject({ cost: Cost });
  const OwnAnswer = v.object({ decision: Decision });
  const named = namedSchemas({ OwnRequest }, { OwnAnswer });
  expect(reference({ OwnRequest })).toEqual({ $ref: "#/components/schemas/OwnRequest" });
  expect(named["OwnRequest"]).toMatchObject({ properties: { cost: reference("Cost") } });
  expect(named["OwnAnswer"]).toMatchObject({ properties: { decision: reference("Decision") } });
  expect(Object.keys(named)).toEqual([
    ...Object.keys(document.components.schemas),
    "OwnRequest",
    "OwnAnswer",
  ]);
});
