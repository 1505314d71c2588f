import fc from "fast-check";
import { expect, test } from "vitest";
import { Latch, unsleepingClock, randomId } from "../../core/clock.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

/** What happens to a process: time passes on both clocks, the machine sleeps, or somebody sets the wall clock. */
const event = fc.oneof(
  fc.record({ kind: fc.constant("pass" as const), ms: fc.nat(5_000) }),
  fc.record({ kind: fc.constant("sleep" as const), ms: fc.integer({ min: 100, max: 100_000 }) }),
  fc.record({ kind: fc.constant("set" as const), ms: fc.integer({ min: -100_000, max: 100_000 }) }),
);

/** A read may be as much too low: a leap that is no longer does not count, and instants are whole. */
const SLACK_MS = 11;

test("it never runs backwards, and never slower than time, whatever happens to the clocks", () => {
  fc.assert(
    fc.property(fc.array(event, { maxLength: 40 }), (events) => {
      let [wall, steady, real] = [1_000_000, 0.25, 0];
      const clock = unsleepingClock(
        () => Math.floor(wall),
        () => steady,
      );
      const begin = clock();
      let last = begin;
      for (const { kind, ms } of events) {
        if (kind !== "set") real += ms;
        if (kind === "pass") steady += ms;
        wall += ms;
        const now = clock();
        expect(now).toBeGreaterThanOrEqual(last);
        // A wall clock that was put back hides as much of the next sleep: nobody can tell the two apart.
        if (!events.some((each) => each.kind === "set"))
          expect(now - begin).toBeGreaterThanOrEqual(real - SLACK_MS);
        last = now;
      }
      expect(last - begin).toBeGreaterThanOrEqual(steady - 0.25 - SLACK_MS);
    }),
  );
});

test("rounding does not add up, however often it is read", () => {
  let real = 0;
  const clock = unsleepingClock(
    () => 5_000_000 + Math.floor(real),
    () => real,
  );
  const begin = clock();
  for (; real < 10_000; real += 0.37) clock();
  expect(Math.abs(clock() - begin - real)).toBeLessThanOrEqual(SLACK_MS);
});

const WHERE = [
  ["in a worker", false],
  ["in a process, where no wake is lost", true],
] as const;

test.each(WHERE)(
  "whoever waits for a latch %s goes on when it is opened or his time is over",
  async (_, isLasting) => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.nat(2_000), { maxLength: 5 }), fc.nat(2_000), async (waits, openMs) => {
        const time = new VirtualTime();
        const latch = new Latch();
        const waited: number[] = [];
        const timers = { ...time.clock({ ms: 0 }), isLasting };
        for (const ms of waits)
          time.at(0, () => void latch.wait(timers, ms).then((each) => waited.push(each)));
        time.at(openMs, () => latch.open());
        await time.run(5_000, () => undefined);
        // Those with the shortest waits are done first.
        const expected = waits.map((ms) => Math.min(ms, openMs)).toSorted((a, b) => a - b);
        expect(waited).toEqual(expected);
        expect(await latch.wait(timers, 1_000)).toBe(0);
      }),
    );
  },
);

test("a latch opens when its work ends or fails; if it never does, nobody waits for longer than he said", async () => {
  const time = new VirtualTime();
  const timers = time.clock({ ms: 0 });
  const waited: number[] = [];
  const note = (latch: Latch, ms: number) => void latch.wait(timers, ms).then((each) => waited.push(each));
  const fails = new Promise((_, fail) => timers.after(30, () => fail(new Error("no answer"))));
  note(Latch.after(fails), 1_000);
  note(Latch.after(new Promise(() => undefined)), 700);
  await time.run(2_000, () => undefined);
  expect(waited).toEqual([30, 700]);
});

test("ids have 22 characters of base64url, each of the 64 as often, and none comes twice", () => {
  const ids = Array.from({ length: 8_000 }, randomId);
  expect(new Set(ids).size).toBe(ids.length);
  for (const id of ids) expect(id).toMatch(/^[A-Za-z0-9_-]{22}$/);
  const counts = new Map<string, number>();
  for (const character of ids.join("")) counts.set(character, (counts.get(character) ?? 0) + 1);
  expect(counts.size).toBe(64);
  // 2,750 each, and seven standard deviations.
  for (const count of counts.values()) expect(Math.abs(count - 2_750)).toBeLessThan(7 * 52);
});
