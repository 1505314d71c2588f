/** Two clients in one process are two holders, as if they were apart: they share the object and nothing else. */
import { expect, test } from "vitest";
import { LimiterClient } from "../../client/limiter-client.ts";
import { Objects } from "../../client/transports/objects.ts";
import { outstandingOf } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { parseDeployment } from "../../core/policies/regional-policies.ts";
import { Database } from "../simulation/database.ts";
import { simulatedNamespace } from "../simulation/network.ts";
import { SimulatedObject } from "../simulation/simulated-object.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

const KEY = "key";
const LIMIT = 100_000;
const { policies, regionalPolicies } = parseDeployment({
  policies: { api: { algorithm: "token-bucket", limit: LIMIT, window: "30d" } },
});
const policy = regionalPolicies.get("api") as Policy;

/** An object, and clients of it that know nothing of each other. */
function start(clients: number) {
  const time = new VirtualTime();
  const clock = time.clock({ ms: 1_000_000 });
  const object = new SimulatedObject(new Database(), policies, () => clock.nowMs());
  const open = () => {
    const namespace = simulatedNamespace(
      time,
      (method, args) => object.handle(method, args),
      () => ({ thereMs: 1, backMs: 1 }),
      () => false,
    );
    return new LimiterClient({
      objects: new Objects(namespace, clock),
      policies: regionalPolicies,
      time: clock,
      inBackground: () => undefined,
    });
  };
  return {
    time,
    keyState: () => object.open(policy, KEY),
    clients: Array.from({ length: clients }, open),
  };
}

test("each has units of its own, and together they never have more than there are", async () => {
  const { time, keyState, clients } = start(2);
  const sources: string[][] = clients.map(() => []);
  let admitted = 0;
  for (let call = 0; call < 400; call += 1)
    time.at(call, async () => {
      for (const [index, client] of clients.entries())
        void Promise.resolve(client.limit(policy, KEY, { cost: 1 })).then((decision) => {
          if (!("success" in decision)) throw new Error(decision.detail);
          if (decision.success) admitted += 1;
          sources[index]?.push(decision.source);
        });
    });
  let most = 0;
  await time.run(500, () => {
    most = Math.max(most, keyState().holders.size);
  });
  expect(most).toBe(2);
  expect(admitted).toBe(800);
  for (const each of sources) expect(each).toContain("isolate");
  await time.run(60_000, () => undefined);
  const [account] = keyState().accounts;
  expect(account && outstandingOf(account)).toBe(0);
});

test("a call that the object decides takes home what its own client has, and leaves the other's alone", async () => {
  const { time, keyState, clients } = start(2);
  const [one, other] = clients;
  for (let call = 0; call < 20; call += 1)
    time.at(call, () => {
      for (const client of clients) void client.limit(policy, KEY, { cost: 1 });
    });
  await time.run(100, () => undefined);
  const heldBy = () =>
    keyState().accounts.flatMap(({ holds }) => holds.map(({ id }) => id.slice(0, id.lastIndexOf("."))));
  const both = heldBy();
  expect(new Set(both).size).toBe(2);
  // It is remembered, so the object decides it.
  void one?.limit(policy, KEY, { cost: 1, idempotencyKey: "once" });
  await time.run(200, () => undefined);
  expect(heldBy()).toHaveLength(1);
  expect(both).toContain(heldBy()[0]);
  expect(other?.limit(policy, KEY, { cost: 1 })).toMatchObject({ success: true, source: "isolate" });
});
