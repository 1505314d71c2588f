/** A reset that the machine does not survive is made or not: isolates keep what they have in both cases. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import { aheadUnits } from "../../../durable-objects/storage/write-behind.ts";
import { Database, Died } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";

const LIMIT = 300;
const NOW_MS = 1_000_000;
const POLICIES = parsePolicies({ p: { algorithm: "sliding-log", limit: LIMIT, window: "20s" } });

const RULE = (POLICIES.get("p") as Policy).rules[0];

/** An object of which an isolate has units that no lead covers. */
function withUnits(): { database: Database; object: SimulatedObject; units: number } {
  const database = new Database();
  const object = new SimulatedObject(database, POLICIES, () => NOW_MS);
  object.limit("p", "a", 10);
  const { reserved } = JSON.parse(
    object.reserve({
      policy: "p",
      key: "a",
      cost: 0,
      holder: "isolate",
      turn: 1,
      ttlMs: 2_000,
      isShort: false,
      rules: { p: { used: 0, kept: 0, wanted: 18 } },
    }),
  ) as Decided;
  return { database, object, units: reserved?.units["p"] ?? 0 };
}

test("a reset that fails on the way takes no units from an isolate, whether the object goes on or another starts", () => {
  for (const crashes of [false, true])
    for (let writes = 0, isDone = false; !isDone; writes += 1) {
      const { database, object, units } = withUnits();
      expect(units).toBeGreaterThan(aheadUnits(RULE));
      database.writesLeft = writes;
      try {
        object.reset("p", "a");
        isDone = true;
      } catch (error) {
        expect(error).toBeInstanceOf(Died);
      }
      database.writesLeft = Infinity;
      if (crashes) object.crash();
      const { rules } = JSON.parse(object.limit("p", "a", 0)) as Decided;
      expect(rules[0]?.remaining).toBeLessThanOrEqual(LIMIT - units);
      if (isDone) expect(rules[0]?.remaining).toBeGreaterThan(LIMIT - units - 10);
    }
});
