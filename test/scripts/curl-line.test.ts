/** The line that `npm start` prints for the first policy, whatever that is. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { curl } from "../../scripts/local-limiter.ts";

const RATE = { algorithm: "token-bucket", limit: 5, window: "1s" };

test.each([
  ["a rate", RATE, "/v1/limit", { key: "user:42" }],
  ["slots", { algorithm: "concurrency", limit: 5, ttl: "1s" }, "/v1/leases", { key: "user:42" }],
  ["groups", { ...RATE, fair: true }, "/v1/limit", { key: "user:42", group: "team:1" }],
  ["addresses", { ...RATE, keyKind: "ip" }, "/v1/limit", { key: "192.0.2.42" }],
])("it names all that a call of %s needs", (_, policy, path, fields) => {
  const line = curl(8787, "weir_token", "api", parsePolicies({ api: policy }).get("api"));
  expect(line).toContain(`curl -s http://127.0.0.1:8787${path} `);
  expect(JSON.parse(/-d '(.*)'$/.exec(line)?.[1] ?? "")).toEqual({ policy: "api", ...fields });
});
