/** Calls on holds, leases and charges have a short way past the router: it answers what the router would. */
import { createExecutionContext } from "cloudflare:test";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { answerOperation } from "../../../worker/http/fast-path.ts";
import {
  answerBy,
  expectAlike,
  type Fetch,
  LONG,
  real,
  standStill,
  untilIdle,
  WHOLE,
  withoutTime,
} from "../../support/both-ways.ts";
import { depth } from "../../support/depth.ts";
import { type Call, KNOWN, requestOf, TABLE } from "../../support/limit-calls.ts";
import { freshKey } from "../../support/limiter.ts";

standStill();

const HOST = "https://weir.test";
const LEASE = "lease_ZXhwb3J0L2s.AAAAAAAAAAAAAAAAAAAAAA";
const HOLD = "hold_c2xvdy9r.AAAAAAAAAAAAAAAAAAAAAA";
const at = (path: string, call: Call = {}): Call => ({ url: HOST + path, ...call });
/** Each call on something that is not there, which changes nothing. */
const LOST: Readonly<Record<string, Call>> = {
  acquire: at("/v1/leases", { body: { policy: "none", key: "k" } }),
  hold: at("/v1/holds", { body: { policy: "none", key: "k", units: 1 } }),
  settle: at(`/v1/holds/${HOLD}/settle`, { body: { used: 1 } }),
  cancel: at(`/v1/holds/${HOLD}`, { method: "DELETE" }),
  renew: at(`/v1/leases/${LEASE}/renew`, { body: {} }),
  report: at(`/v1/leases/${LEASE}/release`, { body: { outcome: "ok" } }),
  release: at(`/v1/leases/${LEASE}`, { method: "DELETE" }),
  refund: at("/v1/refund", { body: { policy: "none", key: "k", units: 1, idempotencyKey: "r" } }),
};

async function isShort(call: Call): Promise<boolean> {
  const answered = answerOperation(requestOf(call), call.env ?? real, createExecutionContext());
  if (answered !== undefined) await (await withoutTime(answered)).text();
  return answered !== undefined;
}

describe.each(Object.entries(LOST))("%s", (name, call) => {
  test("goes the short way, when it is plain", async () => {
    expect(await isShort(call)).toBe(true);
    expect(await expectAlike(call)).toMatchObject({ status: 404 });
  });

  test.each(["?", "?deny=429", "?x=1", "#x", "/", "//", "/x", "%20", "?/v1/limit"])(
    "goes the long way with %s after it",
    async (end) => {
      const other = { ...call, url: `${call.url}${end}` };
      expect(await isShort(other)).toBe(false);
      await expectAlike(other);
    },
  );

  test.each(["GET", "HEAD", "PUT", "PATCH", "OPTIONS", name.startsWith("re") ? "DELETE" : "post"])(
    "is answered alike by %s",
    async (method) => {
      await expectAlike({ ...call, method, ...(/get|head/i.test(method) && { body: undefined }) });
    },
  );
});

describe.each(["acquire", "renew", "release"])("%s", (name) => {
  test.each(["tokens", "types", "encodings", "lengths", "bodies"])(
    "is answered alike whatever the %s",
    async (group) => {
      for (const { token, headers, body } of Object.values(TABLE[group] ?? {}))
        await expectAlike({
          ...LOST[name],
          ...(token !== undefined && { token }),
          ...(headers !== undefined && { headers }),
          // Another type or length is one of this call's own body.
          ...(group === "bodies" && { body }),
        });
    },
  );
});

test.each([
  "lease_ZXhwb3J0L2s.AAAAAAAAAAAAAAAAAAAAAA%00",
  "lease%5FZXhwb3J0L2s.AAAAAAAAAAAAAAAAAAAAAA",
  "%zz",
  "socket",
  "..",
  ".",
  "a.b",
  "lease_ZXhwb3J0L2s=.AAAAAAAAAAAAAAAAAAAAAA",
  "hold_ZXhwb3J0L2s.AAAAAAAAAAAAAAAAAAAAAA",
  "lease_bm9uZS9r.AAAAAAAAAAAAAAAAAAAAAA",
  `lease_${"A".repeat(900)}.AAAAAAAAAAAAAAAAAAAAAA`,
])("the id %s is answered alike", async (id) => {
  await expectAlike(at(`/v1/leases/${id}`, { method: "DELETE" }));
  await expectAlike(at(`/v1/leases/${id}/renew`, { body: {} }));
  await expectAlike(at(`/v1/holds/${id}/settle`, { body: { used: 1, id } }));
  await expectAlike(at(`/v1/holds/${id}/release`, { body: {} }));
});

/* The same calls, one after another, each way on a key of its own. */

/** In a step: the key of its history, and the id of an earlier claim. */
const [KEY, CLAIM] = ["$KEY", "$CLAIM"];
const idempotencyKeys = fc.constantFrom("once", "twice", "charge");
/** Mostly what is allowed. */
const mostly = <Value>(allowed: readonly Value[], ...odd: unknown[]) =>
  fc.oneof(
    { weight: 12, arbitrary: fc.constantFrom<unknown>(...allowed) },
    fc.constantFrom<unknown>(...odd, null, "", {}, []),
  );
const units = mostly(
  [1, 1, 1, 2],
  0,
  3,
  9,
  -1,
  0.5,
  "1",
  { requests: 1, tokens: 30 },
  { tokens: 0 },
  { x: 1 },
);
const common = {
  priority: mostly(["low", "high"], "none"),
  utilization: mostly([0.5], 2),
  idempotencyKey: mostly(["once", "twice", "charge"], 1, "k".repeat(257)),
  odd: fc.constant(1),
};
const onKey = (policies: readonly string[]) => ({
  policy: mostly(policies, "none", "slow", "export", "hammered"),
  key: mostly([KEY], "\ud800"),
});
/** A body of fields, of which some are always there. */
const fields = (
  needed: Record<string, fc.Arbitrary<unknown>>,
  others: Record<string, fc.Arbitrary<unknown>>,
) =>
  fc
    .tuple(fc.record(needed), fc.record(others, { requiredKeys: [] }), fc.integer({ min: 0, max: 3 }))
    .map(([always, more, times]) => (times === 0 ? { ...always, ...more } : always));
const { odd, idempotencyKey, priority, utilization } = common;
const ttlMs = mostly([1_000, 60_000], 0, 1e9, "1s");
const slots = ["export", "shadow-export", "mixed"];
const rates = ["slow", "several", "hot-off", "shadow", "prepaid"];
const post = (path: string, body: fc.Arbitrary<unknown>) =>
  body.map((each): Call => at(path, { body: each }));
const end = (path: string) => fc.constant<Call>(at(path, { method: "DELETE" }));
const step: fc.Arbitrary<Call> = fc.oneof(
  post(
    "/v1/leases",
    fields(onKey(slots), {
      units,
      ttlMs,
      priority,
      utilization,
      idempotencyKey,
      odd,
      waitMs: mostly([0], -1, 1e9),
      confirm: mostly([true, false], 1),
    }),
  ),
  post("/v1/holds", fields({ ...onKey(rates), units }, { ttlMs, priority, idempotencyKey, odd })),
  post("/v1/limit", fields({ ...onKey(rates), idempotencyKey }, { cost: units, priority, odd })),
  post(
    "/v1/limit",
    fields(onKey(["prepaid", "free", "hot"]), { cost: units, refundable: mostly([true], 1) }),
  ),
  post("/v1/refund", fields({ ...onKey(rates), units, idempotencyKey }, { charge: idempotencyKeys, odd })),
  post(`/v1/holds/${CLAIM}/settle`, fields({ used: units }, { odd, id: fc.constant("x") })),
  post(`/v1/leases/${CLAIM}/renew`, fields({}, { ttlMs, odd })),
  post(
    `/v1/leases/${CLAIM}/release`,
    fields({}, { outcome: mostly(["ok", "dropped"], "bad"), durationMs: mostly([5], -1), odd }),
  ),
  end(`/v1/holds/${CLAIM}`),
  end(`/v1/leases/${CLAIM}`),
);
/** A caller with fewer rights now and then, or an optional body that is not there. */
const steps = fc.array(
  fc.tuple(
    step,
    fc.constantFrom<Call>({}, {}, {}, {}, {}, { token: KNOWN[1] ?? "" }, { body: "" }),
    fc.nat(7),
  ),
  { minLength: 4, maxLength: 16 },
);

const ID = /(?:hold|lease)_[\w-]+\.[\w-]{22}/g;
/** Drawn when the call has no idempotency key. */
const CHARGE = /(?<="charge":")[\w-]{22}(?=")/;

async function historyBy(fetch: Fetch, calls: readonly (readonly [Call, Call, number])[]) {
  const key = freshKey();
  const ids: string[] = [];
  const answers = [];
  for (const [call, other, index] of calls) {
    const id = ids.at(-1 - index) ?? ids.at(-1) ?? LEASE;
    const { url = "", body: given } = { ...call, ...(call.body !== undefined && other) };
    const body = typeof given === "object" ? JSON.stringify(given).replaceAll(KEY, key) : given;
    const answer = await answerBy(fetch, { ...call, ...other, url: url.replace(CLAIM, id), body });
    await untilIdle();
    ids.push(...(answer.body.match(ID) ?? []));
    answers.push({
      ...answer,
      body: answer.body.replaceAll(ID, "ID").replaceAll(key, "KEY").replace(CHARGE, ""),
    });
  }
  return answers;
}

test("histories of calls, allowed and odd ones, are answered alike", async () => {
  const statuses: Record<string, number> = {};
  await fc.assert(
    fc.asyncProperty(steps, async (calls) => {
      const long = await historyBy(LONG, calls);
      expect(await historyBy(WHOLE, calls)).toEqual(long);
      for (const { status } of long) statuses[status] = (statuses[status] ?? 0) + 1;
    }),
    { numRuns: depth(5, 40) },
  );
  // Five histories may have none of the others.
  for (const status of depth([200, 404], [200, 204, 404, 422])) expect(statuses).toHaveProperty(`${status}`);
});
