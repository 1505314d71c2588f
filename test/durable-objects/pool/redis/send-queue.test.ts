import fc from "fast-check";
/** Calls to a pool in histories of callers that come and leave, and of calls that are answered or fail. */
import { setImmediate as turn } from "node:timers/promises";
import { expect, test } from "vitest";
import { MOST_UNDER_WAY, SendQueue } from "../../../../durable-objects/pool/redis/send-queue.ts";

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
    kind: fc.constantFrom("ask", "ask", "leave", "answer", "fail"),
    which: fc.nat(),
  }),
  { maxLength: 80 },
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
          expected.set(asked, isSent ? "sent, and not answered" : "not sent, behind 6 others");
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
        expect(machine.underWay.length).toBeLessThanOrEqual(MOST_UNDER_WAY);
        if (machine.waiting.length > 0) expect(machine.underWay).toHaveLength(MOST_UNDER_WAY);
        // Whoever was sent came before whoever still waits, and was sent after whoever came before.
        const ids = machine.sent.map(({ id }) => id);
        expect(ids).toEqual(ids.toSorted((a, b) => a - b));
        expect(Math.min(...machine.waiting.map(({ id }) => id))).toBeGreaterThan(Math.max(-1, ...ids));
        const neverSent = [...expected].filter(([, outcome]) => outcome.startsWith("not sent"));
        for (const [asked] of neverSent) expect(machine.sent).not.toContain(asked);
        for (const asked of machine.all) {
          const outcome = expected.get(asked);
          if (outcome === undefined) expect(asked.outcome).toBeUndefined();
          else expect(asked.outcome).toContain(outcome);
        }
        // A timer that is left over would keep an object in memory.
        expect(machine.timers).toBe(machine.all.filter((asked) => !asked.isLeft && !asked.isEnded).length);
      }
    }),
    { numRuns: 300 },
  );
});
