/**
 * Measures how much of a pool's limit three regions admit when callers ask for more, and how many script calls Redis gets:
 * `npm run build`, then `node bench/pool-saturation.ts`. Each region is a workerd of its own. Redis is on this machine.
 */
import { excessOf, hammer, newTally, pooled, shareOfBound, type Rate } from "../test/support/pool-load.ts";
import { startWorld } from "../test/support/regions.ts";

const SECONDS = Number(process.env["SECONDS"] ?? "10");
const RATES: Record<string, Rate> = {
  "20/s": { limit: 20, windowMs: 1_000, burst: 20 },
  "100/s": { limit: 100, windowMs: 1_000, burst: 100 },
  "300/s": { limit: 300, windowMs: 1_000, burst: 300 },
  "300 in any 3 s": { limit: 300, windowMs: 3_000 },
};
/** How many loops ask in each region. */
const LOADS: Record<string, readonly number[]> = { even: [8, 8, 8], "20 : 3 : 1": [20, 3, 1] };

const policyOf = (name: string) => `p${name.replaceAll(/\W/g, "-")}`;
const policies = Object.fromEntries(
  Object.entries(RATES).map(([name, rate]) => [policyOf(name), pooled(rate)]),
);
const world = await startWorld(policies, ["EU", "NA", "AS"]);
try {
  console.log("| limit | load | calls/s | admitted of the bound | over it | script calls per 1,000 calls |");
  console.log("| --- | --- | --- | --- | --- | --- |");
  for (const [name, rate] of Object.entries(RATES))
    for (const [load, workers] of Object.entries(LOADS))
      console.log(await measure(name, rate, load, workers));
} finally {
  await world.stop();
}

async function measure(name: string, rate: Rate, load: string, workers: readonly number[]): Promise<string> {
  const tally = newTally();
  const before = world.bridge.commands();
  const untilMs = Date.now() + SECONDS * 1_000;
  const target = { policy: policyOf(name), key: load };
  const loads = world.regions.map(({ client }, index) =>
    hammer(
      () => client,
      workers[index] ?? 0,
      target,
      tally,
      () => Date.now() > untilMs,
    ),
  );
  await Promise.all(loads);
  const calls = Object.values(tally.answers).reduce((sum, count) => sum + count, 0);
  const commands = (1_000 * (world.bridge.commands() - before)) / calls;
  const part = (100 * shareOfBound(tally, rate)).toFixed(1);
  const cells = [
    name,
    load,
    Math.round(calls / SECONDS),
    `${part} %`,
    excessOf(tally, rate),
    commands.toFixed(0),
  ];
  return `| ${cells.join(" | ")} |`;
}
