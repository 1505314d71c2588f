import { Validator } from "@seriousme/openapi-schema-validator";
import { expect, test } from "vitest";
import { openApiDocument } from "../../../worker/http/openapi.ts";

/** As a client gets it: plain JSON. */
const document = JSON.parse(JSON.stringify(openApiDocument())) as Document;

interface Document {
  readonly paths: Record<string, Record<string, { responses: Record<string, unknown>; operationId: string }>>;
  readonly components: { readonly schemas: Record<string, Schema> };
}
interface Schema {
  readonly properties: Record<string, Record<string, unknown>>;
  readonly required: readonly string[];
  readonly additionalProperties?: boolean;
}

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
      cost: {
        anyOf: [
          { type: "integer", minimum: 0, maximum: 1_000_000_000 },
          { type: "object", additionalProperties: { type: "integer", minimum: 0, maximum: 1_000_000_000 } },
        ],
        default: 1,
      },
      idempotencyKey: { type: "string", minLength: 1, maxLength: 256 },
    },
  });
  expect(RefundRequest?.required).toEqual(["policy", "key", "units", "idempotencyKey"]);
});

test("every operation has a name of its own, and every operation with a body says what it refuses", () => {
  const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));
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
        "409",
        "413",
        "415",
        "422",
        "503",
      ]),
    });
  }
});
