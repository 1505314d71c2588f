/**
 * Measures how much is admitted when several isolates hold units of one key, compared with one exact bucket:
 * `node bench/saturation.ts`. It runs in the simulation of `test/simulation/`, in virtual time. A message takes 2 ms
 * each way on average.
 */
import { saturate, SECONDS, type Load } from "../test/simulation/saturation.ts";

const FACTOR = 2;
/** The fixed batch that is compared, as a part of the limit: it is the one that the literature proposes. */
const FIXED = 1 / 1_000;

const ISOLATES = [1, 4, 32];
const percent = (share: number) => `${(100 * share).toFixed(2)} %`;

export async function printSaturation(): Promise<void> {
  console.log(`
Load of ${FACTOR} times the limit for ${SECONDS} s: admitted, of what one exact bucket admits; object calls per 1,000 decisions.

| limit | isolates | load | admitted | calls | with a fixed batch of 1/1000 | calls | units stranded in the end |
| --- | --- | --- | --- | --- | --- | --- | --- |`);
  for (const limit of [100, 1_000, 100_000])
    for (const isolates of ISOLATES)
      for (const isSkewed of isolates === 1 ? [false] : [false, true]) {
        const load: Load = { limit, isolates, isSkewed, factor: FACTOR };
        const held = await saturate(load);
        const fixed = await saturate({ ...load, fixedBatch: limit * FIXED });
        const figures = [held, fixed].flatMap((each) => [percent(each.admittedShare), each.calls.toFixed(0)]);
        const row = [
          `${limit}/s`,
          isolates,
          isSkewed ? "9 of 10 at one" : "even",
          ...figures,
          fixed.stranded,
        ];
        console.log(`| ${row.join(" | ")} |`);
      }
  await printSteady();
}

/** Measures a load below the limit: no call is denied, but some wait for the object. */
async function printSteady(): Promise<void> {
  console.log(`
Load of 0.8 times the limit: calls that waited for the object, and object calls per 1,000 decisions.

| limit | isolates | admitted | waited | calls |
| --- | --- | --- | --- | --- |`);
  for (const limit of [1_000, 10_000, 100_000])
    for (const isolates of ISOLATES) {
      const { admittedShare, waitedShare, calls } = await saturate({
        limit,
        isolates,
        isSkewed: false,
        factor: 0.8,
      });
      const figures = [percent(admittedShare), percent(waitedShare), calls.toFixed(1)];
      console.log(`| ${[`${limit}/s`, isolates, ...figures].join(" | ")} |`);
    }
}

if (process.argv[1] === import.meta.filename) await printSaturation();
