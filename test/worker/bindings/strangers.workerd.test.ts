/** Which objects a call reaches, by who makes it; and where the deployment's own objects are made. */
import { createExecutionContext, waitOnExecutionContext } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { Env } from "../../../worker/bindings/env.ts";
import worker from "../../../worker/index.ts";
import { TOKENS } from "../../support/fixtures.ts";

const real = env as unknown as Required<Pick<Env, "OBJECTS" | "CATALOG" | "STATS">> & Env;

/** A new isolate's worker, and the stubs that it makes: the binding's name and the options. */
function isolate(more: Partial<Env> = {}, hasCatalog = true) {
  const made: (readonly [binding: string, options: unknown])[] = [];
  const noting = <Namespace extends { getByName(name: string, options?: never): unknown }>(
    binding: string,
    namespace: Namespace,
  ) =>
    ({
      getByName(name: string, options: never) {
        made.push([binding, options]);
        return namespace.getByName(name, options);
      },
    }) as unknown as Namespace;
  const { CATALOG, ...others } = real;
  const bindings: Env = {
    ...others,
    OBJECTS: noting("OBJECTS", real.OBJECTS),
    ...(hasCatalog && { CATALOG: noting("CATALOG", CATALOG) }),
    STATS: noting("STATS", real.STATS),
    ...more,
  };
  const call = async (path: string, authorization?: string, init: RequestInit = {}) => {
    const headers = { "content-type": "application/json", ...(authorization && { authorization }) };
    const ctx = createExecutionContext();
    const request = new Request(`http://limiter.test${path}`, { ...init, headers });
    const { status } = await worker.fetch(request, bindings, ctx);
    await waitOnExecutionContext(ctx);
    return status;
  };
  return { call, made };
}

const LIMIT = { method: "POST", body: JSON.stringify({ policy: "api", key: "k" }) };
const PATHS: readonly (readonly [path: string, init: RequestInit])[] = [
  ["/v1/limit", LIMIT],
  ["/v1/limit?policy=api&key=k", { method: "POST" }],
  ["/v1/policies", {}],
  ["/v1/policies/api", {}],
  ["/v1/catalog", {}],
  ["/metrics", {}],
  ["/v1/leases/socket?policy=api&key=k", {}],
  ["/healthz", {}],
  ["/openapi.json", {}],
  ["/nowhere", {}],
];

test.each([undefined, "Basic abc", "Bearer", "Bearer a b"])(
  "the header %s reaches no object",
  async (header) => {
    const { call, made } = isolate();
    for (const [path, init] of PATHS) await call(path, header, init);
    expect(made).toEqual([]);
  },
);

test("an unknown token reaches the catalog, once in a while, and nothing else", async () => {
  const { call, made } = isolate();
  for (const [path, init] of PATHS) await call(path, "Bearer weir_wrong", init);
  await Promise.all(Array.from({ length: 50 }, (_, each) => call("/v1/limit", `Bearer weir_${each}`, LIMIT)));
  expect(made.map(([binding]) => binding)).toEqual(["CATALOG"]);
});

test("without a catalog an unknown token is refused, and a policy is not there", async () => {
  const { call, made } = isolate({}, false);
  expect(await call("/v1/limit", "Bearer weir_wrong", LIMIT)).toBe(401);
  expect(made).toEqual([]);
  const body = JSON.stringify({ policy: "nowhere", key: "k" });
  expect(await call("/v1/limit", `Bearer ${TOKENS.full}`, { ...LIMIT, body })).toBe(404);
});

test.each([undefined, "weur"] as const)(
  "with HOME = %s the catalog and the statistics are made there",
  async (home) => {
    const { call, made } = isolate(home === undefined ? {} : { HOME: home });
    const full = `Bearer ${TOKENS.full}`;
    expect(await call("/v1/limit", full, LIMIT)).toBe(200);
    expect(await call("/v1/policies/api", full)).toBe(200);
    expect(await call("/v1/stats?policy=api", full)).toBe(200);
    expect(await call("/metrics", `Bearer ${TOKENS.metrics}`)).toBe(200);
    const hints = made.filter(([binding]) => binding !== "OBJECTS");
    expect(new Set(hints.map(([binding]) => binding))).toEqual(new Set(["CATALOG", "STATS"]));
    for (const [, options] of hints) expect(options).toEqual(home && { locationHint: home });
  },
);
