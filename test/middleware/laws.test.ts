/** Laws of requests that come at random: what is held, what is sent, whatever becomes of each. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { limitedFetch, withConcurrency } from "../../package/fetch.ts";
import { manualClock, memoryLimiter } from "../../package/testing.ts";

/** How a request goes: when it comes, how long its handler takes, how long its stream, and how it ends. */
const REQUESTS = fc.array(
  fc.record({
    atMs: fc.nat(2_000),
    handlerMs: fc.nat(300),
    streamMs: fc.nat(4_000),
    end: fc.constantFrom("read", "cancel", "tear", "throw", "none", "head"),
    waitMs: fc.constantFrom(0, 500, 5_000),
  }),
  { minLength: 1, maxLength: 25 },
);

test("never are more requests in their handlers and their streams than there are slots, and all slots come back", async () => {
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 4 }), REQUESTS, async (limit, requests) => {
      const clock = manualClock();
      const slots = { algorithm: "concurrency", limit, ttl: "1s", maxWait: "10s", maxWaiters: 9 };
      const limiter = memoryLimiter({ policies: { slots }, clock });
      const sleep = (ms: number) => new Promise<void>((done) => clock.after(ms, done));
      let [running, most, torn] = [0, 0, 0];
      const ends = requests.map(async ({ atMs, handlerMs, streamMs, end, waitMs }) => {
        const ended = () => void (running -= 1);
        const pull = async (controller: ReadableStreamDefaultController) => {
          await sleep(streamMs);
          ended();
          if (end === "tear") controller.error(new Error("torn"));
          else controller.close();
        };
        const source = end === "cancel" ? { cancel: ended } : { pull };
        const handler = withConcurrency(
          { limiter, policy: "slots", key: "k", waitMs, time: clock },
          async () => {
            running += 1;
            most = Math.max(most, running);
            if (["tear", "throw", "cancel"].includes(end)) torn += 1;
            await sleep(handlerMs);
            if (["read", "tear", "cancel"].includes(end))
              return new Response(new ReadableStream(source, { highWaterMark: 0 }));
            ended();
            if (end === "throw") throw new Error("thrown");
            return new Response(end === "none" ? null : "body");
          },
        );
        await sleep(atMs);
        const method = end === "head" ? "HEAD" : "GET";
        const response = await handler(new Request("https://example.com/", { method }));
        if (response.status === 503) return;
        if (end !== "cancel") {
          await response.text();
          return;
        }
        await sleep(streamMs);
        await response.body?.cancel();
      });
      const all = Promise.allSettled(ends);
      await clock.advance("1m");
      await all;
      expect(most).toBeLessThanOrEqual(limit);
      expect(running).toBe(0);
      expect(await limiter.peek({ policy: "slots", key: "k" })).toMatchObject({ leases: 0, queueLength: 0 });
      const granted = limiter
        .asked("acquire")
        .filter(({ answer }) => (answer as { success: boolean }).success);
      expect(limiter.asked("release")).toHaveLength(granted.length);
      // A limit that adapts learns nothing from a request that was torn.
      expect(limiter.asked("release", { outcome: "ignore" })).toHaveLength(torn);
    }),
    { numRuns: 60 },
  );
});

test("in no window more is sent than the limit, and nothing while the partner wants to be left alone", async () => {
  const calls = fc.array(
    fc.record({ atMs: fc.nat(8_000), pauseMs: fc.constantFrom(0, 0, 0, 1_000, 3_000) }),
    {
      minLength: 1,
      maxLength: 20,
    },
  );
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 5 }), calls, async (limit, all) => {
      const clock = manualClock();
      const partner = { algorithm: "sliding-log", limit, window: "2s", maxWait: "1m" };
      const limiter = memoryLimiter({ policies: { partner }, clock });
      const sent: number[] = [];
      let [pausedSinceMs, pausedUntilMs] = [0, 0];
      const pauses = all.map(({ pauseMs }) => pauseMs);
      const send = async () => {
        // What was on its way when the partner said so could not know.
        const nowMs = clock.nowMs();
        if (nowMs > pausedSinceMs) expect(nowMs).toBeGreaterThanOrEqual(pausedUntilMs);
        sent.push(nowMs);
        const pauseMs = pauses.shift() ?? 0;
        if (pauseMs === 0) return new Response("served");
        if (nowMs + pauseMs > pausedUntilMs) [pausedSinceMs, pausedUntilMs] = [nowMs, nowMs + pauseMs];
        return new Response("later", { status: 429, headers: { "retry-after": String(pauseMs / 1_000) } });
      };
      const asked = limitedFetch({
        limiter,
        policy: "partner",
        key: "k",
        waitMs: 30_000,
        fetch: send,
        time: clock,
      });
      const ends = all.map(async ({ atMs }) => {
        await new Promise<void>((done) => clock.after(atMs, done));
        return await asked("https://partner.example/").then(
          ({ status }) => status,
          ({ name }: Error) => name,
        );
      });
      await clock.advance("2m");
      for (const end of await Promise.all(ends)) expect([200, "FetchLimitedError"]).toContain(end);
      for (const first of sent)
        expect(sent.filter((each) => each >= first && each < first + 2_000).length).toBeLessThanOrEqual(
          limit,
        );
    }),
    { numRuns: 60 },
  );
});
