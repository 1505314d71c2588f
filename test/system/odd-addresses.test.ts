/** Addresses that a Request cannot be made of, as bytes: nothing between the client and the worker mends them. */
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { TEST_POLICIES, TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { RawConnection } from "../support/raw-connection.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const state = makeState();
let serving: Serving;
let connection: RawConnection;
let client: HttpClient;
beforeAll(async () => {
  serving = await serveBundle(state, TEST_POLICIES);
  connection = new RawConnection(Number(new URL(serving.url).port));
  client = new HttpClient(serving.url, 1);
});
afterAll(async () => {
  connection.close();
  client.close();
  await serving.stop();
  removeState(state);
});

async function ask(method: string, target: string, ...headers: readonly string[]) {
  const authorization = `Authorization: Bearer ${TOKENS.full}`;
  const lines = [`${method} ${target} HTTP/1.1`, authorization, ...headers, "", ""];
  const { status, body } = await connection.exchange(Buffer.from(lines.join("\r\n"), "latin1"));
  return { status, body: body === "" ? {} : (JSON.parse(body) as Record<string, unknown>) };
}

test.each([
  [".", "%2e"],
  ["..", "%2E%2e"],
  ["..", ".."],
  ["a/../b", "a%2F..%2Fb"],
  [String.raw`back\slash`, String.raw`back\slash`],
  ["tab\there", "tab%09here"],
])("the key %j is looked at under the address %s, and is no way to another key", async (key, written) => {
  await client.call("DELETE", `/v1/policies/slow/keys/${written}`);
  const taken = await client.limit("slow", key);
  const seen = await ask("GET", `/v1/policies/slow/keys/${written}`, "Host: weir.test");
  expect(seen).toMatchObject({ status: 200, body: { key, remaining: taken.body["remaining"] } });
});

test.each([["Host: a b"], ["Host: weir.test, another.test"], ["Host: [::"], ["Host: %"], ["Host: a:99999"]])(
  "what the header %s says is nothing to the limiter",
  async (host) => {
    const seen = await ask("GET", "/v1/policies/slow/keys/a?waitFor=idle&waitMs=1", host);
    expect(seen).toMatchObject({ status: 200, body: { key: "a" } });
    expect(await ask("GET", "/v1/policies/slow/keys/a?waitMs=1&waitMs=2", host)).toMatchObject({
      status: 422,
    });
  },
);
