/** Which denials an answer about another key renews. */
import { expect, test } from "vitest";
import type { UnitSource } from "../../client/call-gate.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import type { Cost, Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { parsePolicies } from "../support/milliseconds.ts";
import { denied, granting, said } from "../support/reservations.ts";

const policies = parsePolicies({
  rare: { algorithm: "token-bucket", limit: 10_000, window: "30d", objects: 1, denialTtl: "2s" },
});
const policy = policies.get("rare") as Policy;
const FIRM = { rules: denied(policy, 100_000), firmForMs: 2_000 };

/** An isolate whose object answers as the test says. */
function start() {
  const asked: string[] = [];
  const answers: Decided[] = [];
  let nowMs = 1_000_000;
  const call = (_: unknown, key: string) => {
    asked.push(key);
    return Promise.resolve({ answer: answers.shift() ?? { rules: said(policy) } });
  };
  const time = { nowMs: () => nowMs, after: () => () => undefined };
  const objects = { call, unanswered: () => undefined } as unknown as UnitSource;
  const caller = { objects, time, inBackground: () => undefined };
  const local = new LocalLimiter(new ReservationCache(() => "isolate"));
  const limit = async (key: string, answer: Decided, cost: Cost = 1) => {
    answers.splice(0, 1, answer);
    return (await local.limit(caller, policy, key, cost)) as Decision;
  };
  /** Whether it denies a cost by itself. */
  const denies = async (key: string, cost: Cost = 1) => {
    const before = asked.length;
    await limit(key, { rules: denied(policy, 1) }, cost);
    return asked.length === before;
  };
  return { limit, denies, later: (ms: number) => void (nowMs += ms) };
}

test.each<[string, string | undefined, string | undefined, boolean]>([
  ["of its epoch renews it", "one", "one", true],
  ["of another one does not", "one", "two", false],
  ["without one does not", "one", undefined, false],
  ["cannot if it came without", undefined, "one", false],
])("an answer about another key %s", async (_, epoch, later, isRenewed) => {
  const isolate = start();
  const inEpoch = (of: string | undefined) => (of === undefined ? {} : { epoch: of });
  await isolate.limit("denied", { ...FIRM, ...inEpoch(epoch) });
  isolate.later(1_500);
  await isolate.limit("other", { rules: said(policy), ...inEpoch(later) });
  isolate.later(1_999);
  expect(await isolate.denies("denied")).toBe(isRenewed);
  isolate.later(1);
  expect(await isolate.denies("denied")).toBe(false);
});

test("a denial is renewed until the end of its wait, less what clocks may differ by then", async () => {
  const isolate = start();
  await isolate.limit("denied", { ...FIRM, epoch: "one" });
  for (let ms = 0; ms < 98_000; ms += 1_000) {
    isolate.later(1_000);
    await isolate.limit(`other ${ms}`, { rules: said(policy), epoch: "one" });
  }
  isolate.later(1_899);
  const { retryAfterMs } = await isolate.limit("denied", { rules: said(policy) });
  expect(retryAfterMs).toBe(101);
  isolate.later(1);
  expect(await isolate.denies("denied")).toBe(false);
});

test("a denial without a word on how long it stands is not renewed, nor one whose key holds units", async () => {
  const isolate = start();
  await isolate.limit("unsure", { rules: denied(policy, 100_000), epoch: "one" });
  for (let call = 0; call < 2; call += 1) await isolate.limit("held", { rules: said(policy) }, 5);
  await isolate.limit("held", { ...granting(policy, 4), ...FIRM, epoch: "one" }, 5);
  expect([await isolate.denies("unsure"), await isolate.denies("held", 5)]).toEqual([true, true]);
  isolate.later(1_500);
  await isolate.limit("other", { rules: said(policy), epoch: "one" });
  isolate.later(600);
  expect([await isolate.denies("unsure"), await isolate.denies("held", 5)]).toEqual([false, false]);
});
