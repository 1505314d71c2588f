/** When a denial is over, one call asks for all, and the others are denied: for as long as it asks, and no longer. */
import { expect, test } from "vitest";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Objects } from "../../client/transports/objects.ts";
import { parseDeployment } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import { Database } from "../simulation/database.ts";
import { simulatedNamespace } from "../simulation/network.ts";
import { SimulatedObject } from "../simulation/simulated-object.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

/** The windows end at whole multiples of this. */
const WINDOW_MS = 4_000;
const WAY_MS = 10;
const { regionalPolicies } = parseDeployment({
  policies: { flooded: { algorithm: "fixed-window", limit: 64, window: "4s", objects: 1 } },
});
const policy = regionalPolicies.get("flooded") as Policy;

/** An isolate, whose calls are made at instants since a window began. */
function start() {
  const time = new VirtualTime();
  const clock = time.clock({ ms: 1_000 * WINDOW_MS });
  const object = new SimulatedObject(new Database(), regionalPolicies.named, () => clock.nowMs());
  const namespace = simulatedNamespace(
    time,
    (method, args) => object.handle(method, args),
    () => ({ thereMs: WAY_MS, backMs: WAY_MS }),
    () => false,
  );
  const client = new LimiterClient({
    objects: new Objects(namespace, clock),
    policies: regionalPolicies,
    time: clock,
    inBackground: () => undefined,
  });
  /** Makes a call. The decision is in the list that is returned as soon as there is one. */
  const callAt = (atMs: number, cost: number, caller = client, key = "key") => {
    const answers: (Decision | Problem)[] = [];
    time.at(atMs, () => {
      void Promise.resolve(caller.limit(policy, key, { cost })).then((answer) => answers.push(answer));
    });
    return answers;
  };
  return { time, client, callAt };
}

test("when it gets units of another call's answer, nobody is denied any more", async () => {
  const { time, callAt } = start();
  for (let atMs = 0; atMs < WINDOW_MS + WAY_MS; atMs += 5) for (const cost of [5, 1]) callAt(atMs, cost);
  // Both denials are over. The call of 5 asks, and the call of 1 waits for the units that come with the answer.
  const asking = [5, 1].map((cost) => callAt(WINDOW_MS + 2 * WAY_MS, cost));
  // More than those units.
  const next = Array.from({ length: 10 }, () => callAt(WINDOW_MS + 5 * WAY_MS, 1));
  await time.run(2 * WINDOW_MS - 1_000, () => undefined);
  expect(asking.flat()).toMatchObject([
    { success: true, source: "object" },
    { success: true, source: "isolate" },
  ]);
  expect(next.flat()).toHaveLength(10);
  for (const answer of next.flat()) expect(answer).toMatchObject({ success: true });
});

test("when its caller's bound refuses it, the next call asks", async () => {
  const { time, client, callAt } = start();
  const bounded = client.for("bounded", { maxCallsAtOnce: 1, maxNewKeysPerSecond: 100 });
  for (let atMs = 0; atMs < WINDOW_MS + WAY_MS; atMs += 5) callAt(atMs, 1);
  callAt(WINDOW_MS + WAY_MS, 1, bounded, "another key");
  const refused = callAt(WINDOW_MS + 2 * WAY_MS, 1, bounded);
  const next = callAt(WINDOW_MS + 2 * WAY_MS + 1, 1);
  await time.run(2 * WINDOW_MS - 1_000, () => undefined);
  expect(refused).toMatchObject([{ code: "bound-reached" }]);
  expect(next).toMatchObject([{ success: true, source: "object" }]);
});
