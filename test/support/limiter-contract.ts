/** The contract of every limiter: one suite, run over each way to a limiter. */
import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import type { Limiter } from "../../client/limiter.ts";
import { LimiterError } from "../../core/protocol/problems.ts";

/** Longer than any pause of a busy machine. */
const PATIENT = { deadlineMs: 20_000 };
const SLOW = { algorithm: "token-bucket", limit: 5, window: "30d", ...PATIENT };

export const CONTRACT_POLICIES = {
  slow: SLOW,
  hot: { ...SLOW, limit: 100_000 },
  off: { ...SLOW, limit: 100_000, reservation: "off" },
  log: { algorithm: "sliding-log", limit: 3, window: "1h", ...PATIENT },
  address: { ...SLOW, keyKind: "ip" },
  shadow: { ...SLOW, limit: 1, shadow: true },
  kept: { ...SLOW, limit: 10, reserve: { critical: "50%" } },
  export: { algorithm: "concurrency", limit: 2, ttl: "20s", maxTtl: "1m", maxWait: "5s", ...PATIENT },
  llm: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 10, window: "30d" },
      tokens: { algorithm: "sliding-log", limit: 1_000, window: "1h", unit: "tokens" },
    },
    ...PATIENT,
  },
};

/** The calls of a limiter that a suite makes: not its end, and its answers may have lost non-plain data. */
export type Called = Omit<Limiter, "acquire" | typeof Symbol.asyncDispose> & {
  acquire(asked: Parameters<Limiter["acquire"]>[0]): ReturnType<Limiter["limit"]>;
};

async function thrownBy(call: () => Promise<unknown>): Promise<LimiterError> {
  try {
    await call();
  } catch (error) {
    if (error instanceof LimiterError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}

/** @param open makes the limiter once; all tests have keys of their own */
export function describeContract(name: string, open: () => Promise<Called>): void {
  describe(name, () => {
    let limiter: Called;
    beforeAll(async () => {
      limiter = await open();
    });
    afterAll(() => limiter.close());
    const key = () => `key-${randomUUID()}`;

    test("a cost is taken if it fits, and a denial says for how long", async () => {
      const asked = { policy: "slow", key: key() };
      const first = await limiter.limit(asked);
      expect(first).toMatchObject({ ...asked, success: true, limit: 5, remaining: 4, retryAfterMs: 0 });
      expect(first.rules).toMatchObject([{ name: "slow", success: true, remaining: 4 }]);
      expect(await limiter.limit({ ...asked, cost: 4 })).toMatchObject({ success: true, remaining: 0 });
      const denied = await limiter.limit(asked);
      expect(denied).toMatchObject({ success: false, reason: "quota", violated: ["slow"] });
      expect(denied.retryAfterMs).toBeGreaterThan(500_000_000);
      expect(await limiter.limit({ ...asked, cost: 0 })).toMatchObject({ success: true, remaining: 0 });
      expect(await limiter.limit({ ...asked, cost: 6 })).toMatchObject({
        success: false,
        retryAfterMs: null,
      });
    });

    test.each([
      [{ policy: "slow", key: "a", cost: -1 }, 422, "/cost"],
      [{ policy: "slow", key: "a", cost: 1.5 }, 422, "/cost"],
      [{ policy: "slow", key: "" }, 422, "/key"],
      [{ policy: "slow", key: "k".repeat(513) }, 422, "/key"],
      [{ policy: "slow", key: "a", csot: 2 }, 422, "/csot"],
      [{ policy: "slow", key: "a", priority: "utmost" }, 422, "/priority"],
      [{ policy: "llm", key: "a", cost: { apples: 1 } }, 422, "/cost/apples"],
      [{ policy: "address", key: "nowhere" }, 422, "/key"],
      [{ policy: "export", key: "a" }, 422, "/policy"],
      [{ policy: "nowhere", key: "a" }, 404, "/policy"],
    ])("what is not allowed throws, and says what is: %j", async (asked, status, pointer) => {
      // Once when the policy may be unknown, and once when it is known.
      for (let round = 0; round < 2; round += 1) {
        const error = await thrownBy(() => limiter.limit(asked));
        expect(error).toMatchObject({ name: "LimiterError", status, errors: [{ pointer }] });
        expect(error.errors[0]?.detail).toMatch(/must be|is not/);
        if (asked.policy !== "nowhere") await limiter.peek({ policy: asked.policy, key: "192.0.2.1" });
      }
    });

    const A_KEY = { policy: "slow", key: "a" };
    test.each([
      ["peek", { policy: "slow" }, "/key"],
      ["peek", { ...A_KEY, key: "" }, "/key"],
      ["peek", { ...A_KEY, key: 5 }, "/key"],
      ["peek", { ...A_KEY, key: {} }, "/key"],
      ["peek", { ...A_KEY, key: true }, "/key"],
      ["peek", { ...A_KEY, key: "\ud800" }, "/key"],
      ["peek", { key: "a" }, "/policy"],
      ["peek", { ...A_KEY, policy: 5 }, "/policy"],
      ["peek", { ...A_KEY, waitfor: "idle" }, "/waitfor"],
      ["peek", { ...A_KEY, waitFor: "busy" }, "/waitFor"],
      ["peek", { ...A_KEY, waitFor: ["idle"] }, "/waitFor"],
      ["peek", { ...A_KEY, waitFor: "idle", waitMs: "5" }, "/waitMs"],
      ["reset", { policy: "slow" }, "/key"],
      ["reset", { ...A_KEY, kye: "b" }, "/kye"],
      ["cancel", {}, "/id"],
      ["cancel", { id: 5 }, "/id"],
      ["cancel", { id: "hold_a", x: 1 }, "/x"],
      ["settle", { used: 1 }, "/id"],
      ["settle", { id: "hold_a" }, "/used"],
      ["renew", {}, "/id"],
      ["renew", { id: "lease_a", ttl: 5 }, "/ttl"],
      ["release", { id: null }, "/id"],
    ] as const)("%s refuses %j by name", async (call, asked, pointer) => {
      const error = await thrownBy(() => limiter[call](asked as never));
      expect(error).toMatchObject({ status: 422, code: "not-allowed", errors: [{ pointer }] });
      expect(error.errors[0]?.detail).toMatch(/must be|is not/);
    });

    test("what names nothing is not there", async () => {
      const missing = await thrownBy(() => limiter.peek({ policy: "", key: "a" }));
      expect(missing).toMatchObject({
        status: 404,
        code: "policy-not-found",
        errors: [{ pointer: "/policy" }],
      });
      for (const id of ["", "\ud800"]) {
        const used = { id, used: 1 };
        expect(await thrownBy(() => limiter.settle(used))).toMatchObject({ code: "hold-not-found" });
        expect(await thrownBy(() => limiter.cancel({ id }))).toMatchObject({ code: "hold-not-found" });
        expect(await thrownBy(() => limiter.renew({ id }))).toMatchObject({ code: "lease-not-found" });
        expect(await thrownBy(() => limiter.release({ id }))).toMatchObject({ code: "lease-not-found" });
      }
    });

    // A value that no timer takes would pass for an outage over HTTP, which may admit without a limit.
    test.each([0.5, 1.5, -1, Number.NaN, Infinity, 1e12, 1e300, 2_147_483_647])(
      "a wait of %s ms is refused by name, and is no outage",
      async (waitMs) => {
        const [slow, leased] = [
          { policy: "slow", key: key(), waitMs },
          { policy: "export", key: key(), waitMs },
        ];
        const refused = { status: 422, code: "not-allowed", errors: [{ pointer: "/waitMs" }] };
        expect(await thrownBy(() => limiter.limit(slow))).toMatchObject(refused);
        expect(await thrownBy(() => limiter.acquire(leased))).toMatchObject(refused);
        const idle = { ...leased, waitFor: "idle" as const };
        expect(await thrownBy(() => limiter.peek(idle))).toMatchObject(refused);
      },
    );

    test("an idempotency key charges once, and another request under it is refused", async () => {
      const asked = { policy: "slow", key: key(), idempotencyKey: "once" };
      expect(await limiter.limit(asked)).toMatchObject({ success: true, remaining: 4 });
      expect(await limiter.limit(asked)).toMatchObject({ success: true, remaining: 4 });
      const error = await thrownBy(() => limiter.limit({ ...asked, cost: 2 }));
      expect(error).toMatchObject({ status: 409, code: "idempotency-key-reused" });
    });

    test("several checks pass together or take nothing", async () => {
      const [one, other] = [key(), key()];
      const checks = [
        { policy: "slow", key: one, cost: 2 },
        { policy: "log", key: other, cost: 2 },
      ];
      expect(await limiter.limitAll({ checks })).toMatchObject({ success: true });
      const denied = await limiter.limitAll({ checks });
      expect(denied).toMatchObject({ success: false, decisions: [{ success: true }, { success: false }] });
      expect(await limiter.peek({ policy: "slow", key: one })).toMatchObject({ remaining: 3 });
      expect(await thrownBy(() => limiter.limitAll({ checks: [] }))).toMatchObject({ status: 422 });
    });

    test("of several checks the first that admits is charged, and no other, once under an idempotency key", async () => {
      const [one, other] = [key(), key()];
      const checks = [
        { policy: "slow", key: one, cost: 3 },
        { policy: "log", key: other },
      ];
      const left = async () => [
        (await limiter.peek({ policy: "slow", key: one })).remaining,
        (await limiter.peek({ policy: "log", key: other })).remaining,
      ];
      expect(await limiter.limitAny({ checks })).toMatchObject({
        success: true,
        chosen: 0,
        decisions: [{ policy: "slow", key: one, remaining: 2 }],
      });
      const bought = {
        success: true,
        chosen: 1,
        decisions: [{ success: false }, { policy: "log", key: other }],
      };
      expect(await limiter.limitAny({ checks })).toMatchObject(bought);
      const call = { checks, idempotencyKey: "once", refundable: true };
      const first = await limiter.limitAny(call);
      expect(first).toMatchObject({ ...bought, decisions: [{ success: false }, { charge: "once" }] });
      expect(await limiter.limitAny(call)).toEqual(first);
      expect(await left()).toEqual([2, 1]);
      expect(await limiter.limitAny({ checks })).toMatchObject(bought);
      const denied = await limiter.limitAny({ checks });
      expect(denied).toMatchObject({ success: false, chosen: null, decisions: [{}, { remaining: 0 }] });
      expect(await left()).toEqual([2, 0]);
      await limiter.reset({ policy: "slow", key: one });
      await limiter.reset({ policy: "log", key: other });
      for (const wrong of [
        { ...checks[0], cost: -1 },
        { policy: "nowhere", key: one },
        { policy: "export", key: one },
      ]) {
        const field = "cost" in wrong ? "cost" : "policy";
        const error = await thrownBy(() => limiter.limitAny({ checks: [...checks, wrong as never] }));
        expect(error).toMatchObject({ errors: [{ pointer: `/checks/2/${field}` }] });
      }
      expect(await thrownBy(() => limiter.limitAny({ checks: [] }))).toMatchObject({ status: 422 });
      expect(await left()).toEqual([5, 3]);
    });

    test("hot keys of such a call are charged as exactly", async () => {
      const checks = [
        { policy: "kept", key: key() },
        { policy: "hot", key: key() },
      ];
      const chosen: (number | null)[] = [];
      for (let call = 0; call < 60; call += 1) chosen.push((await limiter.limitAny({ checks })).chosen);
      // Half of 10 units are kept for more important calls.
      expect(chosen).toEqual(Array.from({ length: 60 }, (_, call) => (call < 5 ? 0 : 1)));
      const [kept, hot] = await Promise.all(checks.map((check) => limiter.peek(check)));
      expect([kept?.remaining, hot?.remaining]).toEqual([0, 99_945]);
      const urgent = await limiter.limitAny({ checks, priority: "critical" });
      expect(urgent).toMatchObject({ chosen: 0, decisions: [{ policy: "kept" }] });
    });

    test("a charge can be given back, once", async () => {
      const asked = { policy: "slow", key: key() };
      const { charge = "" } = await limiter.limit({ ...asked, cost: 3, refundable: true });
      const refund = { ...asked, units: 3, charge, idempotencyKey: "back" };
      const back = { success: true, remaining: 5, refunded: 3, rules: [{ refunded: 3 }] };
      expect(await limiter.refund(refund)).toMatchObject(back);
      expect(await limiter.refund(refund)).toMatchObject(back);
      const again = await thrownBy(() => limiter.refund({ ...refund, idempotencyKey: "again" }));
      expect(again).toMatchObject({ status: 404, code: "charge-not-found" });
    });

    test("a hold is settled with what was used, or cancelled", async () => {
      const asked = { policy: "slow", key: key() };
      const { hold } = await limiter.hold({ ...asked, units: 4 });
      expect(hold).toMatchObject({ units: 4 });
      expect(await limiter.peek(asked)).toMatchObject({ remaining: 1, outstanding: 4, holds: 1 });
      expect(await limiter.settle({ id: hold?.id ?? "", used: 1 })).toMatchObject({ remaining: 4 });
      const other = await limiter.hold({ ...asked, units: 4 });
      expect(await limiter.cancel({ id: other.hold?.id ?? "" })).toBeUndefined();
      expect(await limiter.cancel({ id: other.hold?.id ?? "" })).toBeUndefined();
      const late = await thrownBy(() => limiter.settle({ id: other.hold?.id ?? "", used: 1 }));
      expect(late).toMatchObject({ status: 404, code: "hold-not-found" });
      expect(await limiter.peek(asked)).toMatchObject({ remaining: 4, holds: 0 });
      const lost = await thrownBy(() => limiter.settle({ id: "hold_nothing", used: 1 }));
      expect(lost).toMatchObject({ status: 404, code: "hold-not-found" });
    });

    test("leases are granted up to the limit, in turn, renewed and released", async () => {
      const asked = { policy: "export", key: key() };
      const first = await limiter.acquire(asked);
      expect(first).toMatchObject({ success: true });
      await limiter.acquire(asked);
      expect(await limiter.acquire(asked)).toMatchObject({ success: false });
      const waiting = limiter.acquire({ ...asked, waitMs: 5_000 });
      const id = first.lease?.id ?? "";
      expect(await limiter.renew({ id, ttlMs: 30_000 })).toMatchObject({ id, expiresAfterMs: 30_000 });
      expect(await limiter.release({ id, outcome: "ok" })).toBeUndefined();
      const third = await waiting;
      expect(third).toMatchObject({ success: true });
      expect(third.lease?.fencingToken).toBeGreaterThan(first.lease?.fencingToken ?? Infinity);
      expect(await thrownBy(() => limiter.release({ id }))).toMatchObject({
        status: 404,
        code: "lease-not-found",
      });
      expect(await limiter.peek(asked)).toMatchObject({ leases: 2 });
    });

    test("a call may wait for its turn, and is told if that cannot come in time", async () => {
      const asked = { policy: "slow", key: key() };
      expect(await limiter.limit({ ...asked, waitMs: 1_000 })).toMatchObject({ success: true, waitedMs: 0 });
      expect(await limiter.limit({ ...asked, cost: 5, waitMs: 1_000 })).toMatchObject({
        success: false,
        waitedMs: 0,
      });
    });

    test("a look takes nothing, and a reset makes the key as new", async () => {
      const asked = { policy: "log", key: key() };
      await limiter.limit({ ...asked, cost: 3 });
      expect(await limiter.peek(asked)).toMatchObject({ success: false, remaining: 0, queueLength: 0 });
      expect(await limiter.limit(asked)).toMatchObject({ success: false });
      expect(await limiter.reset(asked)).toBeUndefined();
      expect(await limiter.limit(asked)).toMatchObject({ success: true, remaining: 2 });
    });

    test("waits that are ended are denied, and nobody waits any more", async () => {
      const asked = { policy: "slow", key: key() };
      await limiter.hold({ ...asked, units: 4 });
      const waiting = limiter.limit({ ...asked, cost: 2, waitMs: 20_000 });
      const isWaiting = async () => expect(await limiter.peek(asked)).toMatchObject({ queueLength: 1 });
      await vi.waitFor(isWaiting, { timeout: 10_000 });
      expect(await limiter.endWaits(asked)).toBeUndefined();
      expect(await waiting).toMatchObject({ success: false, reason: "wait-timeout" });
      expect(await limiter.peek(asked)).toMatchObject({ queueLength: 0, remaining: 1 });
      expect(await limiter.endWaits(asked)).toBeUndefined();
    });

    test("a hot key is counted to the unit, wherever its calls are decided", async () => {
      const asked = { policy: "hot", key: key() };
      for (let call = 1; call <= 300; call += 1) {
        const { success, remaining } = await limiter.limit(asked);
        expect([success, (remaining ?? 0) <= 100_000 - call]).toEqual([true, true]);
      }
      expect(await limiter.peek(asked)).toMatchObject({ remaining: 99_700, outstanding: 0 });
      for (let call = 1; call <= 20; call += 1) await limiter.limit({ ...asked, policy: "off" });
      expect(await limiter.peek({ ...asked, policy: "off" })).toMatchObject({ remaining: 99_980 });
    });

    test("costs by unit, priorities, addresses and shadow policies mean what they do everywhere", async () => {
      const llm = { policy: "llm", key: key(), cost: { requests: 1, tokens: 600 } };
      expect(await limiter.limit(llm)).toMatchObject({ success: true });
      expect(await limiter.limit(llm)).toMatchObject({ success: false, violated: ["tokens"] });
      const kept = { policy: "kept", key: key() };
      expect(await limiter.limit({ ...kept, cost: 6 })).toMatchObject({ success: false });
      expect(await limiter.limit({ ...kept, cost: 6, priority: "critical" })).toMatchObject({
        success: true,
      });
      const address = await limiter.limit({ policy: "address", key: "2001:db8:1:2::7" });
      expect(address.key).toBe("2001:db8:1:2::/64");
      const shadow = { policy: "shadow", key: key() };
      for (let call = 0; call < 4; call += 1) await limiter.limit(shadow);
      expect(await limiter.limit(shadow)).toMatchObject({ success: true, reason: "shadow" });
    });

    test("a field that is undefined was left out, whether there is such a field or not", async () => {
      const none = { nobodysField: undefined, priority: undefined, idempotencyKey: undefined };
      const asked = { policy: "slow", key: key(), nobodysField: undefined };
      expect(await limiter.limit({ ...asked, ...none, cost: undefined } as never)).toMatchObject({
        remaining: 4,
      });
      expect(await limiter.limit({ ...asked, ...none, idempotencyKey: "a" } as never)).toMatchObject({
        remaining: 3,
      });
      const checks = [{ ...asked, cost: undefined }];
      expect(await limiter.limitAll({ ...none, checks } as never)).toMatchObject({ success: true });
      const { hold } = await limiter.hold({ ...asked, ...none, units: 1, ttlMs: undefined } as never);
      await limiter.settle({ id: hold?.id ?? "", used: 0, nobodysField: undefined } as never);
      const other = await limiter.hold({ ...asked, units: 1 });
      await limiter.cancel({ id: other.hold?.id ?? "", nobodysField: undefined } as never);
      const refund = { ...asked, units: 1, idempotencyKey: "back", charge: undefined };
      expect(await limiter.refund(refund as never)).toMatchObject({ remaining: 3 });
      const leased = {
        policy: "export",
        key: key(),
        ttlMs: undefined,
        graceMs: undefined,
        resume: undefined,
      };
      const { lease } = await limiter.acquire({ ...leased, ...none } as never);
      expect(lease?.expiresAfterMs).toBe(20_000);
      const id = lease?.id ?? "";
      await limiter.renew({ id, ttlMs: undefined, nobodysField: undefined } as never);
      await limiter.release({ id, outcome: undefined, nobodysField: undefined } as never);
      const looked = await limiter.peek({ ...asked, waitFor: undefined, waitMs: undefined } as never);
      expect(looked).toMatchObject({ remaining: 3, holds: 0 });
      expect(await limiter.reset(asked)).toBeUndefined();
    });

    test("the policies are those of the deployment", async () => {
      const { policies } = await limiter.policies();
      expect(policies.map((policy) => policy.name).toSorted()).toEqual(
        Object.keys(CONTRACT_POLICIES).toSorted(),
      );
    });

    test("closed, it still answers, and holds nothing", async () => {
      const asked = { policy: "hot", key: key() };
      for (let call = 0; call < 50; call += 1) await limiter.limit(asked);
      await limiter.close();
      expect(await limiter.peek(asked)).toMatchObject({ remaining: 99_950, outstanding: 0 });
      expect(await limiter.limit(asked)).toMatchObject({ success: true });
    });
  });
}
