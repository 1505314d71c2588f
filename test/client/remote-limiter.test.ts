/** A client in its caller's process, over a limiter that the test plays. The contract suite has real ones. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, expect, expectTypeOf, test, vi } from "vitest";
import type { ClientOptions } from "../../client/limiter.ts";
import { describedPolicy } from "../../client/remote/described-policies.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { overHttp } from "../../client/transports/http.ts";
import type { LimiterCalls, LimiterTransport } from "../../client/transports/transport.ts";
import { SYSTEM_TIME } from "../../core/clock.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { LimiterError, Problem, LIMITER_PROBLEMS } from "../../core/protocol/problems.ts";
import type {
  PolicyList,
  ReservationsMessage,
  ReservationsReply,
} from "../../core/protocol/reservation-messages.ts";
import { manualClock } from "../../package/testing.ts";
import type { PolicyList as ListedSchema } from "../../worker/calls/keys.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";
import type { Limiter } from "../../worker/rpc/limiter.ts";
import { transportOf } from "../support/transport.ts";

beforeEach(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterEach(() => void vi.restoreAllMocks());

const PLAN = { algorithm: "token-bucket", limit: 100_000, window: "30d" };
const policies = parsePolicies({
  hot: { ...PLAN, deadlineMs: 1_000 },
  open: { ...PLAN, onFailure: "open", deadlineMs: 20 },
  off: { ...PLAN, reservation: "off" },
});
const named = (name: string) => {
  const policy = policies.get(name);
  if (policy === undefined) throw new Error("no policy");
  return policy;
};

/** A limiter that admits everything, and notes what it is asked. */
class Played {
  readonly messages: ReservationsMessage[] = [];
  readonly others: string[] = [];
  /** What a message fails with. */
  failure: Error | "silence" | undefined;
  version: string | undefined;
  /** A limiter of an earlier version refuses a message that says what was decided. */
  readsMade = true;

  get transport(): LimiterTransport {
    const reserve = async (asked: ReservationsMessage): Promise<ReservationsReply> => {
      this.messages.push(JSON.parse(JSON.stringify(asked)) as ReservationsMessage);
      if (this.failure === "silence") await new Promise(() => undefined);
      if (this.failure instanceof Error) throw this.failure;
      return this.#answer(asked);
    };
    const call = (method: string, asked: object) => {
      if (method === "reserve") return reserve(asked as ReservationsMessage);
      this.others.push(method);
      if (this.failure instanceof Error) return Promise.reject(this.failure);
      return Promise.resolve({ success: true, ...asked, rules: [], source: "object" });
    };
    return { call: call as LimiterTransport["call"] };
  }

  #answer({ calls, known = {} }: ReservationsMessage): ReservationsReply {
    const unknown: Record<string, ReturnType<typeof describeForClient>> = {};
    const answers = calls.map(({ limit, reserve }) => {
      const asked = limit ?? reserve;
      if (asked === undefined) return null;
      const description = describeForClient(named(asked.policy));
      const version = this.version ?? description.version;
      const rules = [{ name: asked.policy, success: true, limit: 100_000, remaining: 50_000 }].map(
        (rule) => ({
          ...rule,
          resetAfterMs: 1,
          retryAfterMs: 0,
          reason: "ok" as const,
        }),
      );
      if (known[asked.policy] !== version) {
        unknown[asked.policy] = { ...description, version };
        const { policy, key } = asked;
        return {
          decision: { success: true, policy, key, limit: 1, reason: "ok", source: "object", rules },
        } as const;
      }
      const wanted = reserve?.rules[asked.policy]?.wanted ?? 0;
      if (reserve === undefined) return { rules };
      return { rules, reserved: { ttlMs: reserve.ttlMs, isNew: false, units: { [asked.policy]: wanted } } };
    });
    return { protocol: 1, answers, policies: unknown, ...(this.readsMade && { readsMade: true }) };
  }
}

/** The same, `ms` away. */
function slow(played: Played, ms: number | (() => number)): LimiterTransport {
  const reserve = async (asked: ReservationsMessage) => {
    const answered = await played.transport.call("reserve", asked);
    await sleep(typeof ms === "number" ? ms : ms());
    return answered;
  };
  return transportOf({ reserve });
}

function playing(options: ClientOptions = {}): { played: Played; limiter: RemoteLimiter } {
  const played = new Played();
  const inBackground = (work: Promise<unknown>) => void work.catch(() => undefined);
  return {
    played,
    limiter: new RemoteLimiter({ transport: played.transport, time: SYSTEM_TIME, inBackground }, options),
  };
}

test("the first decision of a process takes one message, and calls that are made at once take one together", async () => {
  const { played, limiter } = playing();
  await limiter.limit({ policy: "hot", key: "a" });
  expect(played.messages).toHaveLength(1);
  const keys = Array.from({ length: 40 }, (_, index) => `key-${index}`);
  await Promise.all(keys.map((key) => limiter.limit({ policy: "hot", key })));
  expect(played.messages.map(({ calls }) => calls.length)).toEqual([1, 40]);
  expect(played.messages[1]?.known).toEqual({ hot: describeForClient(named("hot")).version });
});

// Of 32 that came at once to a new isolate one was answered as degraded, though the object had admitted it.
test("a call that waits while the policy becomes known is answered with the rules' words", async () => {
  const played = new Played();
  const transport = slow(played, 20);
  const limiter = new RemoteLimiter({ transport, time: SYSTEM_TIME, inBackground: () => undefined }, {});
  const first = limiter.limit({ policy: "hot", key: "a" });
  await vi.waitFor(() => expect(played.messages).toHaveLength(1), { interval: 1 });
  // It is posted under a policy that is not known, and sent when the first message has brought it.
  const second = limiter.limit({ policy: "hot", key: "b" });
  expect(await Promise.all([first, second])).toMatchObject([
    { success: true },
    { success: true, reason: "ok", key: "b", policy: "hot", source: "object", remaining: 50_000 },
  ]);
  expect(played.messages).toHaveLength(2);
  await limiter.close();
});

test("a hot key is decided here, and what was used goes home at the end", async () => {
  const { played, limiter } = playing();
  for (let call = 0; call < 200; call += 1) await limiter.limit({ policy: "hot", key: "a" });
  expect(played.messages.length).toBeLessThan(15);
  await limiter.close();
  const [returned] = played.messages.at(-1)?.calls[0]?.giveBack?.returned ?? [];
  const byObject = played.messages
    .flatMap(({ calls }) => calls)
    .filter(({ limit, reserve }) => limit !== undefined || (reserve?.cost ?? 0) !== 0).length;
  expect((returned?.used["hot"] ?? 0) + byObject).toBe(200);
  expect(played.others).toEqual([]);
});

test("each decision that is made here is told once, with the last units too, and to no earlier version", async () => {
  const { played, limiter } = playing();
  for (let call = 0; call < 300; call += 1)
    await limiter.limit({ policy: call % 3 === 0 ? "open" : "hot", key: "a" });
  await limiter.close();
  const made = played.messages.flatMap((message) => Object.entries(message.made ?? {}));
  const askedOf = (policy: string) =>
    played.messages
      .flatMap(({ calls }) => calls)
      .filter(
        ({ limit, reserve }) =>
          limit?.policy === policy || (reserve?.policy === policy && reserve.cost !== 0),
      );
  for (const [policy, calls] of [
    ["hot", 200],
    ["open", 100],
  ] as const) {
    const told = made.filter(([name]) => name === policy).reduce((sum, [, [admitted]]) => sum + admitted, 0);
    expect(told + askedOf(policy).length).toBe(calls);
  }
  expect(made.every(([, [, denied]]) => denied === 0)).toBe(true);
  const earlier = playing();
  earlier.played.readsMade = false;
  for (let call = 0; call < 100; call += 1) await earlier.limiter.limit({ policy: "hot", key: "a" });
  await earlier.limiter.close();
  expect(earlier.played.messages.some((message) => "made" in message)).toBe(false);
});

// Each of thousands that waited at a start was sent by itself, and the limiter was busy for seconds.
test("at a start thousands of calls on a key share the units of a few messages", async () => {
  const played = new Played();
  const limiter = new RemoteLimiter(
    { transport: slow(played, 50), time: { ...SYSTEM_TIME, isLasting: true }, inBackground: () => undefined },
    {},
  );
  const calls = Array.from({ length: 2_000 }, async (_, index) => {
    await sleep(index / 100);
    return await limiter.limit({ policy: "hot", key: "a" });
  });
  expect((await Promise.all(calls)).every(({ success }) => success)).toBe(true);
  const sent = played.messages.flatMap((message) => message.calls).length;
  expect(sent).toBeLessThan(100);
  await limiter.close();
});

// They were answered as degraded after two round trips, though they had 20 s.
test("who waits for the units of an answer waits as long as the deadline allows, if the limiter was not late before", async () => {
  const played = new Played();
  let tripMs = 10;
  const limiter = new RemoteLimiter(
    {
      transport: slow(played, () => tripMs),
      time: { ...SYSTEM_TIME, isLasting: true },
      inBackground: () => undefined,
    },
    { deadlineMs: 20_000 },
  );
  for (let call = 0; call < 20; call += 1) await limiter.limit({ policy: "hot", key: "a" });
  tripMs = 400;
  const calls = Array.from({ length: 2_000 }, () => limiter.limit({ policy: "hot", key: "a" }));
  const reasons = (await Promise.all(calls)).map(({ reason }) => reason);
  expect(new Set(reasons)).toEqual(new Set(["ok"]));
  await limiter.close();
});

// Of an outage that denied 1,200 calls of one hot key the log said "1 call was answered without the limiter".
test("an outage is told with each call that it concerned, also those that waited for the units of another's message", async () => {
  const clock = manualClock();
  const { played } = playing();
  const parts = { transport: played.transport, inBackground: () => undefined };
  const limiter = new RemoteLimiter({ ...parts, time: { ...clock, isLasting: true } });
  const limit = () => limiter.limit({ policy: "hot", key: "a", cost: 5_000 });
  for (let call = 0; call < 5; call += 1) await limit();
  played.failure = "silence";
  let degraded = 0;
  for (let second = 0; second < 12; second += 1) {
    for (let call = 0; call < 20; call += 1)
      void limit().then(({ reason }) => (degraded += reason === "degraded" ? 1 : 0));
    await clock.advance("1s");
  }
  played.failure = undefined;
  await clock.advance("20s");
  await limit();
  expect(degraded).toBeGreaterThan(200);
  const lines = vi.mocked(console.warn).mock.calls.map(([line]) => String(line));
  const told = lines.map((line) => Number(/^weir: (\d+) calls? w/.exec(line)?.[1] ?? 1));
  // The first line may be of a message that no call waited for.
  expect([degraded, degraded + 1]).toContain(told.reduce((sum, calls) => sum + calls, 0));
  await limiter.close();
});

test("what has to be decided there goes there, after units have gone home", async () => {
  const { played, limiter } = playing();
  for (let call = 0; call < 20; call += 1) await limiter.limit({ policy: "hot", key: "a" });
  await limiter.limit({ policy: "hot", key: "a", idempotencyKey: "once" });
  expect(played.messages.at(-1)?.calls[0]?.giveBack).toBeDefined();
  expect(played.others).toEqual(["limit"]);
  // What needs no more than a message goes in one.
  const before = played.messages.length;
  await Promise.all(Array.from({ length: 5 }, () => limiter.limit({ policy: "off", key: "a" })));
  await Promise.all(Array.from({ length: 5 }, () => limiter.limit({ policy: "off", key: "a" })));
  await limiter.limit({ policy: "hot", key: "a", cost: 0 });
  expect([played.others.length, played.messages.length - before]).toEqual([1, 3]);
});

test.each([new Error("connection refused"), "silence" as const])(
  "when the limiter does not answer (%s), the policy decides, and before it is known the option",
  async (failure) => {
    const { played, limiter } = playing({ onFailure: "open", deadlineMs: 100 });
    played.failure = failure;
    expect(await limiter.limit({ policy: "hot", key: "a" })).toMatchObject({
      success: true,
      reason: "degraded",
      source: "fallback",
    });
    played.failure = undefined;
    for (const policy of ["hot", "open"]) await limiter.limit({ policy, key: "a" });
    played.failure = failure;
    expect(await limiter.limit({ policy: "hot", key: "b" })).toMatchObject({
      success: false,
      reason: "degraded",
    });
    expect(await limiter.limit({ policy: "open", key: "b" })).toMatchObject({
      success: true,
      reason: "degraded",
    });
  },
);

test.each([undefined, false])("several checks wait for one deadline, with atomic %s", async (atomic) => {
  const clock = manualClock();
  const played = new Played();
  const { transport } = played;
  const hanging = transportOf({
    reserve: (asked) => transport.call("reserve", asked),
    limitAll: () => new Promise(() => undefined),
  });
  const parts = { transport: hanging, time: clock, inBackground: () => undefined };
  const limiter = new RemoteLimiter(parts, { deadlineMs: 500 });
  const asked = { policy: "hot", key: "a" };
  // The units that are held of a key go home first, and that may get no answer either.
  for (let call = 0; call < 20; call += 1) await limiter.limit(asked);
  expect(limiter.isHolding).toBe(true);
  played.failure = "silence";
  let answered: unknown;
  const checks = [asked, { ...asked, key: "b" }];
  const all = limiter.limitAll({ checks, ...(atomic !== undefined && { atomic }) });
  void all.then((decisions) => (answered = decisions));
  await clock.advance(499);
  expect(answered).toBeUndefined();
  await clock.advance(1);
  expect(answered).toMatchObject({
    success: false,
    decisions: [{ reason: "degraded" }, { reason: "degraded" }],
  });
});

test("of several checks those with units or denials here are tried without a message", async () => {
  const { played, limiter } = playing();
  const [one, other] = [
    { policy: "hot", key: "a" },
    { policy: "hot", key: "b" },
  ];
  for (let call = 0; call < 30; call += 1) await limiter.limit(other);
  await limiter.limitAny({ checks: [other, one] });
  const asked = played.messages.length;
  for (let call = 0; call < 20; call += 1)
    expect(await limiter.limitAny({ checks: [other, one] })).toMatchObject({
      chosen: 0,
      decisions: [{ source: "isolate", key: "b" }],
    });
  expect([played.messages.length - asked, played.others.length]).toEqual([0, 0]);
});

test("a check that is not answered ends the call: no other one is charged", async () => {
  const { played, limiter } = playing();
  await limiter.limit({ policy: "hot", key: "warm" });
  await limiter.limit({ policy: "open", key: "warm" });
  played.failure = new Error("connection refused");
  const checks = [
    { policy: "hot", key: "a" },
    { policy: "open", key: "a" },
  ];
  const ended = { success: false, chosen: null, decisions: [{ reason: "degraded" }] };
  for (const idempotencyKey of [undefined, "once"]) {
    const call = { checks, ...(idempotencyKey !== undefined && { idempotencyKey }) };
    expect(await limiter.limitAny(call)).toMatchObject(ended);
    const reversed = await limiter.limitAny({ ...call, checks: checks.toReversed() });
    expect(reversed).toMatchObject({
      success: true,
      chosen: 0,
      decisions: [{ policy: "open", reason: "degraded" }],
    });
  }
});

test("a call that is no decision throws when there is no answer", async () => {
  const { played, limiter } = playing();
  played.failure = new Error("connection refused");
  const error: unknown = await limiter.peek({ policy: "hot", key: "a" }).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(LimiterError);
  expect(error).toMatchObject({ status: 503, code: "unavailable" });
});

test("a token that may not hold units makes each call by itself", async () => {
  const { played, limiter } = playing();
  played.failure = new Problem(LIMITER_PROBLEMS.forbidden, "the token has no scope reserve").toError();
  const refused: unknown = await limiter.limit({ policy: "hot", key: "a" }).catch((error: unknown) => error);
  // The one that the test plays refuses these too; a real one would not.
  expect(refused).toMatchObject({ status: 403 });
  played.failure = undefined;
  for (let call = 0; call < 10; call += 1)
    expect(await limiter.limit({ policy: "hot", key: "a" })).toMatchObject({ success: true });
  expect([played.messages.length, played.others.length]).toEqual([1, 11]);
});

test("when a policy has changed, all that is held under it goes home", async () => {
  const { played, limiter } = playing();
  for (let call = 0; call < 30; call += 1) await limiter.limit({ policy: "hot", key: "a" });
  played.version = "another";
  for (let call = 0; call < 10; call += 1) await limiter.limit({ policy: "hot", key: `other-${call}` });
  expect(played.messages.at(-1)?.known).toEqual({ hot: "another" });
  const asked = played.messages.length;
  await limiter.limit({ policy: "hot", key: "a" });
  expect(played.messages.length).toBe(asked + 1);
  await limiter.close();
  const returned = played.messages.flatMap(({ calls }) =>
    calls.flatMap((call) => call.giveBack?.returned ?? []),
  );
  expect(returned.map(({ key }) => key)).toContain("a");
});

test("a description says all that a holder needs, and refills no sooner than the policy does", () => {
  for (const [name, policy] of policies) {
    const described = describedPolicy(name, JSON.parse(JSON.stringify(describeForClient(policy))) as never);
    expect(described).toMatchObject({
      name,
      deadlineMs: policy.deadlineMs,
      localDecisions: policy.localDecisions,
      reservation: policy.reservation,
    });
    const [[rule], [own]] = [policy.rules, described.rules];
    for (const missing of [1, 2, 77, 99_999, 100_000]) {
      const exactMs = rule.algorithm.refillMs(rule.config, missing);
      const saidMs = own?.algorithm.refillMs(own.config, missing) ?? 0;
      expect(saidMs).toBeGreaterThanOrEqual(exactMs);
      expect(saidMs - exactMs).toBeLessThanOrEqual(1_000);
    }
  }
});

test("an answer that is no limiter's is no answer, and a problem is an error with all that it says", async () => {
  const answering = (response: Response) =>
    overHttp({ url: "https://a", token: "t", fetch: async () => response });
  const page = answering(new Response("<html>", { status: 502 }));
  await expect(page.call("peek", { policy: "a", key: "b" })).rejects.not.toBeInstanceOf(LimiterError);
  const problem = { type: "urn:weir:problem:not-allowed", title: "T", status: 422, detail: "D", errors: [] };
  const headers = { "content-type": "application/problem+json" };
  const refusing = answering(new Response(JSON.stringify(problem), { status: 422, headers }));
  await expect(refusing.call("limit", { key: "a" })).rejects.toMatchObject({
    status: 422,
    code: "not-allowed",
  });
});

test("a binding with the types of its class is one that a client takes", () => {
  const taken = (service: Service<typeof Limiter>): LimiterCalls => service;
  expect(taken).toBeTypeOf("function");
  expectTypeOf<ListedSchema>().toExtend<PolicyList>();
});
