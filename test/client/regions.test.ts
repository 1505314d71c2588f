/** A holder that its key's home object sends to the object in its region. */
import { expect, test } from "vitest";
import type { Holding } from "../../client/call-gate.ts";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { askAlone, type LimiterStub, returnUnits } from "../../client/transports/send-batch.ts";
import { locationHintOf, parsePolicies } from "../../core/policies/parse-policies.ts";
import type { LocationHint, Policy } from "../../core/policies/policy.ts";
import type { Answer, Reserved } from "../../core/protocol/answers.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { type BatchedCall, KNOWN_PROTOCOL, REGION_PROTOCOL } from "../../core/protocol/messages.ts";
import { objectName, regionalName } from "../../core/protocol/names.ts";

const POLICY = parsePolicies({ p: { algorithm: "token-bucket", limit: 1_000, window: "1s" } }).get(
  "p",
) as Policy;
const ADMITTED = {
  name: "p",
  success: true,
  limit: 1_000,
  remaining: 500,
  resetAfterMs: 500,
  retryAfterMs: 0,
  reason: "ok",
} as const;

const DENIED = { success: false, remaining: 0, retryAfterMs: 1_000, reason: "quota" } as const;

interface Sent extends BatchedCall {
  readonly to: LocationHint | "home";
}

/** An isolate, and the answers that it gets: what they reserve, that the call is the home object's, or none. */
function isolateIn(
  region: LocationHint | undefined,
  reserving: (sent: Sent) => (Partial<Reserved> & { readonly isDenied?: true }) | "askHome" | "lost",
) {
  const sent: Sent[] = [];
  let nowMs = 1_000_000;
  const answer = (call: Sent): Answer | undefined => {
    const said = reserving(call);
    if (said === "lost") return undefined;
    if (said === "askHome") return { askHome: true };
    const { isDenied, ...reserved } = said;
    const rules = [isDenied === true ? { ...ADMITTED, ...DENIED } : ADMITTED];
    if (call.reserve === undefined) return { rules };
    return { rules, reserved: { ttlMs: 2_000, isNew: true, units: { p: 0 }, ...reserved } };
  };
  const holding = {
    time: { nowMs: () => nowMs, after: () => () => undefined },
    inBackground: () => undefined,
    region: () => region,
    objects: {
      unanswered: () => undefined,
      call: async (_: unknown, __: string, call: BatchedCall, ___?: number, to?: LocationHint) => {
        const message = { ...call, to: to ?? ("home" as const) };
        sent.push(message);
        // Calls that are made at once are all sent before the first one is answered.
        await new Promise((done) => setImmediate(done));
        if (call.giveBack !== undefined) return { answer: null };
        const answered = answer(message);
        return answered && { answer: answered };
      },
    },
  } as unknown as Holding;
  const cache = new ReservationCache(() => "isolate");
  const local = new LocalLimiter(cache);
  const call = async (cost = 1) => {
    nowMs += 10;
    return await local.limit(holding, POLICY, "key", cost);
  };
  return { sent, cache, local, call, holding, pass: (ms: number) => void (nowMs += ms) };
}

/** What the home object answers. `undefined`: another one is asked. */
function asked({ to, reserve }: Sent): Partial<Reserved> | undefined {
  if (to !== "home") return undefined;
  return reserve?.mayAskRegion === true ? { asksRegion: true } : {};
}

async function calls(call: () => Promise<unknown>, count: number): Promise<void> {
  for (let made = 0; made < count; made += 1) await call();
}

test("goes there as soon as it is told so, and says that it asks a region's object", async () => {
  const { sent, call } = isolateIn("enam", (message) => asked(message) ?? {});
  await calls(call, 6);
  expect(sent.find(({ reserve }) => reserve !== undefined)?.reserve).toMatchObject({ mayAskRegion: true });
  const there = sent.filter(({ to }) => to === "enam");
  expect(there.length).toBeGreaterThan(0);
  for (const { reserve, limit } of there)
    expect(reserve ?? limit).toMatchObject({ region: "enam", protocol: REGION_PROTOCOL });
  expect(sent.at(-1)?.to).toBe("enam");
});

test("says who it is from its first call on, so that it goes there with the second one", async () => {
  const { sent, call } = isolateIn("enam", (message) => asked(message) ?? {});
  await calls(call, 2);
  expect(sent[0]?.reserve).toMatchObject({
    cost: 1,
    mayAskRegion: true,
    rules: { p: { wanted: 0, kept: 0 } },
  });
  expect(sent.map(({ to }) => to)).toEqual(["home", "enam", "enam"]);
});

test("asks there for units as soon as it is sent there: they come when that object has any, whoever calls by then", async () => {
  const { sent, call } = isolateIn("enam", (message) => asked(message) ?? {});
  await call();
  expect(sent.map(({ to, reserve }) => [to, reserve?.cost])).toEqual([
    ["home", 1],
    ["enam", 0],
  ]);
  expect(sent[0]?.reserve?.near).toBe("enam");
});

test.each([
  ["always", "enam"],
  ["off", "home"],
  ["auto", "home"],
] as const)("with regions = %s the first call goes to %s", async (regions, to) => {
  const { sent, local, holding } = isolateIn("enam", () => ({}));
  await local.limit(holding, { ...POLICY, regions }, "key", 1);
  expect(sent.map((each) => each.to)).toEqual([to]);
  expect(sent[0]?.reserve?.mayAskRegion).toBe(regions === "auto" ? true : undefined);
});

test("a holder whose policy has no regions any more asks the home object, and returns what it has of a region", async () => {
  const answer = (message: Sent) => asked(message) ?? { units: { p: 50 } };
  const { sent, cache, call, local, holding } = isolateIn("enam", answer);
  await calls(call, 6);
  const held = sent.length;
  const changed: Policy = { ...POLICY, regions: "off", inForce: { version: 1, fields: "{}" } };
  await local.limit(holding, changed, "key", 1);
  expect(sent.slice(held).map(({ to, giveBack }) => [to, giveBack !== undefined])).toEqual([
    ["enam", true],
    ["home", false],
  ]);
  expect(cache.find(POLICY, "key")?.region).toBeUndefined();
});

test("a call that the home object denies while it sends the holder there is decided there", async () => {
  const { sent, call } = isolateIn("enam", (message) =>
    message.to === "home" ? { asksRegion: true, isDenied: true } : {},
  );
  expect(await call()).toMatchObject({ success: true, source: "object" });
  expect(sent.map(({ to }) => to)).toEqual(["home", "enam", "enam"]);
  expect(await call()).toMatchObject({ success: true });
});

test("before the first answer a later call sends no other message to the home object", async () => {
  const { sent, call } = isolateIn("enam", (message) => asked(message) ?? {});
  await Promise.all([call(), call(), call()]);
  expect(sent.filter(({ to }) => to === "home")).toHaveLength(1);
});

test("a hot key whose first message has no answer is asked for there, and nothing is given back to the late object", async () => {
  const { sent, call, cache } = isolateIn("enam", ({ to }) => (to === "home" ? "lost" : {}));
  for (let made = 0; made < 4; made += 1) await call();
  expect(sent.at(-1)?.to).toBe("enam");
  expect(cache.endDue(-Infinity)).toEqual([]);
  expect(await call()).toMatchObject({ success: true, source: "object" });
});

test("an object there that answers nothing for 3 s is left for the home object", async () => {
  let isLost = false;
  const { sent, call, pass } = isolateIn("enam", (message) => asked(message) ?? (isLost ? "lost" : {}));
  await calls(call, 3);
  isLost = true;
  const end = sent.length;
  await calls(call, 20);
  expect(new Set(sent.slice(end).map(({ to }) => to))).toEqual(new Set(["enam"]));
  pass(3_000);
  await calls(call, 2);
  expect(sent.at(-1)?.to).toBe("home");
});

test("a bucket of the home object is given up there when the holder goes to its region", async () => {
  const buckets = { p: { rate: { units: 3_000, windowMs: 1_000_000 }, most: 6 } };
  let isMoving = false;
  const { sent, call, cache } = isolateIn("enam", ({ to }) => {
    if (to !== "home") return {};
    return isMoving ? { isNew: false, asksRegion: true } : { isNew: false, units: { p: 6 }, buckets };
  });
  await calls(call, 7);
  // Its bucket is empty, and the next call asks.
  isMoving = true;
  while (sent.at(-1)?.to !== "enam") await call();
  const last = sent.findLast(({ to, reserve }) => to === "home" && reserve !== undefined)?.reserve;
  expect(last?.rules["p"]).toMatchObject({ kept: 6, rate: 3_000 });
  const [given] = cache.endDue(-Infinity);
  const { holder, region, left } = given?.returned ?? {};
  expect([holder, region, left]).toEqual([last?.holder, undefined, { p: 0 }]);
  expect(given?.returned.turn).toBeGreaterThan(last?.turn ?? Infinity);
});

test("while its object says nothing its bucket denies, with its own wait, until it ends", async () => {
  const buckets = { p: { rate: { units: 5_000, windowMs: 1_000_000 }, most: 6 } };
  let isLost = false;
  const { call, pass } = isolateIn("enam", () =>
    isLost ? "lost" : { isNew: false, units: { p: 6 }, buckets },
  );
  await calls(call, 4);
  isLost = true;
  const decided: Decision[] = [];
  for (let made = 0; made < 20; made += 1) decided.push((await call()) as Decision);
  expect(new Set(decided.map(({ reason }) => reason))).toEqual(new Set(["ok", "quota"]));
  const denied = decided.filter(({ success }) => !success);
  for (const each of denied) expect(each).toMatchObject({ remaining: 0 });
  // The first one was sent, and may have been charged there.
  expect(denied.map(({ source }) => source)).toEqual(
    denied.map((_, made) => (made === 0 ? "fallback" : "isolate")),
  );
  // Calls come each 10 ms, and each is told the same instant.
  const waits = denied.map(({ retryAfterMs }, index) => (retryAfterMs ?? 0) + 10 * index);
  expect([waits.length > 10, new Set(waits).size]).toEqual([true, 1]);
  pass((denied.at(-1)?.retryAfterMs ?? 0) - 20);
  expect(await call()).toMatchObject({ success: false });
  expect(await call()).toMatchObject({ success: true, source: "isolate" });
  // What costs more than one unit, it does not know.
  expect(await call(6)).toMatchObject({ reason: "degraded" });
  pass(2_000);
  expect(await call()).toMatchObject({ reason: "degraded" });
});

test("a unit that comes while its object says nothing is spent", async () => {
  const buckets = { p: { rate: { units: 5_000, windowMs: 1_000_000 }, most: 6 } };
  let messages = 0;
  let isLost = false;
  const isolate = isolateIn("enam", () => {
    if (!isLost) return { isNew: false, units: { p: 6 }, buckets };
    messages += 1;
    isolate.pass(400);
    return "lost";
  });
  await calls(isolate.call, 4);
  isLost = true;
  while (messages === 0) expect(await isolate.call()).toMatchObject({ success: true, source: "isolate" });
});

test("stays where it does not know its region", async () => {
  const { sent, call } = isolateIn(undefined, () => ({ asksRegion: true }));
  await calls(call, 6);
  for (const { reserve } of sent) expect(reserve?.mayAskRegion).toBeUndefined();
  expect(new Set(sent.map(({ to }) => to))).toEqual(new Set(["home"]));
});

test("a call that the region's object does not decide is decided by the home object, and further ones for 2 s", async () => {
  const { sent, call, pass } = isolateIn("enam", (message) => asked(message) ?? "askHome");
  for (let made = 0; made < 6; made += 1) expect(await call()).toMatchObject({ success: true });
  const made = sent.filter(({ giveBack }) => giveBack === undefined);
  const first = made.findIndex(({ to }) => to === "enam");
  expect(made.length).toBeGreaterThan(first + 1);
  for (const { to, reserve } of made.slice(first + 1))
    expect([to, reserve?.mayAskRegion]).toEqual(["home", undefined]);
  pass(2_100);
  await calls(call, 2);
  const again = sent.filter(({ to, giveBack }) => to === "enam" && giveBack === undefined);
  expect(again.length).toBeGreaterThan(1);
});

test("calls made at once that the region's object does not decide are all decided by the home object", async () => {
  let isAsking = false;
  const { sent, call } = isolateIn("enam", (message) => asked(message) ?? (isAsking ? "askHome" : {}));
  while (sent.at(-1)?.to !== "enam") await call();
  await call();
  isAsking = true;
  for (const decision of await Promise.all(Array.from({ length: 10 }, () => call(40))))
    expect(decision).toMatchObject({ success: true, source: "object" });
  expect(sent.filter(({ to, limit }) => to === "enam" && limit?.cost === 40).length).toBeGreaterThan(1);
  expect(sent.at(-1)?.to).toBe("home");
});

test("units of a region's object go back to it, and not to the home object with the next call there", async () => {
  const { call, cache, local, holding } = isolateIn(
    "enam",
    (message) => asked(message) ?? { units: { p: 20 } },
  );
  await calls(call, 8);
  expect(local.end(POLICY, "key")).toEqual([]);
  const ended = cache.endDue(Infinity);
  expect(ended.map(({ returned }) => returned.region)).toEqual(["enam"]);
  const given: unknown[] = [];
  const objects = {
    call: (...[, , { giveBack }, , region]: Parameters<typeof holding.objects.call>) =>
      given.push([giveBack, region]),
  };
  await returnUnits(objects as unknown as Parameters<typeof returnUnits>[0], ended);
  expect(given).toMatchObject([[{ returned: [{ region: "enam" }] }, "enam"]]);
});

test("an object of an older version does not decide as one of a region", async () => {
  const refused = JSON.stringify({ unsupported: { protocol: KNOWN_PROTOCOL - 1 } });
  const stub = new Proxy({} as LimiterStub, {
    get: (_, method) => (method === "limit" ? undefined : () => Promise.resolve(refused)),
  });
  const of = { policy: "p", key: "key", cost: 1, region: "enam", protocol: REGION_PROTOCOL } as const;
  const reserve = { ...of, holder: "h", turn: 1, ttlMs: 1_000, isShort: false, rules: {} };
  expect(await askAlone(stub, { reserve })).toEqual({ askHome: true });
  expect(await askAlone(stub, { limit: of })).toEqual({ askHome: true });
});

test("no home object has the name of a region's object", () => {
  for (const key of ["key", "region/enam/key/key", "enam/key"])
    for (const objects of ["per-key", 4] as const) {
      const home = objectName({ name: "p", objects }, key);
      const there = regionalName(home, "enam");
      expect(there).not.toBe(home);
      expect(there.startsWith("p/region/enam/")).toBe(true);
      expect(/^p\/(key|shared)\//.test(there)).toBe(false);
    }
});

test.each([
  [{ continent: "NA", longitude: "-122.4" }, "wnam"],
  [{ continent: "NA", longitude: "-77.5" }, "enam"],
  [{ continent: "EU", longitude: "21.0" }, "eeur"],
  [{ continent: "EU" }, "weur"],
  [{ continent: "AS", longitude: "55.3" }, "me"],
  [{ continent: "AS", longitude: "139.7" }, "apac"],
  [{ continent: "T1" }, undefined],
  [{}, undefined],
])("a request from %o is near %s", (origin, hint) => {
  expect(locationHintOf(origin)).toBe(hint);
});
