import { runInDurableObject } from "cloudflare:test";
/** The object of a key in a region, in the real runtime: it gets its bucket from the key's home object, and cuts from it. */
import { env } from "cloudflare:workers";
import { expect, test } from "vitest";
import { askAlone, type LimiterNamespace } from "../../../client/transports/send-batch.ts";
import type { AskHome, Decided } from "../../../core/protocol/answers.ts";
import type { ReserveCall } from "../../../core/protocol/calls.ts";
import { REGION_PROTOCOL } from "../../../core/protocol/messages.ts";
import { objectName, regionalName } from "../../../core/protocol/names.ts";
import { freshKey } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const POLICY = "fast";
const LIMIT = 1_000_000;
const { OBJECTS } = env as unknown as { OBJECTS: LimiterNamespace };
const ASK_HOME: AskHome = { askHome: true };

function placesOf(key: string) {
  const home = objectName({ name: POLICY, objects: "per-key" }, key);
  const ask = (name: string, reserve: ReserveCall) => askAlone(OBJECTS.getByName(name), { reserve });
  const call = (holder: string, turn: number, more: Partial<ReserveCall> = {}, kept = 0): ReserveCall => ({
    policy: POLICY,
    key,
    cost: 1,
    holder,
    turn,
    ttlMs: 2_000,
    isShort: false,
    takesBucket: false,
    rules: { [POLICY]: { used: 0, kept, wanted: 100, demand: 100 } },
    ...more,
  });
  return {
    /** Another region's object says that it has so many holders. */
    hasHolders: (holders: number) =>
      ask(home, call("elsewhere", Date.now(), { cost: 0, takesBucket: true, holders })),
    home: (holder: string, turn: number, more?: Partial<ReserveCall>) => ask(home, call(holder, turn, more)),
    region: async (holder: string, turn: number, more: Partial<ReserveCall> = {}, kept = 0) => {
      const there = { region: "weur" as const, protocol: REGION_PROTOCOL };
      return await ask(regionalName(home, "weur"), call(holder, turn, { ...there, ...more }, kept));
    },
    stub: () => OBJECTS.getByName(regionalName(home, "weur")) as unknown as DurableObjectStub,
  };
}

test("a home object sends holders to their regions when they are many, and only those that know theirs", async () => {
  const { hasHolders, home } = placesOf(freshKey());
  const knows = { mayAskRegion: true } as const;
  const before = (await home("one", 1, knows)) as Decided;
  expect(before.reserved?.asksRegion).toBeUndefined();
  await hasHolders(800);
  const told = (await home("one", 2, knows)) as Decided;
  expect(told).toMatchObject({ reserved: { asksRegion: true }, rules: [{ success: true }] });
  expect(((await home("two", 1)) as Decided).reserved?.asksRegion).toBeUndefined();
});

test("a region's object decides, and gives buckets of its own bucket, as long as its key has many holders", async () => {
  const key = freshKey();
  const { hasHolders, region } = placesOf(key);
  expect(await region("one", 1)).toEqual(ASK_HOME);
  await hasHolders(800);
  await expect
    .poll(() => region("one", Date.now()))
    .toMatchObject({ rules: [{ success: true, limit: LIMIT }] });
  let reserved: Decided["reserved"];
  // The region's bucket grows with what its holders need.
  await expect
    .poll(async () => ({ reserved } = (await region("two", Date.now())) as Decided).reserved?.buckets)
    .toBeDefined();
  const { rate, most = 0 } = reserved?.buckets?.[POLICY] ?? {};
  expect(rate?.units).toBeGreaterThan(0);
  expect(most).toBeGreaterThan(0);
  // Those units are the home object's no more.
  expect(await objectOf(POLICY, key).remaining()).toBeLessThanOrEqual(LIMIT - most);
});

test("a call that costs more than a region can have is the home object's", async () => {
  const { hasHolders, region } = placesOf(freshKey());
  await hasHolders(800);
  await expect.poll(() => region("one", Date.now())).toMatchObject({ rules: [{ success: true }] });
  expect(await region("one", Date.now() + 1, { cost: LIMIT })).toEqual(ASK_HOME);
});

test("a region's object stores nothing, and after it has lost its memory knows none of its holders", async () => {
  const { hasHolders, region, stub } = placesOf(freshKey());
  await hasHolders(800);
  await expect.poll(() => region("one", Date.now())).toMatchObject({ rules: [{ success: true }] });
  const { reserved } = (await region("one", Date.now() + 1)) as Decided;
  expect(reserved?.isNew).toBe(false);
  const isEmpty = await runInDurableObject(
    stub(),
    async (_, { storage }) => (await storage.list()).size === 0,
  );
  expect(isEmpty).toBe(true);
  await runInDurableObject(stub(), (_, state) => state.abort("crashed by a test")).catch(() => undefined);
  const after = (await region("one", Date.now() + 2, {}, 10)) as Decided;
  expect(after.reserved?.isNew).toBe(true);
});
