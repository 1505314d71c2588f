import { expect, test, vi } from "vitest";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Objects } from "../../client/transports/objects.ts";
import { parseDeployment } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import { Denials } from "../../core/reservations/knowledge.ts";
import { depth, expectOften, inDeepRuns } from "../support/depth.ts";
import { announcedSeed, seedOr } from "../support/random.ts";
import { Database } from "./database.ts";
import { FloodSchedule, type Flood, type Mistake } from "./floods.ts";
import { BrokenLaw } from "./laws.ts";
import { simulatedNamespace, type Method } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { VirtualTime } from "./virtual-time.ts";

const SCHEDULES = depth(5, 160);
const PATIENT = { timeout: 900_000 };

async function flood(firstSeed: number, schedules: number, mistake?: Mistake): Promise<Flood> {
  const database = new Database();
  const sum = { calls: 0, asked: 0, admitted: 0, repeated: 0 };
  for (let seed = firstSeed; seed < firstSeed + schedules; seed += 1) {
    try {
      const each = await new FloodSchedule(seed, database, mistake).run();
      for (const name of Object.keys(sum) as (keyof Flood)[]) sum[name] += each[name];
    } catch (error) {
      throw new Error(`SEED=${seed}: ${error instanceof Error ? error.message : String(error)}`, {
        cause: error,
      });
    }
  }
  return sum;
}

test(
  "a denial that an isolate repeats is one that the object would make, but for what is told late by name",
  PATIENT,
  async () => {
    const sum = await flood(announcedSeed("floods"), SCHEDULES);
    console.info("floods", sum);
    // A few histories may be mostly of policies whose denials are counted, so that each is asked for.
    expectOften(sum, sum.calls, { repeated: 0.5 });
  },
);

/** The first history that breaks a law, found as in other tests. */
async function expectFound(mistake: Mistake, inWords: RegExp, firstSeed = 1): Promise<void> {
  const found = await flood(seedOr(firstSeed), 2_000, mistake).then(
    () => undefined,
    (error: Error) => error,
  );
  expect(found?.cause).toBeInstanceOf(BrokenLaw);
  expect(found?.message).toMatch(inWords);
}

inDeepRuns("calling a denial firm although an isolate holds units is found", PATIENT, async () => {
  const isDenial = ({ rules, next }: Decided) => next !== undefined || rules.some(({ success }) => !success);
  const answer = (decided: Decided) => (isDenial(decided) ? { ...decided, firmForMs: 10_000 } : decided);
  await expectFound({ answer, policies: ["slow", "log"] }, /would pass since/, 105);
});

inDeepRuns("counting a wait a little longer than the object said is found", PATIENT, async () => {
  const longer = (rules: Decided["rules"]) =>
    rules.map((rule) => ({ ...rule, retryAfterMs: rule.retryAfterMs && rule.retryAfterMs + 5 }));
  const answer = ({ rules, next, ...rest }: Decided) => ({
    ...rest,
    rules: longer(rules),
    ...(next && { next: longer(next) }),
  });
  await expectFound({ answer }, /would pass since/);
});

inDeepRuns("denying calls when the one that asked for all has its answer is found", PATIENT, async () => {
  const { learn } = Denials.prototype as {
    readonly learn: (this: Denials, ...of: Parameters<Denials["learn"]>) => void;
  };
  const spy = vi.spyOn(Denials.prototype, "learn").mockImplementation(function (this: Denials, ...of) {
    // Loses the news of an admission.
    if (of[2].some(({ success }) => !success)) learn.apply(this, of);
  });
  await expectFound({}, /would pass since/).finally(() => spy.mockRestore());
});

const { forgetDenials } = LocalLimiter.prototype as {
  readonly forgetDenials: (this: LocalLimiter, ...of: Parameters<LocalLimiter["end"]>) => void;
};
let isAfter = false;

inDeepRuns.each<[string, (local: LocalLimiter, ...of: Parameters<LocalLimiter["end"]>) => void]>([
  ["not forgetting denials when units are given back by name", () => undefined],
  [
    "forgetting them before that only",
    // It is called before and after, so every second time.
    (local, ...of) => {
      isAfter = !isAfter;
      if (isAfter) forgetDenials.apply(local, of);
    },
  ],
])("%s is found", PATIENT, async (_, forget) => {
  const spy = vi.spyOn(LocalLimiter.prototype, "forgetDenials").mockImplementation(function (
    this: LocalLimiter,
    ...of
  ) {
    forget(this, ...of);
  });
  await expectFound({}, /would pass since/).finally(() => spy.mockRestore());
});

test("a flood of one key costs its object a call of each isolate for as long as a denial stands", async () => {
  const sum = await steadyFlood({ window: "1h" });
  // 4 isolates for 30 s, and a denial lasts 10 s. A few calls took the units.
  expect(sum.denied).toBeGreaterThan(25_000);
  expect(sum.askedLate).toBeLessThanOrEqual(4 * 3);
});

test("when a wait ends, one call of each isolate asks", async () => {
  // A unit comes back every 2 s. Isolates learn the wait from a call, so each makes one for each unit.
  const sum = await steadyFlood({ window: "80s" });
  expect(sum.askedLate).toBeLessThanOrEqual(4 * 16);
});

test("with denialTtl = 0s the object denies every call", async () => {
  const sum = await steadyFlood({ window: "1h", denialTtl: "0s" }, 8);
  expect(sum.askedLate).toBeGreaterThan(6_900);
});

/** Four isolates call a key of 40 units every 4 ms. Counts object calls once units were gone. */
async function steadyFlood(
  fields: object,
  seconds = 30,
): Promise<{ readonly denied: number; readonly askedLate: number }> {
  const { regionalPolicies } = parseDeployment({
    policies: { flooded: { algorithm: "token-bucket", limit: 40, ...fields } },
  });
  const policy = regionalPolicies.get("flooded") as Policy;
  const time = new VirtualTime();
  const clock = time.clock({ ms: 1_000_000 });
  const object = new SimulatedObject(new Database(), regionalPolicies.named, () => clock.nowMs());
  const sum = { denied: 0, askedLate: 0 };
  const handle = (method: Method, args: readonly unknown[]) => {
    if (method !== "giveBack" && time.nowMs > 1_000) sum.askedLate += 1;
    return object.handle(method, args);
  };
  const fate = () => ({ thereMs: 3, backMs: 3 });
  const namespace = simulatedNamespace(time, handle, fate, () => false);
  const clients = Array.from({ length: 4 }, () => {
    const parts = { policies: regionalPolicies, time: clock, inBackground: () => undefined };
    return new LimiterClient({ ...parts, objects: new Objects(namespace, clock) });
  });
  for (let atMs = 0; atMs < 1_000 * seconds; atMs += 4)
    time.at(atMs, () => {
      for (const client of clients)
        void Promise.resolve(client.limit(policy, "key", { cost: 1 })).then((decision) => {
          if ("success" in decision && !decision.success) sum.denied += 1;
        });
    });
  await time.run(1_000 * (seconds + 1), () => undefined);
  return sum;
}
