import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { startWranglerDev, type WranglerDev } from "../support/wrangler-dev.ts";

describe("examples/service-binding", () => {
  let dev: WranglerDev;
  beforeAll(async () => {
    dev = await startWranglerDev(["examples/service-binding/wrangler.toml", "wrangler.toml"]);
  });
  afterAll(() => dev.stop());
  const get = (path: string, customer: string) =>
    fetch(`${dev.url}${path}`, { headers: { "x-api-key": customer } });

  test("admits, denies with Retry-After, and says never when a cost cannot fit", async () => {
    const admitted = await get("/", "alice");
    expect([admitted.status, admitted.headers.get("x-remaining")]).toEqual([200, "499"]);
    await get("/?cost=499", "alice");
    const denied = await get("/?cost=400", "alice");
    expect([denied.status, Number(denied.headers.get("retry-after"))]).toEqual([429, 4]);
    const never = await get("/?cost=501", "alice");
    expect([never.status, never.headers.get("retry-after")]).toEqual([429, null]);
  });

  test("gives back what was charged for a request whose upstream failed", async () => {
    expect((await get("/fail", "bob")).status).toBe(502);
    expect(await (await get("/quota", "bob")).json()).toMatchObject({
      policy: "api",
      remaining: 500,
      source: "object",
    });
  });

  test("with props a key is enough, as with Cloudflare's own binding", async () => {
    const statuses = [];
    for (let attempt = 0; attempt < 6; attempt += 1) statuses.push((await get("/login", "carol")).status);
    expect(statuses).toEqual([200, 200, 200, 200, 200, 429]);
  });

  test("ten exports run at a time, and their slots are free when they have ended", async () => {
    const statuses = async (count: number) => {
      const answers = await Promise.all(Array.from({ length: count }, () => get("/export", "erin")));
      return answers.map(({ status }) => status).toSorted((a, b) => a - b);
    };
    expect(await statuses(12)).toEqual([...Array.from({ length: 10 }, () => 200), 503, 503]);
    expect(await statuses(10)).toEqual(Array.from({ length: 10 }, () => 200));
  });

  test("bad input throws what HTTP would say", async () => {
    const refused = await get("/?cost=-1", "dave");
    expect(refused.status).toBe(422);
    expect(await refused.json()).toEqual({
      errors: [{ pointer: "/cost", detail: "cost is -1: must be an integer from 0 to 1000000000" }],
    });
  });
});

describe("examples/http", () => {
  const policies = { payments: { algorithm: "token-bucket", limit: 2, window: "30d" } };
  const state = makeState();
  afterAll(() => removeState(state));

  const pay = (dev: WranglerDev) => fetch(dev.url, { headers: { "x-api-key": "alice" } });

  test("admits, denies, and refuses while Weir is away", async () => {
    const weir = await serveBundle(state, policies);
    const dev = await startWranglerDev(["examples/http/wrangler.toml"], {
      WEIR_URL: weir.url,
      WEIR_TOKEN: TOKENS.limit,
    });
    try {
      // Waiting for the example to answer was a payment of another customer.
      expect((await pay(dev)).headers.get("x-remaining")).toBe("1");
      expect((await pay(dev)).status).toBe(200);
      const denied = await pay(dev);
      expect([denied.status, Number(denied.headers.get("retry-after")) > 0]).toEqual([429, true]);
      await weir.stop();
      expect((await pay(dev)).status).toBe(503);
    } finally {
      await dev.stop();
      await weir.stop();
    }
  });

  test("refuses when its token is wrong", async () => {
    const weir = await serveBundle(state, policies);
    const dev = await startWranglerDev(["examples/http/wrangler.toml"], {
      WEIR_URL: weir.url,
      WEIR_TOKEN: "weir_guess",
    });
    try {
      expect((await pay(dev)).status).toBe(503);
    } finally {
      await dev.stop();
      await weir.stop();
    }
  });
});
