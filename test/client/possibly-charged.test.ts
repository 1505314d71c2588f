/** A call that charges the first check that admits, while the object of a check does not answer. */
import { expect, test } from "vitest";
import type { Holding } from "../../client/call-gate.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { tryInOrder } from "../../client/try-in-order.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { AnyDecision } from "../../core/protocol/decision.ts";
import type { BatchedCall } from "../../core/protocol/messages.ts";

const POLICY = parsePolicies({
  p: { algorithm: "token-bucket", limit: 1_000, window: "1s", deadlineMs: 50 },
}).get("p") as Policy;
const ADMITTED = {
  name: "p",
  success: true,
  limit: 1_000,
  remaining: 500,
  resetAfterMs: 500,
  retryAfterMs: 0,
  reason: "ok",
} as const;
const BUCKET = { rate: { units: 10, windowMs: 1_000 }, most: 5 };

/** An isolate with a bucket of the key `quota`. From `lose` on its object gets messages, and no answer arrives. */
function isolate() {
  let [nowMs, isLost] = [1_000_000, false];
  const charged: string[] = [];
  const holding = {
    time: { nowMs: () => nowMs, after: () => () => undefined },
    inBackground: () => undefined,
    objects: {
      unanswered: () => undefined,
      call: async (_: unknown, key: string, call: BatchedCall) => {
        if ((call.limit ?? call.reserve)?.cost !== 0 && call.giveBack === undefined) charged.push(key);
        await new Promise((done) => setImmediate(done));
        if (call.giveBack !== undefined) return { answer: null };
        if (isLost && key === "quota") {
          nowMs += POLICY.deadlineMs;
          return undefined;
        }
        if (call.reserve === undefined) return { answer: { rules: [ADMITTED] } };
        const reserved = { ttlMs: 60_000, isNew: true, units: { p: 5 }, buckets: { p: BUCKET } };
        return { answer: { rules: [ADMITTED], reserved } };
      },
    },
  } as unknown as Holding;
  const local = new LocalLimiter(new ReservationCache(() => "isolate"));
  const limit = (key: string) => local.limit(holding, POLICY, key, 1);
  return {
    charged,
    limit,
    any: () => tryInOrder(["quota", "credits"], limit),
    pass: (ms: number) => void (nowMs += ms),
    lose: () => void (isLost = true),
  };
}

/** An isolate whose bucket is empty. */
async function emptied() {
  const made = isolate();
  for (let call = 0; call < 4; call += 1) {
    made.pass(10);
    await made.limit("quota");
  }
  made.lose();
  return made;
}

test("a check that may have been charged is the last one, also where the isolate's own bucket denies", async () => {
  const { any, charged, pass } = await emptied();
  let [unanswered, overflowed] = [0, 0];
  for (let call = 0; call < 40; call += 1) {
    charged.length = 0;
    const answer = (await any()) as AnyDecision;
    if (charged.includes("quota")) {
      unanswered += 1;
      expect(answer).toMatchObject({ success: false, chosen: null });
      expect(answer.decisions).toMatchObject([{ source: "fallback", reason: "quota" }]);
    }
    // What was not sent to the object cannot have been charged there.
    if (answer.chosen === 1) overflowed += 1;
    pass(7);
  }
  expect(unanswered).toBeGreaterThan(0);
  expect(overflowed).toBeGreaterThan(10);
});
