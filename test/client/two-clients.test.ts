/** Two clients in one process are two holders, as if they were apart: they share the object and nothing else. */
import { expect, test } from "vitest";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Objects } from "../../client/transports/objects.ts";
import { outstandingOf } from "../../core/accounts/account.ts";
import { parseDeployment } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { Database } from "../simulation/database.ts";
import { simulatedNamespace } from "../simulation/network.ts";
import { SimulatedObject } from "../simulation/simulated-object.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

const KEY = "key";
const LIMIT = 100_000;
const { policies, regionalPolicies } = parseDeployment({
  policies: {
    api: { algorithm: "token-bucket", limit: LIMIT, window: "30d" },
    small: { algorithm: "token-bucket", limit: 3, window: "30d" },
  },
});
const policy = regionalPolicies.get("api") as Policy;

/** An object, and clients of it that know nothing of each other. */
function start(clients: number) {
  const time = new VirtualTime();
  const clock = time.clock({ ms: 1_000_000 });
  const object = new SimulatedObject(new Database(), policies, () => clock.nowMs());
  let messages = 0;
  const open = () => {
    const namespace = simulatedNamespace(
      time,
      (method, args) => {
        messages += 1;
        return object.handle(method, args);
      },
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
    messages: () => messages,
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

test("who was given the last unit denies the next call without asking, with the object's figures", async () => {
  const { time, messages, clients } = start(2);
  const [one, other] = clients as [LimiterClient, LimiterClient];
  const small = regionalPolicies.get("small") as Policy;
  const decisions: unknown[] = [];
  const ask = (client: LimiterClient) => () => {
    void Promise.resolve(client.limit(small, KEY, { cost: 1 })).then((decision) => decisions.push(decision));
  };
  for (let call = 0; call < 4; call += 1) time.at(10 * call, ask(one));
  time.at(40, ask(other));
  await time.run(100, () => undefined);
  expect(decisions).toMatchObject([
    { success: true, remaining: 2, source: "object" },
    { success: true, remaining: 1, source: "object" },
    { success: true, remaining: 0, source: "object" },
    { success: false, remaining: 0, source: "isolate", reason: "quota" },
    { success: false, remaining: 0, source: "object", reason: "quota" },
  ]);
  const [by, asked] = decisions.slice(3) as { retryAfterMs: number }[];
  // The object was asked 10 ms later. A message takes a millisecond each way.
  expect(Math.abs((by?.retryAfterMs ?? 0) - (asked?.retryAfterMs ?? 0) - 10)).toBeLessThanOrEqual(2);
  expect(messages()).toBe(4);
});
