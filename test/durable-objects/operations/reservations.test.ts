import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import type { Decided } from "../../../core/protocol/answers.ts";
import type { ReserveCall } from "../../../core/protocol/calls.ts";
import { ownKey } from "../../../core/protocol/names.ts";
import { FEW_UNITS, heldMs, spendableMs } from "../../../core/reservations/sizing.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

/** Refills that no test sees; 100,000 units, of which one holder may have 100. */
const UNITS = 100_000;
const WHOLE = { algorithm: "token-bucket", limit: UNITS, window: "30d" };
const TTL_MS = 1_000;
const POLICIES = parsePolicies({
  brief: { ...WHOLE, reservation: { ttl: TTL_MS } },
  auto: WHOLE,
  log: { algorithm: "sliding-log", limit: UNITS, window: "30d", reservation: { ttl: TTL_MS } },
  spaced: { algorithm: "sliding-log", limit: UNITS, window: "30d", minInterval: "1s" },
  hammered: { algorithm: "sliding-log", limit: UNITS, window: "30d", countDenied: true },
  off: { ...WHOLE, reservation: "off" },
  small: { ...WHOLE, limit: 1_000, window: "10s", reservation: { ttl: TTL_MS } },
});
const KEY = "key";
const database = new Database();
afterEach(() => database.clear());

/** An object with a clock that is set by hand. */
function start(policy: string) {
  const clock = { ms: 0 };
  const object = new SimulatedObject(database, POLICIES, () => clock.ms);
  /** Units that nobody holds and nobody used. */
  const free = () => (JSON.parse(object.limit(policy, KEY, 0)) as Decided).rules[0]?.remaining ?? 0;
  return {
    clock,
    object,
    free,
    message: (fields: Message): ReserveCall => messageTo(policy, fields),
    reserve: (fields: Message) => JSON.parse(object.reserve(messageTo(policy, fields))) as Decided,
    giveBack: (turn: number, used: number, holder = "a") =>
      object.giveBack(policy, [{ key: KEY, holder, turn, used: { [policy]: used } }]),
  };
}

interface Message {
  readonly turn: number;
  readonly cost?: number;
  readonly holder?: string;
  readonly used?: number;
  readonly kept?: number;
  readonly wanted?: number;
  readonly ttlMs?: number;
}

function messageTo(
  policy: string,
  { turn, cost = 0, holder = "a", used = 0, kept = 0, wanted = 50, ttlMs = TTL_MS }: Message,
): ReserveCall {
  const rules = { [policy]: { used, kept, wanted } };
  return { policy, key: KEY, cost, holder, turn, ttlMs, isShort: false, rules };
}

const grantedIn = ({ reserved }: Decided, policy: string) => reserved?.units[policy] ?? 0;
test("what is granted is out of reach for others, and a cost is decided beside it", () => {
  const { free, reserve } = start("brief");
  const answer = reserve({ turn: 1, cost: 3 });
  expect(answer.rules).toMatchObject([{ success: true }]);
  expect(answer.reserved).toMatchObject({ ttlMs: TTL_MS, isNew: true, units: { brief: 50 } });
  expect(free()).toBe(UNITS - 3 - 50);
});

test("used units are debited, kept ones stay apart, and the others are free again", () => {
  const { free, reserve } = start("brief");
  reserve({ turn: 1 });
  const answer = reserve({ turn: 2, used: 10, kept: 15, wanted: 20 });
  expect(answer.reserved).toMatchObject({ ttlMs: TTL_MS, isNew: false, units: { brief: 5 } });
  expect(free()).toBe(UNITS - 10 - 20);
});

test("a cost that needs units which its own holder has brings them home and is admitted", () => {
  const { free, reserve } = start("brief");
  reserve({ turn: 1 });
  expect(reserve({ turn: 2, cost: UNITS, wanted: 0 }).rules).toMatchObject([{ success: true, remaining: 0 }]);
  expect(free()).toBe(0);
});

test("a message that comes twice or after a later one settles nothing and reserves nothing", () => {
  const { free, object, message, reserve, giveBack } = start("brief");
  reserve({ turn: 1 });
  const second = message({ turn: 2, used: 10, kept: 15, wanted: 20 });
  object.reserve(second);
  const before = free();
  for (const late of [second, message({ turn: 1 }), message({ turn: 2, used: 40, wanted: 90 })]) {
    expect(JSON.parse(object.reserve(late))).not.toHaveProperty("reserved");
    expect(free()).toBe(before);
  }
  giveBack(3, 10);
  expect(free()).toBe(UNITS - 10);
});

test("a caller whose message was overtaken is answered, and charged once", () => {
  const { free, reserve } = start("brief");
  reserve({ turn: 2, cost: 1 });
  expect(reserve({ turn: 1, cost: 7 })).toEqual({ rules: [expect.objectContaining({ success: true })] });
  expect(free()).toBe(UNITS - 1 - 50 - 7);
});

test("what a holder gives back is free at once, and late or twice changes nothing", () => {
  const { free, reserve, giveBack } = start("brief");
  reserve({ turn: 1 });
  expect(free()).toBe(UNITS - 50);
  giveBack(2, 10);
  expect(free()).toBe(UNITS - 10);
  for (const turn of [2, 1]) {
    giveBack(turn, 30);
    expect(free()).toBe(UNITS - 10);
  }
});

test("a message that was sent before the end and comes after it brings nothing back to life", () => {
  const { free, reserve, giveBack } = start("brief");
  reserve({ turn: 1 });
  giveBack(3, 10);
  expect(reserve({ turn: 2, used: 5, kept: 45 })).not.toHaveProperty("reserved");
  expect(free()).toBe(UNITS - 10);
});

test.each(["brief", "log"])("%s: what is not given back counts as used when the lifetime ends", (policy) => {
  const { clock, free, reserve, giveBack } = start(policy);
  reserve({ turn: 1 });
  clock.ms = heldMs(TTL_MS);
  giveBack(2, 10);
  expect(free()).toBe(UNITS - 50);
});

test.each(["brief", "log"])("%s: a moment before the end it can still be given back", (policy) => {
  const { clock, free, reserve, giveBack } = start(policy);
  reserve({ turn: 1 });
  clock.ms = heldMs(TTL_MS) - 1;
  giveBack(2, 10);
  expect(free()).toBe(UNITS - 10);
});

test("units that are kept do not end sooner when a later message asks for a shorter lifetime", () => {
  const { clock, free, reserve, giveBack } = start("auto");
  expect(reserve({ turn: 1, wanted: 20, ttlMs: 8_000 }).reserved?.ttlMs).toBe(8_000);
  clock.ms = 100;
  expect(reserve({ turn: 2, used: 3, kept: 17, wanted: 17 }).reserved).toMatchObject({ ttlMs: 1_000 });
  // The answer to the second message was lost, so its holder goes on by the first.
  clock.ms = spendableMs(8_000) - 1;
  expect(free()).toBe(UNITS - 20);
  giveBack(3, 5);
  expect(free()).toBe(UNITS - 5);
});

test("units that cannot be spared are had for the shortest lifetime only", () => {
  const { object, reserve } = start("auto");
  object.limit("auto", KEY, UNITS - 1_600);
  expect(reserve({ turn: 1, wanted: 50, ttlMs: 8_000 }).reserved?.ttlMs).toBe(8_000);
  const longer = reserve({ turn: 1, holder: "b", wanted: 100, ttlMs: 8_000 });
  expect(longer.reserved).toMatchObject({ ttlMs: 1_000, units: { auto: 12 } });
});

test("a reset keeps apart what holders may still spend, and counts what they used of it", () => {
  const { clock, free, object, reserve, giveBack } = start("brief");
  object.limit("brief", KEY, 500);
  reserve({ turn: 1 });
  reserve({ turn: 1, holder: "b" });
  object.reset("brief", KEY);
  expect(free()).toBe(UNITS - 100);
  giveBack(2, 10);
  expect(free()).toBe(UNITS - 60);
  clock.ms = heldMs(TTL_MS);
  expect(free()).toBe(UNITS - 60);
  giveBack(2, 0, "b");
  expect(free()).toBe(UNITS - 60);
});

test("after a crash nothing that holders may still spend is free, and what they keep is not theirs", () => {
  const { free, object, reserve } = start("brief");
  reserve({ turn: 1 });
  object.crash();
  expect(free()).toBeLessThanOrEqual(UNITS - 50);
  const answer = reserve({ turn: 2, used: 10, kept: 40 });
  expect(answer.reserved).toMatchObject({ isNew: true, units: { brief: 50 } });
  expect(free()).toBeLessThanOrEqual(UNITS - 100);
});

test("a holder whose units have ended begins anew, and what it would keep has been counted as used", () => {
  const { clock, free, reserve } = start("brief");
  reserve({ turn: 1 });
  clock.ms = heldMs(TTL_MS);
  const answer = reserve({ turn: 2, used: 10, kept: 40, wanted: 40 });
  expect(answer.reserved).toMatchObject({ isNew: true, units: { brief: 40 } });
  expect(free()).toBe(UNITS - 50 - 40);
});

test("a holder that used more than it had of what is kept for it is not believed", () => {
  const { free, reserve } = start("brief");
  reserve({ turn: 1, wanted: 20 });
  const answer = reserve({ turn: 2, used: 15, kept: 10, wanted: 10 });
  expect(answer.reserved).toMatchObject({ isNew: true, units: { brief: 0 } });
  expect(free()).toBe(UNITS - 20);
});

test.each(["spaced", "hammered", "off"])(
  "%s: a rule that nobody else can decide reservations nothing",
  (policy) => {
    const { clock, free, reserve } = start(policy);
    for (const turn of [1, 2, 3]) {
      clock.ms += 2_000;
      const answer = reserve({ turn, cost: 1 });
      expect(answer.rules).toMatchObject([{ success: true }]);
      expect(grantedIn(answer, policy)).toBe(0);
    }
    clock.ms += 2_000;
    expect(free()).toBe(UNITS - 3);
  },
);

test("a denial with nothing to reserve writes nothing", () => {
  const { clock, object, reserve } = start("brief");
  object.limit("brief", KEY, UNITS);
  clock.ms = 1_000;
  const before = database.rowsWritten;
  const answer = reserve({ turn: 1, cost: 1 });
  expect(answer.rules).toMatchObject([{ success: false }]);
  expect(answer.next).toMatchObject([{ success: false, reason: "quota" }]);
  expect(database.rowsWritten).toBe(before);
});

const steps = fc.array(
  fc.record({
    kind: fc.constantFrom("ask", "ask", "ask", "lost", "again", "giveBack", "vanish", "limit", "reset"),
    who: fc.nat(4),
    spend: fc.nat(100),
    wanted: fc.nat(120),
    keeps: fc.boolean(),
    cost: fc.nat(40),
    afterMs: fc.constantFrom(0, 1, 100, 400, 2_000),
  }),
  { maxLength: 60 },
);

/** A holder as it should be: what it may spend, until when, and what it used since it began. */
interface Holder {
  id: string;
  turn: number;
  units: number;
  used: number;
  endsAtMs: number;
  last?: ReserveCall;
}

test("used and spendable together are never more than there is, whatever holders do and whatever is lost", () => {
  fc.assert(
    fc.property(steps, fc.constantFrom("brief", "log"), (history, policy) => {
      database.clear();
      const { clock, object, free, message } = start(policy);
      const fresh = (id: string): Holder => ({ id, turn: 0, units: 0, used: 0, endsAtMs: 0 });
      const holders = Array.from({ length: 5 }, (_, who) => fresh(`${who}`));
      let used = 0;
      for (const [index, { kind, who, spend, wanted, keeps, cost, afterMs }] of history.entries()) {
        clock.ms += afterMs;
        const holder = holders[who] as Holder;
        const { id } = holder;
        const spent = clock.ms < holder.endsAtMs ? Math.min(spend, holder.units) : 0;
        holder.units -= spent;
        holder.used += spent;
        used += spent;
        if (kind === "ask" || kind === "lost") {
          const kept = keeps ? Math.min(holder.units, wanted) : 0;
          [holder.units, holder.turn] = [kept, holder.turn + 1];
          const units = { cost: keeps ? 0 : cost, used: holder.used, kept, wanted };
          holder.last = message({ turn: holder.turn, holder: id, ...units });
          const answer = JSON.parse(object.reserve(holder.last)) as Decided;
          if (answer.rules[0]?.success === true) used += holder.last.cost as number;
          if (kind === "lost") continue;
          holder.units = (answer.reserved?.isNew === true ? 0 : kept) + grantedIn(answer, policy);
          holder.endsAtMs = clock.ms + spendableMs(TTL_MS);
        } else if (kind === "again" && holder.last?.cost === 0) object.reserve(holder.last);
        else if (kind === "giveBack") {
          [holder.units, holder.turn] = [0, holder.turn + 1];
          object.giveBack(policy, [
            { key: KEY, holder: id, turn: holder.turn, used: { [policy]: holder.used } },
          ]);
        } else if (kind === "vanish") holders[who] = fresh(`${who}.${index}`);
        else if (kind === "limit") {
          const answer = JSON.parse(object.limit(policy, KEY, cost)) as Decided;
          if (answer.rules[0]?.success === true) used += cost;
        } else if (kind === "reset") {
          object.reset(policy, KEY);
          used = 0;
        }
        const spendable = holders.map(({ units, endsAtMs }) => (clock.ms < endsAtMs ? units : 0));
        expect(used + spendable.reduce((sum, units) => sum + units, 0) + free()).toBeLessThanOrEqual(UNITS);
      }
    }),
    { numRuns: depth(100, 400) },
  );
});

test("a few units for long are granted where they can be spared for so long, and else none for a shorter time", () => {
  const { object, reserve } = start("auto");
  const few = (turn: number) =>
    reserve({ turn, holder: `few ${turn}`, wanted: FEW_UNITS, ttlMs: 8_000 }).reserved;
  expect(few(1)).toMatchObject({ ttlMs: 8_000, units: { auto: FEW_UNITS } });
  object.limit("auto", KEY, UNITS - 8 * FEW_UNITS);
  expect(few(2)).toMatchObject({ units: { auto: 0 } });
});

test("a holder has one hold, however much more it claims with each message", () => {
  const { object, reserve, clock } = start("brief");
  const holds = () => object.open({ name: "brief" }, KEY).accounts[0]?.holds.length ?? 0;
  for (let turn = 1; turn <= 200; turn += 1) {
    reserve({ turn, kept: 100 + turn, wanted: 100 });
    expect(holds()).toBeLessThanOrEqual(1);
  }
  // When the hold has ended that it had, it is granted another.
  clock.ms += heldMs(TTL_MS) + 1;
  const first = reserve({ turn: 201, wanted: 10 });
  expect(grantedIn(first, "brief")).toBe(10);
  expect(holds()).toBe(1);
});

describe("clients that want more than there is", () => {
  const client = (caller: string, index: number) => ownKey(caller, `client-${index}`);
  const all = (of: ReturnType<typeof start>, caller: string, turn: number, holders: number, kept = 0) =>
    Array.from({ length: holders }, (_, index) =>
      of.reserve({ turn, holder: client(caller, index), wanted: 1e9, kept: turn === 1 ? 0 : kept }),
    );

  test("leave an isolate what it would have beside a few holders", () => {
    const of = start("small");
    of.reserve({ turn: 1, holder: "isolate", wanted: 1 });
    all(of, "greedy", 1, 40);
    const answer = of.reserve({ turn: 2, holder: "isolate", kept: 0, wanted: 50 });
    expect(grantedIn(answer, "small")).toBeGreaterThan(20);
  });

  test("have no more than half together while others want units", () => {
    const of = start("small");
    of.reserve({ turn: 1, holder: "isolate", wanted: 60 });
    const granted = all(of, "greedy", 1, 40).reduce((sum, each) => sum + grantedIn(each, "small"), 0);
    expect(granted).toBeGreaterThan(200);
    expect(granted).toBeLessThanOrEqual(500);
    const other = of.reserve({ turn: 1, holder: client("modest", 0), wanted: 20 });
    expect(grantedIn(other, "small")).toBeGreaterThan(10);
  });
});

test("what a holder has used is told apart by rule, also when a version has the rules in another order", () => {
  const rule = { algorithm: "token-bucket", window: "30d" };
  const few = { ...rule, limit: UNITS / 2 };
  const many = { ...rule, limit: UNITS, unit: "tokens" };
  const policies = parsePolicies({ two: { rules: { few, many }, reservation: { ttl: TTL_MS } } });
  const object = new SimulatedObject(database, policies, () => 0);
  const said = (used: number, kept: number, wanted = kept) => ({ used, kept, wanted });
  const message = { policy: "two", key: KEY, cost: 0, holder: "a", ttlMs: TTL_MS, isShort: false };
  object.reserve({ ...message, turn: 1, rules: { few: said(0, 0, 40), many: said(0, 0, 40) } });
  object.reserve({ ...message, turn: 2, rules: { few: said(0, 40), many: said(30, 10) } });
  const fields = JSON.stringify({ rules: { many, few }, reservation: { ttl: "1s" } });
  const inForce = { version: 1, fields };
  object.reserve({ ...message, turn: 3, inForce, rules: { few: said(20, 0), many: said(40, 0) } });
  const { rules } = JSON.parse(object.limitCall({ policy: "two", key: KEY, cost: 0, inForce })) as Decided;
  expect(rules).toMatchObject([
    { name: "many", remaining: UNITS - 40 },
    { name: "few", remaining: UNITS / 2 - 20 },
  ]);
});
