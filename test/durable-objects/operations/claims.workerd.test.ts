/**
 * Leases and holds of a real object against a model, in any order: grant, wait, leave, renew, release, expire, hold,
 * settle, cancel, crash. Only the date is virtual; storage, messages and crashes are real.
 */
import fc from "fast-check";
import { isDeepStrictEqual } from "node:util";
import { afterEach, expect, test, vi } from "vitest";
import { readAnswer } from "../../../client/transports/send-batch.ts";
import type { Decided, Lease } from "../../../core/protocol/answers.ts";
import { ClaimsModel } from "../../support/claims-model.ts";
import { depth } from "../../support/depth.ts";
import { freshKey } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

afterEach(() => void vi.useRealTimers());

// One takes a quarter of a second; a lease that is not given back shows in the first few.
const HISTORIES = depth(4, 40);
const START_MS = Date.now();
let names = 0;
const LEASED = "modelled";
const HELD = "slow";

/** The objects, and what callers have of them. */
class Callers {
  readonly key = freshKey();
  readonly leased = objectOf(LEASED, this.key);
  readonly held = objectOf(HELD, this.key);
  readonly leases = new Map<number, Lease>();
  readonly holds = new Map<number, string>();
  readonly waiting = new Map<number, { answer: Promise<Decided | undefined>; leave: AbortController }>();
  readonly tokens: number[] = [];

  ask(path: string, message: object, signal?: AbortSignal): Promise<Response> {
    const id = `lease ${(names += 1)}`;
    const body = JSON.stringify({ policy: LEASED, key: this.key, id, ...message });
    const init = { method: "POST", body, ...(signal && { signal }) };
    return this.leased.stub.fetch(`https://object/${path}`, init);
  }

  async acquire(message: object, signal?: AbortSignal): Promise<Decided> {
    return (await (await this.ask("acquire", message, signal)).json()) as Decided;
  }

  granted(name: number, { lease }: Decided): void {
    if (lease === undefined) throw new Error("no lease was granted");
    this.tokens.push(lease.fencingToken);
    this.leases.set(name, lease);
  }
}

type Command = fc.AsyncCommand<ClaimsModel, Callers>;

/** A command, and after it everything that can be seen is compared. */
function command(name: string, run: (model: ClaimsModel, callers: Callers) => Promise<void>): Command {
  return {
    check: () => true,
    run: async (model, callers) => {
      await run(model, callers);
      await expectAlike(model, callers);
    },
    toString: () => name,
  };
}

async function expectAlike(model: ClaimsModel, callers: Callers): Promise<void> {
  for (const [name, isGranted] of model.told) {
    const answer = await callers.waiting.get(name)?.answer;
    callers.waiting.delete(name);
    expect(answer?.reason).toBe(isGranted ? undefined : "wait-timeout");
    if (isGranted && answer !== undefined) callers.granted(name, answer);
    // A lease is as long as it was asked for, however long its holder waited.
    expect(answer?.lease?.expiresAfterMs).toBe(model.leases.get(name)?.ttlMs);
  }
  model.told.clear();
  const look = async () => {
    const { outstanding, leases, queueLength } = await callers.leased.stub.peek(LEASED, callers.key);
    const { outstanding: held, holds, rules } = await callers.held.stub.peek(HELD, callers.key);
    return { outstanding, leases, queueLength, held, holds, left: rules[0]?.remaining };
  };
  const expected = {
    outstanding: model.leased,
    leases: model.leases.size,
    queueLength: model.queue.length,
    held: model.held,
    holds: model.holds.size,
    left: model.holdsLeft,
  };
  // Whoever leaves is a message on its way. (`vi.waitFor` would move the date.)
  let seen = await look();
  for (let again = 0; again < 1_000 && !isDeepStrictEqual(seen, expected); again += 1) seen = await look();
  expect(seen).toEqual(expected);
  // Tokens rise in the order of the grants.
  expect(callers.tokens).toEqual(callers.tokens.toSorted((a, b) => a - b));
}

const pick = <Value>(map: ReadonlyMap<number, Value>, index: number): [number, Value] | undefined =>
  map.size === 0 ? undefined : [...map][index % map.size];

const acquire = fc
  .record({
    units: fc.integer({ min: 1, max: 4 }),
    ttlMs: fc.integer({ min: 1, max: 9_000 }),
    waitMs: fc.constantFrom(0, 500, 20_000, 20_000),
  })
  .map(({ units, ttlMs, waitMs }) =>
    command(`acquire ${units} for ${ttlMs}, wait ${waitMs}`, async (model, callers) => {
      const name = (names += 1);
      const message = { cost: units, ttlMs, waitMs };
      const outcome = model.acquire(name, units, ttlMs, waitMs);
      if (outcome === "waits") {
        const leave = new AbortController();
        const answer = callers.acquire(message, leave.signal).catch(() => undefined);
        callers.waiting.set(name, { answer, leave });
        return;
      }
      const decided = await callers.acquire(message);
      if (outcome === "granted") callers.granted(name, decided);
      else {
        expect(decided.lease).toBeUndefined();
        expect(decided.reason).toBe(outcome === "full" ? "queue-full" : undefined);
      }
    }),
  );

const leave = fc.nat(9).map((index) =>
  command(`waiter ${index} leaves`, async (model, callers) => {
    const found = pick(callers.waiting, index);
    if (found === undefined) return;
    const [name, waiter] = found;
    waiter.leave.abort();
    await waiter.answer;
    callers.waiting.delete(name);
    model.leave(name);
  }),
);

const release = fc.nat(9).map((index) =>
  command(`release ${index}`, async (model, callers) => {
    const found = pick(callers.leases, index);
    if (found === undefined) return;
    const [name, { id }] = found;
    const isThere = model.leases.delete(name);
    model.serve();
    expect(await callers.leased.stub.release(LEASED, callers.key, id)).toBe(isThere);
  }),
);

const renew = fc.tuple(fc.nat(9), fc.integer({ min: 1, max: 9_000 })).map(([index, ttlMs]) =>
  command(`renew ${index} for ${ttlMs}`, async (model, callers) => {
    const found = pick(callers.leases, index);
    if (found === undefined) return;
    const [name, { id }] = found;
    const lease = model.leases.get(name);
    if (lease !== undefined) lease.expiresAtMs = model.nowMs + ttlMs;
    const answer = JSON.parse(await callers.leased.stub.renew(LEASED, callers.key, id, ttlMs)) as object;
    if (lease === undefined) expect(answer).toEqual({ missing: true });
    else expect(answer).toMatchObject({ id, expiresAfterMs: ttlMs });
  }),
);

const pass = fc.oneof(fc.nat(20), fc.nat(600), fc.nat(12_000)).map((afterMs) =>
  command(`${afterMs} ms pass`, async (model, callers) => {
    model.jump(model.nowMs + afterMs);
    vi.setSystemTime(START_MS + model.nowMs);
    // The object's own timers are real ones; this is the look that they would take.
    await callers.ask("idle", { waitMs: 0 });
  }),
);

const crash = fc.constant(
  command("crash", async (model, callers) => {
    await callers.leased.crash();
    await callers.held.crash();
    for (const { answer } of callers.waiting.values()) expect(await answer).toBeUndefined();
    callers.waiting.clear();
    model.queue = [];
  }),
);

const hold = fc
  .record({ cost: fc.integer({ min: 1, max: 6 }), ttlMs: fc.integer({ min: 1, max: 9_000 }) })
  .map((asked) =>
    command(`hold ${asked.cost} for ${asked.ttlMs}`, async (model, callers) => {
      const name = (names += 1);
      const fits = asked.cost <= model.holdsLeft;
      if (fits) model.holds.set(name, { units: asked.cost, expiresAtMs: model.nowMs + asked.ttlMs });
      const answer = readAnswer(await callers.held.stub.hold({ policy: HELD, key: callers.key, ...asked }));
      if (!("rules" in answer)) throw new Error("a hold is answered with rules");
      expect(answer.hold !== undefined).toBe(fits);
      if (answer.hold !== undefined) callers.holds.set(name, answer.hold.id);
    }),
  );

const settle = fc.tuple(fc.nat(9), fc.nat(7)).map(([index, used]) =>
  command(`settle ${index} with ${used}`, async (model, callers) => {
    const found = pick(callers.holds, index);
    if (found === undefined) return;
    const [name, id] = found;
    if (model.holds.delete(name)) {
      model.used += used;
      model.endedHolds.add(name);
    }
    const answer = readAnswer(await callers.held.stub.settle(HELD, callers.key, id, used));
    if (model.cancelledHolds.has(name)) expect(answer).toEqual({ missing: true });
    else expect(answer).toHaveProperty("rules");
  }),
);

const cancel = fc.nat(9).map((index) =>
  command(`cancel ${index}`, async (model, callers) => {
    const found = pick(callers.holds, index);
    if (found === undefined) return;
    const [name, id] = found;
    const isThere = model.holds.delete(name);
    const answer = readAnswer(await callers.held.stub.cancel(HELD, callers.key, id));
    if (isThere) model.cancelledHolds.add(name);
    if (model.cancelledHolds.has(name)) expect(answer).toHaveProperty("rules");
    else expect(answer).toEqual({ missing: true });
  }),
);

test("whatever happens in whatever order, leases, holds and the queue are those of the model", async () => {
  await fc.assert(
    fc.asyncProperty(
      // Leases are mostly wanted and rarely lost, so that there is a queue.
      fc.commands(
        [
          ...Array.from({ length: 8 }, () => acquire),
          ...Array.from({ length: 3 }, () => release),
          leave,
          renew,
          pass,
          pass,
          hold,
          hold,
          settle,
          cancel,
          crash,
        ],
        { maxCommands: 60, size: "max" },
      ),
      async (commands) => {
        vi.useFakeTimers({ toFake: ["Date"], now: START_MS });
        const callers = new Callers();
        await fc.asyncModelRun(() => ({ model: new ClaimsModel(3, 2, 5), real: callers }), commands);
        for (const { leave: stop } of callers.waiting.values()) stop.abort();
        // Else alarms go off for ever: what is due then is not due at the next history's date.
        await callers.leased.stub.reset(LEASED, callers.key);
        await callers.held.stub.reset(HELD, callers.key);
      },
    ),
    { numRuns: HISTORIES },
  );
});
