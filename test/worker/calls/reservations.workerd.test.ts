/** `POST /v1/reservations`: units of many keys, held by a client in its caller's process. */
import { expect, test } from "vitest";
import type { Reserved, Slots } from "../../../core/protocol/answers.ts";
import type { ReservationsReply } from "../../../core/protocol/reservation-messages.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, limit, report } from "../../support/limiter.ts";

async function send(calls: readonly object[], known: object = {}, token?: string) {
  const { status, body } = await call("/v1/reservations", { token, body: { protocol: 1, known, calls } });
  return { status, body, ...(body as unknown as ReservationsReply) };
}

async function versionOf(policy: string): Promise<Record<string, string>> {
  const { policies } = await send([{ limit: { policy, key: freshKey(), cost: 0 } }]);
  return { [policy]: policies[policy]?.version ?? "" };
}

const holding = (policy: string, key: string, fields: object = {}) => ({
  reserve: {
    policy,
    key,
    cost: 0,
    holder: "h",
    turn: 1,
    ttlMs: 1_000,
    isShort: false,
    rules: { [policy]: { used: 0, kept: 0, wanted: 100 } },
    ...fields,
  },
});

test("a client that knows nothing gets a decision and what it has to know, in one message", async () => {
  const key = freshKey();
  const { status, answers, policies } = await send([{ limit: { policy: "ahead", key } }]);
  expect(status).toBe(200);
  expect(answers).toMatchObject([{ decision: { success: true, policy: "ahead", key, remaining: 9_999 } }]);
  expect(policies["ahead"]).toMatchObject({
    deadlineMs: 20_000,
    localDecisions: { admits: true, denies: true },
    rules: [{ name: "ahead", unit: "requests", capacity: 10_000 }],
  });
  const again = await send([{ limit: { policy: "ahead", key } }], await versionOf("ahead"));
  expect(again.policies).toEqual({});
  expect(again.answers).toMatchObject([{ rules: [{ success: true, remaining: 9_998 }] }]);
});

test("first calls of clients make the isolate hold nothing: from then on each client has its own units", async () => {
  const key = freshKey();
  for (let calls = 1; calls <= 5; calls += 1) {
    const { answers } = await send([{ limit: { policy: "ahead", key } }]);
    expect(answers).toMatchObject([{ decision: { source: "object", remaining: 10_000 - calls } }]);
  }
  expect((await report("ahead", key)).body).toMatchObject({ outstanding: 0, remaining: 9_995 });
});

test("units that a client holds are missing to others, and those that it gives back are not", async () => {
  const key = freshKey();
  const known = await versionOf("ahead");
  const { answers } = await send([holding("ahead", key)], known);
  const [answer] = answers as unknown as { reserved: { units: Record<string, number>; isNew: boolean } }[];
  const units = answer?.reserved.units["ahead"] ?? 0;
  expect(units).toBeGreaterThan(0);
  expect((await report("ahead", key)).body).toMatchObject({ outstanding: units, remaining: 10_000 - units });
  const returned = [{ key, holder: "h", turn: 2, used: { ahead: 1 } }];
  expect((await send([{ giveBack: { policy: "ahead", returned } }], known)).answers).toEqual([null]);
  expect((await report("ahead", key)).body).toMatchObject({ outstanding: 0, remaining: 9_999 });
});

test("a holder belongs to the token: another one neither returns its units nor gets them", async () => {
  const key = freshKey();
  const known = await versionOf("ahead");
  await send([holding("ahead", key)], known);
  const { outstanding } = (await report("ahead", key)).body as { outstanding: number };
  expect(outstanding).toBeGreaterThan(0);
  const returned = [{ key, holder: "h", turn: 9, used: { ahead: 0 } }];
  await send([{ giveBack: { policy: "ahead", returned } }], known, TOKENS.reserve);
  expect((await report("ahead", key)).body).toMatchObject({ outstanding });
  // It says that it keeps what the other one has. None of that is its own.
  const rules = { ahead: { used: 0, kept: outstanding, wanted: outstanding } };
  const { answers } = await send([holding("ahead", key, { turn: 10, rules })], known, TOKENS.reserve);
  const [taken] = answers as unknown as { reserved: { isNew: boolean; units: Record<string, number> } }[];
  expect(taken?.reserved.isNew).toBe(true);
  const granted = taken?.reserved.units["ahead"] ?? 0;
  expect((await report("ahead", key)).body).toMatchObject({ outstanding: outstanding + granted });
});

test("each call is checked as any other is, and one that is refused is refused by itself", async () => {
  const key = freshKey();
  const { answers } = await send([
    { limit: { policy: "nowhere", key } },
    { limit: { policy: "export", key } },
    { limit: { policy: "slow", key, cost: { apples: 1 } } },
    { limit: { policy: "slow", key, priority: "utmost" } },
    { limit: { policy: "slow", key } },
  ]);
  expect(answers).toMatchObject([
    { problem: { status: 404, code: "policy-not-found" } },
    { problem: { status: 422, errors: [{ pointer: "/policy" }] } },
    { problem: { status: 422, errors: [{ pointer: "/cost/apples" }] } },
    { problem: { status: 422, errors: [{ pointer: "/priority" }] } },
    { decision: { success: true, remaining: 4 } },
  ]);
  const foreign = await send(
    [holding("ahead", key, { rules: { other: { used: 0, kept: 0, wanted: 1 } } })],
    await versionOf("ahead"),
  );
  expect(foreign.answers).toMatchObject([
    { problem: { status: 422, errors: [{ pointer: "/rules/other" }] } },
  ]);
});

test.each<readonly [body: object, pointer: string]>([
  [{ protocol: 2, calls: [] }, "/protocol"],
  [{ protocol: 1, calls: [] }, "/calls"],
  [{ protocol: 1, calls: [{}] }, "/calls/0"],
  [{ protocol: 1, calls: [{ giveBack: { policy: "slow", returned: [] } }] }, "/calls/0/giveBack/returned"],
  [{ protocol: 1, calls: [{ limit: { policy: "slow", key: "" } }] }, "/calls/0/limit/key"],
  [{ protocol: 1, calls: [holding("slow", "a", { turn: 0 })] }, "/calls/0/reserve/turn"],
  [{ protocol: 1, calls: [holding("slow", "a", { holder: "h".repeat(65) })] }, "/calls/0/reserve/holder"],
  [{ protocol: 1, calls: [holding("slow", "a", { takesBucket: "yes" })] }, "/calls/0/reserve/takesBucket"],
  ...[
    { demand: -1 },
    { demand: 1e10 },
    { rate: 0.5 },
    { rate: -1 },
    { level: -1 },
    { left: 1e10 },
    { burst: 1 },
  ].map((field) => {
    const rules = { slow: { used: 0, kept: 0, wanted: 0, ...field } };
    const pointer = `/calls/0/reserve/rules/slow/${Object.keys(field).join("")}`;
    return [{ protocol: 1, calls: [holding("slow", "a", { rules })] }, pointer] as const;
  }),
  [
    {
      protocol: 1,
      calls: [
        {
          giveBack: {
            policy: "slow",
            returned: [{ key: "a", holder: "h", turn: 1, used: {}, left: { slow: -1 } }],
          },
        },
      ],
    },
    "/calls/0/giveBack/returned/0/left/slow",
  ],
])("a message that is malformed is refused as a whole: %j", async (body, pointer) => {
  const answered = await call("/v1/reservations", { body });
  expect(answered.status).toBe(422);
  expect(answered.body["errors"]).toContainEqual(expect.objectContaining({ pointer }));
});

test("it needs the scope reserve", async () => {
  const { status } = await send([{ limit: { policy: "slow", key: freshKey() } }], {}, TOKENS.limit);
  expect(status).toBe(403);
});

test("of a policy that has changed, what was used counts, what is kept stays held until the client says what it used", async () => {
  const key = freshKey();
  const known = await versionOf("ahead");
  await send([holding("ahead", key)], known);
  const kept = { rules: { ahead: { used: 3, kept: 5, wanted: 100 } } };
  const stale = await send([holding("ahead", key, { turn: 2, cost: 1, ...kept })], { ahead: "of before" });
  expect(stale.answers).toMatchObject([{ decision: { success: true, remaining: 9_991 } }]);
  expect(Object.keys(stale.policies)).toEqual(["ahead"]);
  expect((await report("ahead", key)).body).toMatchObject({ outstanding: 5 });
  // Until the answer was there, the client spent 2 of those.
  const returned = [{ key, holder: "h", turn: 3, used: { ahead: 5 } }];
  await send([{ giveBack: { policy: "ahead", returned } }], known);
  expect((await report("ahead", key)).body).toMatchObject({ outstanding: 0, remaining: 9_994 });
});

test("a refill under an earlier version is granted nothing, and is answered null", async () => {
  const key = freshKey();
  const known = await versionOf("ahead");
  await send([holding("ahead", key)], known);
  const kept = { rules: { ahead: { used: 3, kept: 7, wanted: 100 } } };
  const stale = await send([holding("ahead", key, { turn: 2, ...kept })], { ahead: "of before" });
  expect(stale.answers).toEqual([null]);
  expect((await report("ahead", key)).body).toMatchObject({ outstanding: 7, remaining: 9_990 });
});

test("a policy may refuse units to clients: they are decided call by call, and hold nothing", async () => {
  const key = freshKey();
  const first = await send([{ limit: { policy: "inside", key, cost: 0 } }]);
  const { version, localDecisions } = first.policies["inside"] ?? {};
  expect(localDecisions).toEqual({ admits: false, denies: true });
  const { answers } = await send([holding("inside", key, { cost: 2 })], { inside: version });
  expect(answers).toMatchObject([{ decision: { success: true, remaining: 9_998 } }]);
  expect((await report("inside", key)).body).toMatchObject({ outstanding: 0, remaining: 9_998 });
});

test("a far client gets a bucket of its own, and gives back what it has not used of it", async () => {
  const key = freshKey();
  const first = await send([{ limit: { policy: "brief", key, cost: 0 } }]);
  const { version, rules: described } = first.policies["brief"] ?? {};
  expect(described).toMatchObject([{ isCuttable: true }]);
  const known = { brief: version };
  const asking = { used: 0, kept: 0, wanted: 100, demand: 100.5 };
  const { answers } = await send(
    [holding("brief", key, { takesBucket: true, rules: { brief: asking } })],
    known,
  );
  const [answer] = answers as unknown as { reserved: Reserved }[];
  const { rate, most } = answer?.reserved.buckets?.["brief"] ?? { rate: { units: 0 }, most: 0 };
  expect(rate.units).toBeGreaterThan(0);
  const has = { ...asking, kept: most, rate: rate.units, level: most };
  const again = await send(
    [holding("brief", key, { turn: 2, takesBucket: true, rules: { brief: has } })],
    known,
  );
  expect(again.answers).toMatchObject([{ reserved: { isNew: false, buckets: { brief: { most } } } }]);
  const { outstanding } = (await report("brief", key)).body as { outstanding: number };
  expect(outstanding).toBeGreaterThanOrEqual(most);
  const returned = [{ key, holder: "h", turn: 3, used: { brief: 0 }, left: { brief: most } }];
  expect((await send([{ giveBack: { policy: "brief", returned } }], known)).answers).toEqual([null]);
  expect((await report("brief", key)).body).toMatchObject({ outstanding: 0 });
});

test("a client of an older version says nothing of buckets, and gets none", async () => {
  const key = freshKey();
  const { answers } = await send([holding("ahead", key)], await versionOf("ahead"));
  expect(Object.keys((answers as unknown as { reserved: Reserved }[])[0]?.reserved ?? {})).not.toContain(
    "buckets",
  );
});

test("a client decides nothing where calls are shed, lease units, or need no object", async () => {
  const names = ["export", "slow"];
  const { policies } = await send(names.map((policy) => ({ limit: { policy, key: freshKey(), cost: 0 } })));
  expect(policies["export"]?.localDecisions).toEqual({ admits: false, denies: false });
});

test("a look takes nothing, and sees what callers before it took", async () => {
  const key = freshKey();
  await limit("slow", key, { cost: 2 });
  const { answers } = await send([{ limit: { policy: "slow", key, cost: 0 } }], await versionOf("slow"));
  expect(answers).toMatchObject([{ decision: { success: true, remaining: 3 } }]);
});

test.each(["ahead", "hot-slots"])(
  "a client gets none of %s that it would still have when an override of the key begins",
  async (policy) => {
    const key = freshKey();
    const known = await versionOf(policy);
    const starting = async (inMs: number) => {
      const startsAt = new Date(Date.now() + inMs).toISOString();
      const path = `/v1/policies/${policy}/overrides/${key}`;
      expect((await call(path, { method: "PUT", body: { limit: 1, startsAt } })).status).toBe(200);
    };
    let memory: string | undefined;
    const got = async (holder: string, turn: number) => {
      const said = {
        heard: 0,
        kept: 0,
        leased: 0,
        wanted: 5,
        granted: 0,
        released: 0,
        ...(memory && { memory }),
      };
      const slots = { policy, key, holder: holder.repeat(22), turn, ...said };
      const { answers } = await send(
        [policy === "ahead" ? holding(policy, key, { holder }) : { slots }],
        known,
      );
      const [answer] = answers as unknown as ({ reserved?: Reserved; slots?: Slots["slots"] } | null)[];
      memory = answer?.slots?.memory;
      return answer?.reserved?.units[policy] ?? answer?.slots?.given?.more ?? 0;
    };
    await starting(60_000);
    // The first message on slots says which memory answers.
    expect((await got("e", 1)) + (await got("e", 2))).toBeGreaterThan(0);
    await starting(9_000);
    expect((await got("l", 1)) + (await got("l", 2))).toBe(0);
  },
);
