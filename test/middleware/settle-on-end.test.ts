import { afterAll, beforeEach, describe, expect, test, vi } from "vitest";
import { LIMITER_PROBLEMS, PROBLEMS, Problem, type ProblemKind } from "../../core/protocol/problems.ts";
import { endHold } from "../../middleware/settle-on-end.ts";
import { LimiterError } from "../../package/client.ts";
import { settleOnEnd } from "../../package/llm.ts";
import { manualClock, memoryLimiter } from "../../package/testing.ts";
import { eventually } from "../support/eventually.ts";

const POLICIES = { llm: { algorithm: "sliding-log", limit: 100, window: "30d", unit: "tokens" } };

/** A stream of words, whose hold of 50 tokens is settled with 10 and one for each word. */
async function start(context?: object) {
  const limiter = memoryLimiter({ policies: POLICIES, clock: manualClock() });
  const { hold } = await limiter.hold({ policy: "llm", key: "k", units: { tokens: 50 } });
  let source: ReadableStreamDefaultController<string> | undefined;
  let isCancelled = false;
  const words = new ReadableStream<string>({
    start: (controller) => void (source = controller),
    cancel: () => void (isCancelled = true),
  });
  let tokens = 10;
  const stream = settleOnEnd(
    limiter,
    hold,
    words,
    (word) => {
      if (word !== undefined) tokens += 1;
      return { tokens };
    },
    context,
  );
  const left = async () => {
    const { remaining, holds } = await limiter.peek({ policy: "llm", key: "k" });
    return { remaining, holds };
  };
  return { reader: stream.getReader(), source, left, isCancelled: () => isCancelled };
}

describe("a hold is settled with what was counted so far", () => {
  test("when its stream was read", async () => {
    const { reader, source, left } = await start();
    source?.enqueue("a");
    source?.enqueue("b");
    expect([(await reader.read()).value, (await reader.read()).value]).toEqual(["a", "b"]);
    expect(await left()).toEqual({ remaining: 50, holds: 1 });
    source?.close();
    expect((await reader.read()).done).toBe(true);
    await eventually(async () => expect(await left()).toEqual({ remaining: 88, holds: 0 }));
  });

  test("when its reader leaves, and the source is cancelled", async () => {
    const { reader, source, left, isCancelled } = await start();
    source?.enqueue("a");
    source?.enqueue("b");
    await reader.read();
    await reader.cancel();
    await eventually(async () => expect(await left()).toEqual({ remaining: 89, holds: 0 }));
    expect(isCancelled()).toBe(true);
  });

  test("when its stream fails, whose error stays", async () => {
    const { reader, source, left } = await start();
    source?.enqueue("a");
    await reader.read();
    source?.error(new Error("gone"));
    await expect(reader.read()).rejects.toThrow("gone");
    await eventually(async () => expect(await left()).toEqual({ remaining: 89, holds: 0 }));
  });

  test("within what the runtime waits for from the beginning", async () => {
    const waited: Promise<unknown>[] = [];
    const { reader, left } = await start({ waitUntil: (work: Promise<unknown>) => waited.push(work) });
    expect(waited).toHaveLength(1);
    await reader.cancel();
    await Promise.all(waited);
    expect(await left()).toEqual({ remaining: 90, holds: 0 });
  });
});

test("without a hold the stream is handed on as it is", () => {
  const stream = new ReadableStream();
  expect(settleOnEnd({ settle: () => Promise.reject(new Error("asked")) }, undefined, stream, () => 1)).toBe(
    stream,
  );
});

describe("a settlement", () => {
  const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
  afterAll(() => warn.mockRestore());
  beforeEach(() => warn.mockClear());

  const failing = (kind: ProblemKind, times: number) => {
    const clock = manualClock();
    let calls = 0;
    const work = async () => {
      calls += 1;
      if (calls <= times) throw new LimiterError(new Problem(kind, "not now"));
    };
    const ended = endHold(work, clock);
    return { calls: () => calls, ended, clock };
  };

  test("that is not answered is sent again, four times in all", async () => {
    const { calls, ended, clock } = failing(PROBLEMS.unavailable, 9);
    for (const ms of [200, 1_000, 5_000]) await clock.advance(ms);
    await ended;
    expect(calls()).toBe(4);
    expect(warn.mock.calls).toEqual([[expect.stringContaining("counts as used when it expires")]]);
  });

  test("ends with the first answer", async () => {
    const { calls, ended, clock } = failing(PROBLEMS.unavailable, 1);
    await clock.advance(10_000);
    await ended;
    expect(calls()).toBe(2);
  });

  test.each([PROBLEMS.holdNotFound, PROBLEMS.notAllowed, LIMITER_PROBLEMS.forbidden])(
    "is not repeated after %d %s",
    async (...kind) => {
      const { calls, ended } = failing(kind, 9);
      await ended;
      expect(calls()).toBe(1);
    },
  );
});
