import { expect, test } from "vitest";
import {
  comparedSeries,
  keysOfCandidate,
  ofLatestCandidates,
  policyOfKeys,
} from "../../../core/stats/counts.ts";
import { closing, type ClosedMinute, type OpenMinute, Senders } from "../../../core/stats/ledger.ts";
import { Tally } from "../../../core/stats/tally.ts";

test("of each policy only the counts of its last candidate stay, and all else stays", () => {
  const counts = {
    [comparedSeries("api", 3, "none")]: 5,
    [comparedSeries("api", 12, "none")]: 7,
    [comparedSeries("api", 12, "candidate")]: 1,
    [comparedSeries("login", 2, "both")]: 4,
    "decisions api admitted ok isolate": 9,
    rows_written: 3,
  };
  const { [comparedSeries("api", 3, "none")]: _, ...others } = counts;
  expect(ofLatestCandidates(counts)).toEqual(others);
  expect(ofLatestCandidates(others)).toBe(others);
});

test("they stay when a minute ends, also those of an isolate that lags behind", () => {
  const closed: ClosedMinute = {
    sinceMs: 0,
    totals: { [comparedSeries("api", 4, "none")]: 5 },
    hour: 0,
    hourCounts: {},
  };
  const open: OpenMinute = {
    minute: 1,
    counts: { [comparedSeries("api", 4, "none")]: 2, [comparedSeries("api", 3, "none")]: 8 },
    senders: new Senders(),
  };
  expect(closing(closed, open, 2).closed.totals).toEqual({ [comparedSeries("api", 4, "none")]: 7 });
});

test("the keys are counted that the candidate alone denies, and none where keys may not leave", () => {
  const counted = (mayHaveKeys: boolean) => {
    const asked: string[] = [];
    const tally = new Tally((name) => {
      asked.push(policyOfKeys(name));
      return mayHaveKeys;
    });
    for (const deniedBy of ["none", "candidate", "both", "policy", "unknown", "candidate"] as const)
      tally.compared({ policy: "api", version: 7, key: deniedBy, deniedBy });
    expect(asked).toEqual(["api"]);
    return tally.take();
  };
  const content = counted(true);
  expect(content?.counts).toEqual({
    "compared api 7 none": 1,
    "compared api 7 candidate": 2,
    "compared api 7 both": 1,
    "compared api 7 policy": 1,
    "compared api 7 unknown": 1,
  });
  expect(content?.keys).toMatchObject([
    { policy: keysOfCandidate("api", 7), denied: { keys: [["candidate", 2, 0]] } },
  ]);
  expect(counted(false)?.keys).toEqual([]);
});
