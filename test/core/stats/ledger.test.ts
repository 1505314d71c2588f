import { expect, test } from "vitest";
import {
  MAX_PLANS,
  merged,
  OTHER_PLANS,
  OTHER_POLICIES,
  PolicyNames,
  type Counts,
} from "../../../core/stats/counts.ts";
import {
  closing,
  hourOf,
  MAX_SENDERS,
  namesIn,
  SENDER_KEPT_MS,
  Senders,
  Tops,
  withMessages,
  type ClosedMinute,
  type OpenMinute,
  type SenderMark,
} from "../../../core/stats/ledger.ts";
import type { StatsMessage } from "../../../core/stats/messages.ts";
import { SENT_AGAIN_MS } from "../../../core/stats/tally.ts";
import { seededRandom, seedOr, pick, whole } from "../../support/random.ts";

const OPEN: OpenMinute = { minute: 0, counts: {}, senders: new Senders() };
const CLOSED: ClosedMinute = { sinceMs: 0, totals: {}, hour: 0, hourCounts: {} };
const messageOf = (sender: string, number: number, counts: Counts) => ({ sender, number, counts, keys: [] });
const withMessage = (open: OpenMinute, message: StatsMessage, names: PolicyNames, nowMs: number) =>
  withMessages(open, [message], names, nowMs).open;
const idsOf = ({ senders }: OpenMinute) => senders.toJSON().map(([id]) => id);

test("a message counts once, however often it comes, and an earlier one does not count after it", () => {
  const first = messageOf("a", 1, { rows_read: 2 });
  const second = messageOf("a", 2, { rows_read: 3 });
  const messages = [first, second, first, second, messageOf("b", 1, { rows_read: 4 })];
  const expected = { rows_read: 9, "stats_messages counted": 3, "stats_messages repeated": 2 };
  // It does not matter which of them come together.
  for (let cut = 0; cut <= messages.length; cut += 1) {
    const names = new PolicyNames();
    const one = withMessages(OPEN, messages.slice(0, cut), names, 0);
    const other = withMessages(one.open, messages.slice(cut), names, 1);
    expect(other.open.counts).toEqual(expected);
    expect([...one.fresh, ...other.fresh]).toEqual([first, second, messages[4]]);
  }
  expect(OPEN.counts).toEqual({});
  expect(idsOf(OPEN)).toEqual([]);
});

test("a sender is remembered for longer than it sends a message again", () => {
  const names = new PolicyNames();
  expect(SENDER_KEPT_MS).toBeGreaterThan(2 * SENT_AGAIN_MS);
  let open = withMessage(OPEN, messageOf("a", 1, {}), names, 0);
  open = withMessage(open, messageOf("b", 1, {}), names, SENDER_KEPT_MS - 1);
  expect(idsOf(open)).toEqual(["a", "b"]);
  open = withMessage(open, messageOf("c", 1, {}), names, SENDER_KEPT_MS);
  expect(idsOf(open)).toEqual(["b", "c"]);
});

test("so many senders are remembered and no more: those that were heard last, also after a start", () => {
  const messages = Array.from({ length: MAX_SENDERS + 10 }, (_, sender) => messageOf(`s${sender}`, 1, {}));
  const again = [...messages.slice(0, MAX_SENDERS), messageOf("s3", 2, {}), ...messages.slice(MAX_SENDERS)];
  const { open } = withMessages(OPEN, again, new PolicyNames(), 0);
  const started = new Senders(JSON.parse(JSON.stringify(open.senders)) as SenderMark[]);
  expect(started.toJSON()).toEqual(open.senders.toJSON());
  expect(idsOf(open).length).toBe(MAX_SENDERS);
  expect(idsOf(open).at(-1)).toBe(`s${MAX_SENDERS + 9}`);
  expect(["s3", "s2", "s11", "never"].map((id) => started.lastOf(id))).toEqual([2, 0, 1, 0]);
});

test("policies past the bound are counted under one name, and lose nothing", () => {
  const names = new PolicyNames(1);
  const counts = {
    "decisions a denied quota object": 1,
    "decisions b denied quota object": 2,
    "leases_granted c": 3,
  };
  const open = withMessage(OPEN, messageOf("s", 1, counts), names, 0);
  expect(open.counts).toMatchObject({
    "decisions a denied quota object": 1,
    [`decisions ${OTHER_POLICIES} denied quota object`]: 2,
    [`leases_granted ${OTHER_POLICIES}`]: 3,
  });
});

test("plans past the bound are counted under one name, also after a start, and lose nothing", () => {
  const counts = Object.fromEntries(
    Array.from({ length: MAX_PLANS }, (_, plan) => [`plan_decisions api p${plan} admitted`, 1]),
  );
  const full = withMessage(OPEN, messageOf("s", 1, counts), new PolicyNames(), 0);
  const more = { "plan_decisions api p0 admitted": 2, "plan_decisions api q denied": 3 };
  const open = withMessage(full, messageOf("s", 2, more), namesIn(full.counts), 0);
  expect(open.counts).toMatchObject({
    "plan_decisions api p0 admitted": 3,
    [`plan_decisions api ${OTHER_PLANS} denied`]: 3,
  });
  expect(Object.keys(open.counts).length).toBe(MAX_PLANS + 2);
});

test("a key of this hour and the last one has the plan of its last decision", () => {
  const tops = new Tops();
  for (const [hour, plan] of ["free", "pro"].entries())
    tops.add([{ policy: "api", active: { keys: [["a", 1, 0, plan]], least: 0 } }], hour * 3_600_000);
  expect(tops.answer({ policy: "api", by: "active" }, 3_600_000).keys).toEqual([["a", 2, 0, "pro"]]);
});

test("minutes and hours have all decisions, each once, and so do the totals", () => {
  const random = seededRandom(seedOr(7));
  for (let history = 0; history < 200; history += 1) {
    const names = new PolicyNames();
    let [open, closed, minute, counted] = [OPEN, CLOSED, 0, 0];
    const steps = { minute: new Map<number, number>(), hour: new Map<number, number>() };
    const sumOf = (byPolicy: ReadonlyMap<string, Counts>) =>
      [...byPolicy.values()].flatMap((each) => Object.values(each)).reduce((sum, each) => sum + each, 0);
    const close = (now: number) => {
      const closes = closing(closed, open, now);
      steps.minute.set(open.minute, sumOf(closes.minute));
      if (closes.hour.size > 0) {
        expect(steps.hour.has(closes.closed.hour)).toBe(false);
        steps.hour.set(closes.closed.hour, sumOf(closes.hour));
      }
      [closed, open] = [closes.closed, { ...open, minute: now, counts: {} }];
    };
    const truth = new Map<number, number>();
    for (let number = 1; number <= 30; number += 1) {
      minute += pick(random, [0, 0, 1, 7, 59, 60, 300]);
      if (minute > open.minute) close(minute);
      const count = whole(random, 5);
      const counts = { [`decisions ${pick(random, ["a", "b"])} denied quota object`]: count };
      open = withMessage(open, messageOf("s", number, counts), names, minute * 60_000);
      counted += count;
      truth.set(hourOf(minute), (truth.get(hourOf(minute)) ?? 0) + count);
    }
    close(minute + 60);
    const sum = (numbers: Iterable<number>) => [...numbers].reduce((total, each) => total + each, 0);
    expect(sum(steps.minute.values())).toBe(counted);
    expect(sum(steps.hour.values())).toBe(counted);
    for (const [hour, count] of steps.hour) expect(count).toBe(truth.get(hour));
    const { "stats_messages counted": messages, ...decisions } = merged(closed.totals, open.counts);
    expect(messages).toBe(30);
    expect(sum(Object.values(decisions))).toBe(counted);
  }
});
