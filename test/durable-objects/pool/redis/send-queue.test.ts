/** Calls to a pool in histories of callers that come and leave, and of calls that are answered or fail. */
import fc from "fast-check";
import { setImmediate as turn } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { SendQueue } from "../../../../durable-objects/pool/redis/redis-pool.ts";
import { manualClock } from "../../../../testing/manual-clock.ts";
import { depth } from "../../../support/depth.ts";
import { announcedSeed, seededRandom } from "../../../support/random.ts";

/** So many connections an object has. */
const CONNECTIONS = 6;

interface Asked {
  readonly id: number;
  /** The caller's deadline comes. */
  leave: () => void;
  end: ((isAnswered: boolean) => void) | undefined;
  isLeft: boolean;
  isEnded: boolean;
  outcome: string | undefined;
}

/** A queue whose callers leave, and whose calls end, when the test says so. */
class Machine {
  readonly all: Asked[] = [];
  /** The calls that were sent, in that order. */
  readonly sent: Asked[] = [];
  timers = 0;
  readonly #leaves: (() => void)[] = [];
  readonly #queue = new SendQueue({
    nowMs: () => 0,
    after: (_, work) => {
      this.timers += 1;
      let isOn = true;
      const stop = () => {
        if (isOn) this.timers -= 1;
        isOn = false;
      };
      this.#leaves.push(() => {
        if (isOn) work();
        stop();
      });
      return stop;
    },
  });

  ask(): void {
    const asked: Asked = {
      id: this.all.length,
      leave: () => this.#leaves[asked.id]?.(),
      end: undefined,
      isLeft: false,
      isEnded: false,
      outcome: undefined,
    };
    this.all.push(asked);
    const send = () => {
      this.sent.push(asked);
      return new Promise<string>((resolve, reject) => {
        asked.end = (isAnswered) => (isAnswered ? resolve("answered") : reject(new Error("failed")));
      });
    };
    void this.#queue.run(send, 500).then(
      (answer) => (asked.outcome = answer),
      (error: Error) => (asked.outcome = error.message),
    );
  }

  get underWay(): Asked[] {
    return this.sent.filter(({ isEnded }) => !isEnded);
  }

  get waiting(): Asked[] {
    return this.all.filter((asked) => !asked.isLeft && !this.sent.includes(asked));
  }
}

const STEPS = fc.array(
  fc.record({
    // More callers come than go, so that some have to wait.
    kind: fc.constantFrom("ask", "ask", "ask", "ask", "leave", "answer", "fail"),
    which: fc.nat(),
  }),
  { maxLength: 80, size: "max" },
);

test("six calls are under way while any wait, in order, and those of callers that left are not sent", async () => {
  await fc.assert(
    fc.asyncProperty(STEPS, async (steps) => {
      const machine = new Machine();
      const expected = new Map<Asked, string>();
      for (const { kind, which } of steps) {
        const { underWay } = machine;
        if (kind === "ask") machine.ask();
        else if (kind === "leave") {
          const here = machine.all.filter(({ isLeft, isEnded }) => !isLeft && !isEnded);
          const asked = here[which % Math.max(1, here.length)];
          if (asked === undefined) continue;
          const isSent = machine.sent.includes(asked);
          expected.set(asked, isSent ? "sent, and not answered" : "not sent within");
          asked.leave();
          asked.isLeft = true;
        } else {
          const asked = underWay[which % Math.max(1, underWay.length)];
          if (asked === undefined) continue;
          if (!asked.isLeft) expected.set(asked, kind === "answer" ? "answered" : "failed");
          asked.end?.(kind === "answer");
          asked.isEnded = true;
        }
        await turn();
        expect(machine.underWay.length).toBeLessThanOrEqual(CONNECTIONS);
        if (machine.waiting.length > 0) expect(machine.underWay).toHaveLength(CONNECTIONS);
        // Whoever was sent came before whoever still waits, and was sent after whoever came before.
        const ids = machine.sent.map(({ id }) => id);
        expect(ids).toEqual(ids.toSorted((a, b) => a - b));
        expect(Math.min(...machine.waiting.map(({ id }) => id))).toBeGreaterThan(Math.max(-1, ...ids));
        const neverSent = [...expected].filter(([, outcome]) => outcome.startsWith("not sent"));
        expect(neverSent.filter(([asked]) => machine.sent.includes(asked))).toEqual([]);
        const isAsExpected = (asked: Asked) => {
          const outcome = expected.get(asked);
          return outcome === undefined ? asked.outcome === undefined : asked.outcome?.includes(outcome);
        };
        expect(machine.all.filter((asked) => isAsExpected(asked) !== true)).toEqual([]);
        // A timer that is left over would keep an object in memory.
        expect(machine.timers).toBe(machine.all.filter((asked) => !asked.isLeft && !asked.isEnded).length);
      }
    }),
    { numRuns: depth(25, 300) },
  );
});

describe("while more ask than can be answered", () => {
  const MAX_MS = 500;

  /** Callers that come at this interval for 20 s, while calls take so long; how many were sent, and answered. */
  async function underLoad(
    everyMs: number,
    tookMs: () => number,
  ): Promise<{ sent: number; answered: number }> {
    const clock = manualClock();
    const queue = new SendQueue(clock);
    const counts = { sent: 0, answered: 0 };
    const send = async () => {
      counts.sent += 1;
      await new Promise<void>((done) => clock.after(tookMs(), done));
    };
    for (let atMs = 0; atMs < 20_000; atMs += everyMs) {
      void queue.run(send, MAX_MS).then(
        () => (counts.answered += 1),
        () => undefined,
      );
      await clock.advance(everyMs);
    }
    await clock.advance(60_000);
    return counts;
  }

  test.each([
    [10, 100],
    [25, 300],
    [10, 400],
    [2, 20],
  ])("every %i ms one, of %i ms each: hardly a call is sent in vain", async (everyMs, tookMs) => {
    const { sent, answered } = await underLoad(everyMs, () => tookMs);
    // All six connections are in use, nearly all of the time.
    expect(sent).toBeGreaterThan(0.95 * ((6 * 20_000) / tookMs));
    expect(answered).toBeGreaterThan(0.95 * sent);
  });

  test("calls that take now more, now less time: most are not sent in vain", async () => {
    const random = seededRandom(announcedSeed("send queue"));
    const { sent, answered } = await underLoad(10, () => 50 + 100 * random());
    expect(answered).toBeGreaterThan(0.5 * sent);
  });

  test("after calls that took longer than anybody waits, calls are sent again", async () => {
    let tookMs = 5_000;
    const clock = manualClock();
    const queue = new SendQueue(clock);
    const send = () => new Promise<string>((done) => clock.after(tookMs, () => done("answered")));
    const slow = Array.from({ length: 100 }, () => queue.run(send, MAX_MS).catch(() => "left"));
    await clock.advance(60_000);
    expect(new Set(await Promise.all(slow))).toEqual(new Set(["left"]));
    tookMs = 10;
    const quick = Array.from({ length: 6 }, () => queue.run(send, MAX_MS));
    await clock.advance(10);
    expect(new Set(await Promise.all(quick))).toEqual(new Set(["answered"]));
  });
});
