import { test } from "vitest";
import { MoveHistory } from "./moves.ts";
test("probe", { timeout: 600_000 }, async () => {
  let bad = 0;
  const from = Number(process.env["FROM"] ?? 1),
    to = Number(process.env["TO"] ?? 6000);
  for (let seed = from; seed <= to; seed += 1)
    for (const isCalm of process.env["CALM"] ? [true] : [false])
      try {
        await new MoveHistory(seed, { isCalm }).run();
      } catch (e) {
        bad += 1;
        console.info("BAD", seed, isCalm, String((e as Error).stack).slice(0, 1500));
      }
  console.info("bad", bad);
});
