/** A policy with `retryJitter`: what denied callers are told, by whichever call. */
import { SELF } from "cloudflare:test";
import { expect, test } from "vitest";
import { TOKENS } from "../support/fixtures.ts";
import { acquire, call, freshKey, limit, report, type Called } from "../support/limiter.ts";

interface Told {
  readonly success: boolean;
  readonly retryAfterMs: number | null;
  readonly source: string;
  readonly rules: readonly { readonly retryAfterMs: number | null }[];
}
const toldIn = ({ body }: Called) => body as unknown as Told;

/** By how much more than it must the caller is told to wait. Half of the wait is what the policies allow. */
function jitterOf({ success, retryAfterMs, rules: [rule] }: Told): number {
  const [told, exact] = [retryAfterMs ?? NaN, rule?.retryAfterMs ?? NaN];
  expect(success).toBe(false);
  expect(told).toBeGreaterThanOrEqual(exact);
  expect(told).toBeLessThanOrEqual(exact + Math.ceil(exact / 2));
  return told - exact;
}

test("callers that are denied together are told waits of their own, in the body and in Retry-After", async () => {
  const key = freshKey();
  await limit("jittery", key, { cost: 5 });
  // From now on the isolate knows that this is denied.
  await limit("jittery", key, { cost: 2 });
  const denied = await Promise.all(
    Array.from({ length: 30 }, () =>
      call("/v1/limit?deny=429", { body: { policy: "jittery", key, cost: 2 } }),
    ),
  );
  const all = denied.map(({ body, headers }) => {
    const told = body["decision"] as Told;
    expect(headers.get("retry-after")).toBe(String(Math.ceil(Number(told.retryAfterMs) / 1_000)));
    return { ...told, jitter: jitterOf(told) };
  });
  // A wait of days leaves room for 30 different ones.
  expect(new Set(all.map(({ jitter }) => jitter)).size).toBeGreaterThan(25);
  expect(new Set(all.map(({ source }) => source))).toContain("isolate");
});

test("holds, several checks, leases and sockets are told so too", async () => {
  const key = freshKey();
  await limit("jittery", key, { cost: 5 });
  const hold = { policy: "jittery", key, units: 1 };
  const held = await Promise.all([1, 2, 3, 4].map(() => call("/v1/holds", { body: hold })));
  expect(new Set(held.map((each) => jitterOf(toldIn(each)))).size).toBeGreaterThan(1);
  for (const atomic of [true, false]) {
    const checks = Array.from({ length: 4 }, () => ({ policy: "jittery", key }));
    const { body, headers } = await call("/v1/limit/all", { body: { checks, atomic } });
    const decisions = body["decisions"] as Told[];
    const told = atomic ? decisions.filter(({ success }) => !success) : decisions;
    for (const each of told) jitterOf(each);
    const longest = Math.max(...told.map(({ retryAfterMs }) => retryAfterMs ?? NaN));
    expect(headers.get("retry-after")).toBe(String(Math.ceil(longest / 1_000)));
  }
  const slots = freshKey();
  await acquire("jittery-export", slots, { ttlMs: 60_000 });
  expect(new Set([await deniedLease(slots), await deniedLease(slots), await deniedSocket(slots)]).size).toBe(
    3,
  );
});

const deniedLease = async (key: string) => jitterOf(toldIn(await acquire("jittery-export", key)));

async function deniedSocket(key: string): Promise<number> {
  const { webSocket } = await SELF.fetch(
    `https://weir.test/v1/leases/socket?policy=jittery-export&key=${key}`,
    { headers: { upgrade: "websocket", authorization: `Bearer ${TOKENS.full}` } },
  );
  if (webSocket === null) throw new Error("no socket");
  const said = new Promise<string>((resolve) =>
    webSocket.addEventListener("message", ({ data }) => resolve(String(data))),
  );
  webSocket.accept();
  return jitterOf(JSON.parse(await said) as Told);
}

test("what is admitted, what never passes and a look at the key stay exact", async () => {
  const key = freshKey();
  expect((await limit("jittery", key, { cost: 5 })).body).toMatchObject({ success: true, retryAfterMs: 0 });
  expect((await limit("jittery", key, { cost: 6 })).body).toMatchObject({ retryAfterMs: null });
  const looked = toldIn(await report("jittery", key));
  expect(looked.retryAfterMs).toBe(looked.rules[0]?.retryAfterMs);
  expect(looked.retryAfterMs).toBeGreaterThan(0);
});

test("the list of policies says how much", async () => {
  const { body } = await call("/v1/policies");
  const policies = body["policies"] as { name: string; retryJitter?: number; retryJitterMs?: number }[];
  expect(policies.find(({ name }) => name === "jittery")?.retryJitter).toBe(0.5);
  const byTime = policies.find(({ name }) => name === "jittery-export");
  expect([byTime?.retryJitter, byTime?.retryJitterMs]).toEqual([undefined, 20_000]);
});
