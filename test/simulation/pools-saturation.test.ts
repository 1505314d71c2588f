import { afterAll, beforeAll, expect, test } from "vitest";
import { depth } from "../support/depth.ts";
import { mostInWindow } from "../support/interval-bound.ts";
import { type Pools, startPools } from "../support/pools.ts";
import { saturatePool } from "./pools-saturation.ts";

let pools: Pools;
beforeAll(async () => void (pools = await startPools()));
afterAll(() => pools.stop());

const [LIMIT, WINDOW_MS, WINDOWS] = [1_000, 1_000, depth(2, 6)];

// A log counts units from when the pool hears of them. While regions told it of the last ones of a window only with their
// next message, in the next window, those were missing there: 4 to 10 % of each window.
test.each([
  ["even", [8, 8, 8]],
  ["skewed", [20, 3, 1]],
])("a pool's log under %s load is never over, and hardly less", async (_, callers) => {
  const load = {
    algorithm: "sliding-log",
    limit: LIMIT,
    windowMs: WINDOW_MS,
    windows: WINDOWS,
    callers,
  } as const;
  const calls = await saturatePool(pools, load);
  expect(mostInWindow(calls, WINDOW_MS)).toBeLessThanOrEqual(LIMIT);
  for (let window = 0; window < WINDOWS; window += 1) {
    const [fromMs, toMs] = [window * WINDOW_MS, (window + 1) * WINDOW_MS];
    const admitted = calls.filter(({ receivedAtMs }) => receivedAtMs >= fromMs && receivedAtMs < toMs);
    expect(admitted.length).toBeGreaterThanOrEqual(0.99 * LIMIT);
  }
});
