/** Units that are only held are not used: a notice below 1 tells what was used, whatever was held and denied meanwhile. */
import { describe, expect, test } from "vitest";
import type { Notice } from "../../../core/accounts/notices.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import type { Peeked } from "../../../core/protocol/answers.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";
import { depth } from "../../support/depth.ts";
import { announcedSeed, pick, seededRandoms, whole } from "../../support/random.ts";

const START_MS = 1_800_000_000_000;
const THRESHOLDS = [0.5, 0.8, 1];
const FIELDS = { limit: 1_000, window: "30d", burst: 1_000, initial: 1_000, warmup: "1h", maxDelay: "20d" };

/** A table of each algorithm that counts uses: no unit returns while a history lasts. */
const RATES = [...algorithms.values()]
  .filter(({ leasing, isStateless }) => leasing === undefined && isStateless !== true)
  .map(({ name, fields }) => {
    const given = Object.entries(FIELDS).filter(([field]) => field in fields);
    return [name, { algorithm: name, ...Object.fromEntries(given), notify: THRESHOLDS }] as const;
  });

function start(table: object) {
  const told: Notice[] = [];
  const object = new AlarmedObject(known({ p: table }), START_MS, () => async ({ notice }) => {
    told.push(notice);
  });
  const settle = (id: string, used: number) =>
    object.ask("key", (each, keyState, nowMs) => each.settle(keyState, { id, used }, nowMs));
  const remaining = () =>
    object.ask("key", (each, keyState, nowMs) => (each.peek(keyState, nowMs) as Peeked).rules[0])
      ?.remaining ?? 0;
  const sent = async () => {
    for (let turn = 0; turn < 40; turn += 1) await Promise.resolve();
    return told;
  };
  return { object, settle, remaining, sent };
}

describe.each(RATES)("%s", (_, table) => {
  test("a hold that is cancelled has used nothing, also when a call was denied meanwhile", async () => {
    const { object, settle, remaining, sent } = start(table);
    const all = remaining();
    const { hold } = object.hold("key", Math.ceil(all * 0.85), 40_000);
    expect(object.limit("key", Math.ceil(all * 0.2)).rules[0]?.success).toBe(false);
    await settle(hold?.id ?? "", 0);
    expect(await sent()).toEqual([]);
  });

  test("in any history of holds, settlements and denials a notice below 1 is told when its units are used", async () => {
    const randoms = seededRandoms(announcedSeed(`held-units-${table.algorithm}`));
    let denials = 0;
    for (let run = 0; run < depth(10, 400); run += 1) {
      const random = randoms(run);
      const { object, settle, remaining, sent } = start(table);
      const all = remaining();
      const holds: { readonly id: string; readonly units: number }[] = [];
      let used = 0;
      for (let step = 0; step < 25; step += 1) {
        const units = 1 + whole(random, Math.ceil(all * 0.3));
        const draw = random();
        if (draw < 0.25) {
          const isAdmitted = object.limit("key", units).rules[0]?.success === true;
          if (isAdmitted) used += units;
          else denials += 1;
        } else if (draw < 0.6) {
          const { hold } = object.hold("key", units, 3_600_000);
          if (hold === undefined) denials += 1;
          else holds.push({ id: hold.id, units });
        } else if (holds.length > 0) {
          const ended = pick(random, holds);
          holds.splice(holds.indexOf(ended), 1);
          const part = random() < 0.6 ? 0 : whole(random, ended.units + 1);
          await settle(ended.id, part);
          used += part;
        }
        const below = (await sent()).map(({ threshold }) => threshold).filter((threshold) => threshold < 1);
        expect(below.toSorted((one, other) => one - other)).toEqual(
          THRESHOLDS.filter((each) => each < 1 && used >= each * all),
        );
      }
    }
    expect(denials).toBeGreaterThan(depth(0, 50));
  });
});
