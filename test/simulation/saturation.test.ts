import { expect, test } from "vitest";
import { depth } from "../support/depth.ts";
import { saturate } from "./saturation.ts";

// Ten seconds of 100,000 a second take two: of one limit all spreads take one second.
const LOADS = depth([1_000], [100, 1_000, 100_000]).flatMap((limit) =>
  depth([4], [1, 4, 32]).flatMap((isolates) =>
    (isolates === 1 ? [false] : depth([true], [false, true])).map((isSkewed) => ({
      limit,
      isolates,
      isSkewed,
    })),
  ),
);

test.each(LOADS)(
  "asked for twice the limit, 99 % of what one exact bucket admits is admitted: $limit/s, $isolates isolates, skewed: $isSkewed",
  { timeout: 120_000 },
  async (load) => {
    const { admittedShare } = await saturate({ ...load, factor: 2 });
    expect(admittedShare).toBeGreaterThanOrEqual(0.99);
    // Two messages never race for the last unit here, so a small excess can only be the last moment.
    expect(admittedShare).toBeLessThanOrEqual(1.01);
  },
);

test.each(depth([4], [1, 4, 32]))("below the limit nobody is denied, with %d isolates", async (isolates) => {
  const { admittedShare } = await saturate({
    limit: depth(4_000, 10_000),
    isolates,
    isSkewed: false,
    factor: 0.8,
  });
  expect(admittedShare).toBeGreaterThanOrEqual(0.9999);
});

test("a steady stream does not wait: units are asked for ahead of need", async () => {
  for (const isolates of depth([4], [1, 4])) {
    const { waitedShare } = await saturate({
      limit: depth(30_000, 100_000),
      isolates,
      isSkewed: false,
      factor: 0.1,
    });
    expect(waitedShare).toBeLessThan(0.01);
  }
});
