/** What an isolate tells an object while a call waits there. Time is virtual. */
import { expect, test } from "vitest";
import { PoliciesInForce } from "../../../core/catalog/policies-in-force.ts";
import { parseDeployment } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import { followingBy, CHECK_EVERY_MS } from "../../../worker/bindings/catalog-reader.ts";
import { VirtualTime } from "../../simulation/virtual-time.ts";

const { policies, tables, regions } = parseDeployment({
  policies: { slots: { algorithm: "concurrency", limit: 1 } },
});
const fields = (limit: number) => ({ algorithm: "concurrency", limit });

/** An isolate with a call that waits for a slot of the key `mine`. */
function waiting() {
  const time = new VirtualTime();
  const inForce = new PoliciesInForce({ policies, tables, regions });
  const catalog = { asked: 0, freshen: () => void (catalog.asked += 1) };
  const told: (readonly [version: number | undefined, capacity: number])[] = [];
  const policy = inForce.get("slots") as Policy;
  const follow = followingBy(catalog, inForce, time.clock({ ms: 0 }));
  const stop = follow(policy, "mine", (now) => told.push([now.inForce?.version, now.rules[0].capacity]));
  let revision = 0;
  const change = (changes: object) =>
    inForce.apply({
      revision: (revision += 1),
      isWhole: false,
      policies: [],
      overrides: [],
      tokens: [],
      ...changes,
    });
  const pass = () => time.run(time.nowMs + 2 * CHECK_EVERY_MS, () => undefined);
  return { told, catalog, stop, change, pass };
}

test("each version of the key's policy is told once, and not that of another key or policy", async () => {
  const { told, catalog, change, pass } = waiting();
  await pass();
  expect(told).toEqual([]);
  expect(catalog.asked).toBeGreaterThan(0);
  change({ policies: [{ name: "slots", version: 3, fields: fields(4) }] });
  await pass();
  await pass();
  expect(told).toEqual([[3, 4]]);
  change({ policies: [{ name: "others", version: 9, fields: fields(2) }] });
  change({ overrides: [{ policy: "slots", pattern: "other", version: 4, fields: { limit: 7 } }] });
  await pass();
  expect(told.map(([, capacity]) => capacity)).toEqual([4]);
});

test("nobody is told any more when the wait is over", async () => {
  const { told, catalog, stop, change, pass } = waiting();
  stop();
  change({ policies: [{ name: "slots", version: 3, fields: fields(4) }] });
  await pass();
  expect([told, catalog.asked]).toEqual([[], 0]);
});
