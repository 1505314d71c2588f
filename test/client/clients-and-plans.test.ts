/** An isolate whose own calls and whose clients' calls name different plans of a key: no unit is lost on the way. */
import { expect, test } from "vitest";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Objects } from "../../client/transports/objects.ts";
import { outstandingOf } from "../../core/accounts/account.ts";
import { parseDeployment } from "../../core/policies/parse-policies.ts";
import { type Policy, versionOf } from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import { Database } from "../simulation/database.ts";
import { simulatedNamespace } from "../simulation/network.ts";
import { SimulatedObject } from "../simulation/simulated-object.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";
import { depth } from "../support/depth.ts";
import { announcedSeed, seededRandom, whole } from "../support/random.ts";

const KEY = "key";
const LIMIT = 30_000;
const { policies, regionalPolicies } = parseDeployment({
  policies: {
    api: {
      algorithm: "sliding-log",
      limit: 20_000,
      window: "30d",
      plans: { pro: { limit: LIMIT } },
    },
  },
});
const policy = regionalPolicies.get("api") as Policy;

test("what an isolate holds under one plan goes back when its clients name another", async () => {
  const random = seededRandom(announcedSeed("clients and plans"));
  for (let round = 0; round < depth(5, 100); round += 1) {
    const time = new VirtualTime();
    const clock = time.clock({ ms: 1_000_000 });
    const object = new SimulatedObject(new Database(), policies, () => clock.nowMs());
    const namespace = simulatedNamespace(
      time,
      (method, args) => object.handle(method, args),
      () => ({ thereMs: 1 + whole(random, 3), backMs: 1 + whole(random, 3) }),
      () => false,
    );
    const isolate = new LimiterClient({
      objects: new Objects(namespace, clock),
      policies: regionalPolicies,
      time: clock,
      inBackground: () => undefined,
    });
    let used = 0;
    const own = (plan: string) => async () => {
      const decision = await isolate.limit(planOf(policy, plan), KEY, { cost: 1 });
      if ("success" in decision && decision.success && decision.reason === "ok") used += 1;
    };
    const client = (plan: string) => async () => {
      const seen = planOf(policy, plan);
      const limit = { policy: "api", key: KEY, cost: 1, ...versionOf(seen) };
      const reply = await isolate.askFor(seen, KEY, { limit });
      const answer = reply !== undefined && "answer" in reply ? reply.answer : undefined;
      if (answer && "rules" in answer && answer.rules.every(({ success }) => success)) used += 1;
    };
    const changes = 0.3 * random();
    for (let call = 0; call < 200; call += 1) {
      const isOdd = random() < changes;
      const plans = isOdd ? ["pro", ""] : ["", "pro"];
      const [first, second] = plans as [string, string];
      const make = random() < 0.7 ? own(first) : client(second);
      time.at(call * 5, () => void make());
    }
    await time.run(60_000, () => undefined);
    const { rules } = JSON.parse(
      object.limitCall({ policy: "api", key: KEY, cost: 0, ...versionOf(planOf(policy, "pro")) }),
    );
    const [account] = object.open(policy, KEY).accounts;
    expect({ round, outstanding: account && outstandingOf(account) }).toEqual({ round, outstanding: 0 });
    expect({ round, counted: LIMIT - rules[0].remaining }).toEqual({ round, counted: used });
  }
});
