/** A resource that sees a lower fencing token than before rejects a holder that has the lease: so they only rise. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import { AlarmedObject } from "../../support/alarmed-object.ts";
import { depth } from "../../support/depth.ts";

const START_MS = 1_760_000_000_000;
const KEYS = ["a", "b"];

const STEP = fc.oneof(
  { weight: 6, arbitrary: fc.record({ is: fc.constant("pair" as const), key: fc.constantFrom(...KEYS) }) },
  { weight: 2, arbitrary: fc.record({ is: fc.constant("grant" as const), key: fc.constantFrom(...KEYS) }) },
  { weight: 2, arbitrary: fc.record({ is: fc.constant("reset" as const), key: fc.constantFrom(...KEYS) }) },
  { weight: 3, arbitrary: fc.record({ is: fc.constant("restart" as const) }) },
  {
    weight: 3,
    arbitrary: fc.record({ is: fc.constant("pass" as const), ms: fc.integer({ min: 0, max: 20_000 }) }),
  },
);

test.each(["concurrency", "adaptive-concurrency"])(
  "%s: the fencing tokens of a key rise with each grant, over restarts, resets and pauses",
  async (algorithm) => {
    const policies = parsePolicies({ p: { algorithm, limit: 50, ttl: "1s" } });
    const history = fc.asyncProperty(fc.array(STEP, { maxLength: 40 }), async (steps) => {
      const object = new AlarmedObject(policies, START_MS);
      const last = new Map<string, number>();
      for (const [index, step] of steps.entries()) {
        if (step.is === "pass") await object.pass(step.ms);
        else if (step.is === "restart") await object.restart(policies);
        else if (step.is === "reset")
          void object.ask(step.key, (each, keyState, nowMs) => each.reset(keyState, nowMs));
        else {
          const id = `lease-${index}`;
          const { lease } = object.acquire(step.key, { id, ttlMs: 1_000 }) as Decided;
          if (lease === undefined) continue;
          expect(lease.fencingToken).toBeGreaterThan(last.get(step.key) ?? 0);
          last.set(step.key, lease.fencingToken);
          if (step.is === "pair")
            void object.ask(step.key, (each, state, nowMs) => each.release(state, { id }, nowMs));
        }
      }
    });
    await fc.assert(history, { numRuns: depth(100, 500) });
  },
);

function granting() {
  const policies = parsePolicies({ p: { algorithm: "concurrency", limit: 1, ttl: "1s" } });
  const object = new AlarmedObject(policies, START_MS);
  let leases = 0;
  return {
    object,
    restart: () => object.restart(policies),
    grant: () => {
      const id = `lease-${(leases += 1)}`;
      const { lease } = object.acquire("a", { id, ttlMs: 1_000 }) as Decided;
      void object.ask("a", (each, keyState, nowMs) => each.release(keyState, { id }, nowMs));
      return lease?.fencingToken ?? 0;
    },
  };
}

test("a record whose token is ahead of the clock is kept until the clock has reached it", async () => {
  const { object, grant, restart } = granting();
  const last = grant();
  object.nowMs -= 3_600_000;
  await restart();
  expect(grant()).toBeGreaterThan(last);
  // Keys without state are forgotten meanwhile.
  await object.pass(600_000);
  expect(grant()).toBeGreaterThan(last);
});

test("however often an object starts, its tokens are a minute ahead of the clock at most", async () => {
  const { object, grant, restart } = granting();
  for (let each = 0; each < 240; each += 1) {
    expect(grant() / 1_000 - object.nowMs).toBeLessThan(60_000 + 240);
    await object.pass(each % 3 === 0 ? 0 : 15_000);
    await restart();
  }
});
