/**
 * How much of what an exact bucket admits is admitted when several isolates hold units of one key, in the simulation of
 * `test/simulation/` (virtual time, messages of 2 ms each way): `node bench/saturation.ts`.
 */
import { saturate, SECONDS, type Load } from "../test/simulation/saturation.ts";

const FACTOR = 2;
/** The batch of the literature, as a part of the limit. */
const FIXED = 1 / 1_000;

export async function printSaturation(): Promise<void> {
  const percent = (share: number) => `${(100 * share).toFixed(2)} %`;
  console.log(`
Asked for ${FACTOR} times the limit for ${SECONDS} s, of what one exact bucket admits; in brackets object calls per 1,000 decisions.

| limit | isolates | load | admitted | with a fixed batch of 1/1000 |
| --- | --- | --- | --- | --- |`);
  for (const limit of [100, 1_000, 100_000])
    for (const isolates of [1, 4, 32])
      for (const isSkewed of isolates === 1 ? [false] : [false, true]) {
        const load: Load = { limit, isolates, isSkewed, factor: FACTOR };
        const held = await saturate(load);
        const fixed = await saturate({ ...load, fixedBatch: limit * FIXED });
        const row = [`${limit}/s`, isolates, isSkewed ? "9 of 10 at one" : "even"];
        const figures = [held, fixed].map(
          (each) => `${percent(each.admittedShare)} (${each.calls.toFixed(0)})`,
        );
        console.log(`| ${[...row, ...figures].join(" | ")} |`);
      }
}

if (process.argv[1] === import.meta.filename) await printSaturation();
