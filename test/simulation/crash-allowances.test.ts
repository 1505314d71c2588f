import { expect, test } from "vitest";
import type { AnyAlgorithm } from "../../core/algorithms/algorithm.ts";
import type { Policies, Policy, Rule } from "../../core/policies/policy.ts";
import type { StoredAccount } from "../../durable-objects/storage/records.ts";
import { depth, inDeepRuns } from "../support/depth.ts";
import { announcedSeed, seedOr } from "../support/random.ts";
import { AllowanceHistory, type AllowanceBreakage, type AllowanceOutcome } from "./crash-allowances.ts";
import { Database } from "./database.ts";
import { BrokenLaw } from "./laws.ts";

const HISTORIES = depth(10, 600);
const MAX = 20_000;
const PATIENT = { timeout: 300_000 };

/** @throws Error that names the seed of the first history that broke a law */
function play(first: number, histories: number, breakage?: AllowanceBreakage): AllowanceOutcome {
  const database = new Database();
  const sum: Record<string, number> = {};
  for (let seed = first; seed < first + histories; seed += 1)
    try {
      for (const [name, count] of Object.entries(new AllowanceHistory(seed, database, breakage).run()))
        sum[name] = (sum[name] ?? 0) + Number(count);
    } catch (error) {
      throw new Error(`SEED=${seed}: ${String(error)}`, { cause: error });
    }
  return sum as unknown as AllowanceOutcome;
}

test(
  `in ${HISTORIES} random histories of many keys nothing is admitted over the bound, whenever the machine dies`,
  PATIENT,
  () => {
    const sum = play(announcedSeed("leads"), HISTORIES);
    expect(sum.admitted).toBeGreaterThan(500 * HISTORIES);
    expect(sum.crashes).toBeGreaterThan(5 * HISTORIES);
    expect(sum.deaths).toBeGreaterThan(HISTORIES / 2);
  },
);

/** The policies with this algorithm in every rule. */
function withAlgorithm(change: (algorithm: AnyAlgorithm) => AnyAlgorithm): (policies: Policies) => Policies {
  const changed = (rule: Rule): Rule => ({ ...rule, algorithm: change(rule.algorithm) });
  return (policies) =>
    new Map(
      [...policies].map(([name, policy]) => [
        name,
        { ...policy, rules: policy.rules.map(changed) as unknown as Policy["rules"] },
      ]),
    );
}

/** Records without the units that were presumed when they were written. */
function withoutPresumed(rules: string): string {
  const records = JSON.parse(rules) as Record<string, Partial<StoredAccount>>;
  const changed = Object.entries(records).map(([name, record]) => {
    const { ahead = 0, presumed = [] } = record;
    const before = presumed.reduce((sum, [units]) => sum + units, 0);
    return [name, before === 0 ? record : { ...record, ahead: ahead - before, presumed: [] }];
  });
  return JSON.stringify(Object.fromEntries(changed));
}

const PLANTED: Record<string, AllowanceBreakage> = {
  "a check before the answer left out": {
    policies: withAlgorithm((algorithm) => ({ ...algorithm, covers: () => true })),
  },
  "a restart that presumes nothing": {
    atCrash: (database) => database.rewriteLead(() => "[]"),
  },
  "a restart that presumes nothing beyond records": {
    atCrash: (database) => database.rewrite((rules) => rules.replaceAll(/"ahead":\d+/g, '"ahead":0')),
  },
  "a lead that ends by a clock that is a minute behind": {
    atCrash: (database) =>
      database.rewriteLead((lead) =>
        lead.replace(/"untilMs":(?<ms>\d+)/, (_, ms) => `"untilMs":${Number(ms) - 60_000}`),
      ),
  },
  "a restart that presumes units of a record for a shorter time than holders have them": {
    atCrash: (database) => database.rewrite((rules) => rules.replaceAll(/"ttlMs":\d+/g, '"ttlMs":1')),
  },
  "a restart that does not presume what was presumed before": {
    atCrash: (database) => database.rewrite(withoutPresumed),
  },
  "a restart that takes units ahead for used at once": {
    atCrash: (database) => {
      database.rewriteLead((lead) => lead.replace(/"untilMs":\d+/, '"untilMs":0'));
    },
  },
};

/** First seeds shortly before a history that shows the fault, where a search would be long. */
const FIRST_SEEDS: Readonly<Record<string, number>> = {
  "a restart that presumes units of a record for a shorter time than holders have them": 350,
};

inDeepRuns.each(Object.entries(PLANTED))("%s is found", PATIENT, (name, breakage) => {
  let found: unknown;
  try {
    play(seedOr(FIRST_SEEDS[name] ?? 1), MAX, breakage);
  } catch (error) {
    found = error;
  }
  expect(String(found)).toMatch(/SEED=\d+.*over the bound/);
  expect((found as Error).cause).toBeInstanceOf(BrokenLaw);
});
