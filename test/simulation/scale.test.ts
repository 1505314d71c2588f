/** The laws of `npm run bench:scale`, in one small cell: nothing over, and nothing handed out twice. */
import { describe, expect, test } from "vitest";
import { type Cell, runCell } from "../../bench/scale/run.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import { depth, inDeepRuns } from "../support/depth.ts";

const CELL: Cell = {
  quota: { algorithm: "token-bucket", limit: 1_000, windowMs: 1_000 },
  holders: 32,
  kind: "isolate",
  load: 2,
  shape: "even",
  fault: "none",
  seed: 1,
  durationMs: 2_000,
  lawEveryMs: depth(20, 1),
};
/** The object grants each holder twice the units that it keeps apart. */
const grantsTwice: Cell["plant"] = (answer) => {
  const { reserved } = answer as Decided;
  if (reserved === undefined) return answer;
  const units = Object.entries(reserved.units).map(([rule, granted]) => [rule, 2 * granted]);
  return { ...(answer as Decided), reserved: { ...reserved, units: Object.fromEntries(units) } };
};

test.each([
  ["isolate", "token-bucket"],
  ["process", "sliding-log"],
] as const)("no far %s admits or holds a unit too many of a %s", async (kind, algorithm) => {
  const quota = { ...CELL.quota, algorithm };
  const figures = await runCell({ ...CELL, kind, quota, durationMs: 6_000 });
  expect(figures.admittedOver).toBe(0);
  expect(figures.handedOutOver).toBe(0);
  expect(figures.admitted).toBeGreaterThan(0.5);
});

test("hundreds of far isolates at twice a limit get all of it, and each call an answer", async () => {
  const [holders, limit, durationMs] = depth([150, 500, 6_000], [300, 1_000, 8_000]);
  const quota = { ...CELL.quota, limit };
  const figures = await runCell({ ...CELL, holders, quota, durationMs, lawEveryMs: 100 });
  expect(figures.admitted).toBeGreaterThan(0.9);
  expect(figures.degraded).toBe(0);
  expect(figures.busy).toBeLessThan(0.9);
});

const LOG: Cell["quota"] = { algorithm: "sliding-log", limit: 2_000, windowMs: 2_000 };

describe.each(["isolate", "process"] as const)("one far %s", (kind) => {
  test.each(depth([2], [0.5, 2, 20]))(
    "at %d times a log gets all of it, and few of its calls wait for a message",
    async (load) => {
      const durationMs = depth(10_000, 15_000);
      const cell: Cell = { ...CELL, kind, quota: LOG, holders: 1, load, durationMs, lawEveryMs: 100 };
      const figures = await runCell(cell);
      expect(figures.admittedOver).toBe(0);
      expect(figures.handedOutOver).toBe(0);
      expect(figures.admitted).toBeGreaterThan(0.97);
      expect(figures.degraded).toBe(0);
      expect(figures.waited).toBeLessThan(0.03);
    },
  );
});

inDeepRuns.each([
  [8, "isolate", 20],
  [32, "isolate", 2],
  [32, "isolate", 20],
  [32, "process", 2],
] as const)(
  "%d far holders (%s) with equal calls have equal parts of a log at %d times its limit",
  async (holders, kind, load) => {
    const cell: Cell = { ...CELL, kind, quota: LOG, holders, load, durationMs: 15_000, lawEveryMs: 100 };
    const figures = await runCell(cell);
    expect(figures.admittedOver).toBe(0);
    expect(figures.handedOutOver).toBe(0);
    expect(figures.admitted).toBeGreaterThan(0.9);
    expect(figures.jain).toBeGreaterThan(0.95);
  },
);

inDeepRuns("300 far isolates share what is left beside their buckets, and nothing of it twice", async () => {
  const quota = { ...CELL.quota, limit: 20_000 };
  const figures = await runCell({ ...CELL, quota, holders: 300, durationMs: 14_000, lawEveryMs: 100 });
  expect(figures.admittedOver).toBe(0);
  expect(figures.handedOutOver).toBe(0);
  expect(figures.admitted).toBeGreaterThan(0.97);
  expect(figures.jain).toBeGreaterThan(0.95);
});

inDeepRuns("1,000 far isolates that start at once soon get what they ask for, with equal parts", async () => {
  const quota = { ...CELL.quota, limit: 20_000 };
  const cell: Cell = { ...CELL, quota, holders: 1_000, load: 0.5, durationMs: 8_000, lawEveryMs: 1_000 };
  const figures = await runCell(cell);
  expect(figures.admittedOver).toBe(0);
  expect(figures.handedOutOver).toBe(0);
  expect(figures.admitted).toBeGreaterThan(0.98);
});

// For 2 s most of its calls waited in vain: until it was known for so long it got few units with each message.
inDeepRuns(
  "one far process with twice the limit from its first call on has nine tenths of it within 2 s",
  async () => {
    const cell: Cell = { ...CELL, kind: "process", holders: 1, durationMs: 8_000, lawEveryMs: 100 };
    const figures = await runCell(cell);
    expect(figures.admittedOver).toBe(0);
    expect(figures.handedOutOver).toBe(0);
    expect(figures.coldS).toBeLessThanOrEqual(2);
  },
);

// Their isolates took units for the first calls, and regions' objects the whole limit for them: nobody came for these any more.
inDeepRuns.each([1_000, 20_000])(
  "300 far processes that start at once soon have what they ask for, at half of %d a second",
  async (limit) => {
    const quota = { ...CELL.quota, limit };
    const start = { holders: 300, load: 0.5, durationMs: 9_000, lawEveryMs: 100 };
    const figures = await runCell({ ...CELL, kind: "process", quota, ...start });
    expect(figures.admittedOver).toBe(0);
    expect(figures.handedOutOver).toBe(0);
    expect(figures.admitted).toBeGreaterThan(0.98);
  },
);

const CROWD: Cell = {
  ...CELL,
  kind: "process",
  quota: { ...CELL.quota, limit: depth(250, 500) },
  holders: depth(75, 150),
  durationMs: depth(8_000, 15_000),
  lawEveryMs: 100,
};

// Nearly each admitted call was a message to the home object: 293 a second, and Jain's index was 0.89.
inDeepRuns(
  "processes that are too many for parts of their own leave their calls to isolates, and few of these ask the home object",
  async () => {
    const figures = await runCell(CROWD);
    expect(figures.admittedOver).toBe(0);
    expect(figures.handedOutOver).toBe(0);
    expect(figures.admitted).toBeGreaterThan(0.93);
    expect(figures.degraded).toBe(0);
    expect(figures.busy).toBeLessThan(0.23);
  },
);

// A full log has about a unit free at a time, so each admitted call was a message: the object was 85 % busy.
inDeepRuns(
  "at twice a log 300 processes leave their calls to isolates, and at half of it they have units",
  async () => {
    const quota = { algorithm: "sliding-log", limit: 2_000, windowMs: 2_000 } as const;
    const cell: Cell = { ...CROWD, quota, holders: 300, durationMs: 15_000 };
    const [half, twice] = [await runCell({ ...cell, load: 0.5 }), await runCell({ ...cell, load: 2 })];
    for (const figures of [half, twice]) {
      expect([figures.admittedOver, figures.handedOutOver, figures.degraded]).toEqual([0, 0, 0]);
      expect(figures.busy).toBeLessThan(0.5);
    }
    expect([half.admitted > 0.99, half.waited < 0.3]).toEqual([true, true]);
    expect(twice.admitted).toBeGreaterThan(0.95);
  },
);

test("units that an isolate gives to such a process, and has not itself, are found", async () => {
  const plantReply: Cell["plantReply"] = (reply) => ({
    ...reply,
    answers: reply.answers.map((answer) => {
      if (answer === null || !("reserved" in answer) || answer.reserved.ttlMs > 0) return answer;
      const { reserved } = answer;
      return { ...answer, reserved: { ...reserved, isNew: true, ttlMs: 2_000, units: { api: 1 } } };
    }),
  });
  const { admittedOver } = await runCell({ ...CROWD, durationMs: 4_000, plantReply });
  expect(admittedOver).toBeGreaterThan(1);
});

// Where the home object heard them all, they left less to the others: Jain's index was 0.51.
inDeepRuns(
  "processes that say to need everything take little from those that are served with them",
  async () => {
    const plantFar: Cell["plantFar"] = (message) => ({
      ...message,
      calls: message.calls.map(({ reserve, ...call }) => {
        if (reserve === undefined) return call;
        if (!/[02468]\./.test(reserve.holder)) return { ...call, reserve };
        const { rules } = reserve;
        const lying = Object.keys(rules).map((name) => [name, { ...rules[name], demand: 1e9, wanted: 1e6 }]);
        return { ...call, reserve: { ...reserve, rules: Object.fromEntries(lying) as typeof rules } };
      }),
    });
    const figures = await runCell({ ...CROWD, plantFar });
    expect(figures.admittedOver).toBe(0);
    expect(figures.handedOutOver).toBe(0);
    // What isolates hold for them lies idle, and by real calls they could take as much.
    expect(figures.admitted).toBeGreaterThan(0.75);
    expect(figures.jain).toBeGreaterThan(0.75);
  },
);

inDeepRuns("units that are granted twice are found, at once and when they are used", async () => {
  const { admittedOver, handedOutOver } = await runCell({ ...CELL, durationMs: 4_000, plant: grantsTwice });
  expect(handedOutOver).toBeGreaterThan(1);
  expect(admittedOver).toBeGreaterThan(1);
});

test("below the limit only the law on what is handed out finds them", async () => {
  const { admittedOver, handedOutOver } = await runCell({ ...CELL, load: 0.5, plant: grantsTwice });
  expect(handedOutOver).toBeGreaterThan(1);
  expect(admittedOver).toBe(0);
});

inDeepRuns("the seed alone decides what happens", async () => {
  const cell: Cell = { ...CELL, fault: "loss", durationMs: 1_000 };
  expect(await runCell(cell)).toEqual(await runCell(cell));
  expect(await runCell(cell)).not.toEqual(await runCell({ ...cell, seed: 2 }));
});
