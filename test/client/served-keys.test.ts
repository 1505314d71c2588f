/** Keys of which an isolate decides its clients' calls. */
import { expect, test } from "vitest";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { type ClientsCall, ServedKeys } from "../../client/served-keys.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Reserved } from "../../core/protocol/answers.ts";
import { parsePolicies } from "../support/milliseconds.ts";

const POLICY = parsePolicies({ p: { algorithm: "token-bucket", limit: 1_000, window: "1s" } }).get(
  "p",
) as Policy;
const NONE = { ttlMs: 0, isNew: true, units: { p: 0 } };
const ADMITTED = {
  name: "p",
  success: true,
  limit: 1_000,
  remaining: 5,
  resetAfterMs: 5,
  retryAfterMs: 0,
} as const;

function start() {
  const clock = { ms: 1_000_000 };
  const cache = new ReservationCache(() => "isolate");
  const served = new ServedKeys(cache);
  const time = { nowMs: () => clock.ms, after: () => () => undefined };
  const caller = { time, objects: { call: async () => undefined }, inBackground: () => undefined };
  const rules = (demand: number) => ({ p: { used: 0, kept: 0, wanted: 0, demand } });
  const sent: ClientsCall[] = [];
  const ask = (reserved: Partial<Reserved> | undefined, isLimit = false) => {
    const about = { policy: "p", key: "key", cost: 1 };
    const reserve = { ...about, holder: "h", turn: 1, ttlMs: 2_000, isShort: false, rules: rules(2) };
    const call = isLimit ? { limit: about } : { reserve };
    return served.ask({ ...caller, region: () => "weur" }, POLICY, "key", call, async (said) => {
      sent.push(said);
      if (reserved === undefined) return undefined;
      return { answer: { rules: [{ ...ADMITTED, reason: "ok" }], reserved: { ...NONE, ...reserved } } };
    });
  };
  const has = (holder?: string, demand = 2) =>
    served.has(POLICY, "key", clock.ms, holder === undefined ? undefined : { holder, rules: rules(demand) });
  const reservation = () => cache.open(POLICY, "key", clock.ms);
  return { clock, served, ask, has, sent, reservation };
}

test("an isolate decides its clients' calls for the time that the object says, and then one of them asks again", async () => {
  const { clock, ask, has } = start();
  expect(has("a")).toBe(false);
  await ask({ servedMs: 10_000 });
  expect([has("a"), has()]).toEqual([true, true]);
  clock.ms += 10_000;
  expect([has("a"), has("b"), has()]).toEqual([false, true, true]);
  await ask({});
  expect([has("a"), has()]).toEqual([false, false]);
});

test("while the object does not answer, one of the calls asks each second", async () => {
  const { clock, ask, has } = start();
  await ask({ servedMs: 10_000 });
  for (clock.ms += 10_000; clock.ms < 1_015_000; clock.ms += 1_000) {
    expect([has("a"), has("b")]).toEqual([false, true]);
    await ask(undefined);
  }
});

test("a client's message says which isolate makes it, and the answer sends that one to its region", async () => {
  const { ask, sent, reservation } = start();
  const { holder } = reservation();
  expect(await ask({ servedMs: 10_000, asksRegion: true })).toEqual({
    answer: { rules: [{ ...ADMITTED, reason: "ok" }], reserved: NONE },
  });
  await ask({ servedMs: 10_000 }, true);
  expect(sent[0]?.reserve).toMatchObject({ servedBy: holder, mayAskRegion: true, near: "weur", holder: "h" });
  expect(reservation().region).toBe("weur");
  expect(sent[1]?.limit).toMatchObject({ servedBy: holder });
  expect(sent[1]?.limit).not.toHaveProperty("mayAskRegion");
});

test("the answer to a single call has nothing of units for the client", async () => {
  expect(await start().ask({ servedMs: 10_000, units: {} }, true)).toEqual({
    answer: { rules: [{ ...ADMITTED, reason: "ok" }] },
  });
});

test("calls that a client has denied by itself count, whatever it says as a few for each of its messages", async () => {
  const demandAfter = async (said: number) => {
    const { clock, ask, has, reservation, served } = start();
    await ask({ servedMs: 100_000 });
    for (let message = 0; message < 10; message += 1) {
      has("a", said);
      served.denied("a", clock.ms);
      reservation().note(1, clock.ms);
      clock.ms += 1_000;
    }
    const { call } = reservation().ask(0, clock.ms);
    return call.rules["p"]?.demand ?? 0;
  };
  expect(await demandAfter(4)).toBeCloseTo(4, 0);
  expect(await demandAfter(0)).toBeCloseTo(1, 0);
  expect(await demandAfter(1e9)).toBeLessThanOrEqual(8);
});
