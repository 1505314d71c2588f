/** What a bucket of a log may have used of a rate that it gives up: never less than it used, and no more than it had. */
import { expect, test } from "vitest";
import { outstandingOf, place, refund } from "../../../core/accounts/account.ts";
import { type Account, holdWith } from "../../../core/accounts/hold.ts";
import { countedAt, type UnitLog } from "../../../core/algorithms/log/unit-log.ts";
import { RATE_WINDOWS } from "../../../core/algorithms/token-bucket.ts";
import type { Policy, Rule } from "../../../core/policies/policy.ts";
import { type GivenRate, settleRate, withRate } from "../../../durable-objects/keys/given-rates.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { announcedSeed, seededRandom, whole } from "../../support/random.ts";

const LIMIT = 1_000;
const WINDOW_MS = 2_000;
const POLICIES = parsePolicies({ log: { algorithm: "sliding-log", limit: LIMIT, window: "2s" } });
const [rule] = (POLICIES.get("log") as Policy).rules as [Rule];

const { algorithm, config } = rule;

/** An account of which one bucket is cut, by units in a window, and which admits calls itself. */
function cutAccount() {
  let account: Account = { state: undefined, holds: [] };
  let rates: readonly GivenRate[] = [];
  const unitsHeld = () => outstandingOf(account);
  const admit = (units: number, nowMs: number) =>
    void (account = { ...account, state: algorithm.debit(config, account.state, nowMs, units) });
  // @param isUsed otherwise nothing of the bucket was used; `part`: of what may leave the log for it
  const cutTo = (rate: number, nowMs: number, { isUsed = true, part = 0 } = {}) => {
    const units = Math.floor(rate / RATE_WINDOWS);
    const hold = holdWith(account.holds, "h");
    const used = isUsed ? Math.max(0, (hold?.units ?? 0) - units) : 0;
    const left = Math.min(rate, hold?.rate?.units ?? 0);
    if (hold !== undefined) account = settleRate({ rule, account, rates }, { hold, used, rate }, nowMs);
    const more = Math.max(0, units - (hold?.units ?? 0));
    const moved = Math.floor(part * (algorithm.evenPace?.most(config, account.state, nowMs, more) ?? 0));
    account = refund(rule, account, nowMs, moved);
    rates = withRate(rates, { left, now: rate, moved }, nowMs);
    const having = { units: rate, windowMs: RATE_WINDOWS * WINDOW_MS, isHeld: true } as const;
    account = place(
      { ...account, holds: account.holds.filter(({ id }) => id !== "h") },
      { id: "h", units, expiresAtMs: Infinity, rate: having },
    );
  };
  return {
    admit,
    cutTo,
    unitsHeld,
    // More than the limit, too.
    usedAt: (nowMs: number) => countedAt(account.state as UnitLog | undefined, WINDOW_MS, nowMs),
  };
}

/** By so much the object's clock may be set back. */
const BACK_MS = 250;

test("what counts of a bucket is never less than what it may have admitted in any window", () => {
  const random = seededRandom(announcedSeed("given rates"));
  for (let history = 0; history < 40; history += 1) {
    const { admit, cutTo, unitsHeld, usedAt } = cutAccount();
    const backAtMs = whole(random, 10_000);
    const clockAt = (ms: number) => Math.max(ms - (ms < backAtMs ? 0 : BACK_MS), Math.min(ms, backAtMs));
    // By millisecond, the units that came until then.
    const came = [0];
    const cameBy = (ms: number) => came[Math.max(0, ms)] ?? 0;
    for (let [change, nowMs] = [0, 0]; change < 30; change += 1) {
      // Its units are whole, and its rate need not be.
      const rate = whole(random, (random() < 0.5 ? LIMIT : LIMIT / 10) * RATE_WINDOWS);
      cutTo(rate, clockAt(nowMs), { part: random() < 0.5 ? 0 : random() });
      for (const untilMs = nowMs + whole(random, random() < 0.7 ? 300 : 1_500); nowMs < untilMs; nowMs += 1) {
        const own = random() < 0.01 && LIMIT - unitsHeld() - usedAt(clockAt(nowMs)) > 100 ? 100 : 0;
        if (own > 0) admit(own, clockAt(nowMs));
        came.push(cameBy(nowMs) + own + rate / RATE_WINDOWS / WINDOW_MS);
        const inWindow = Math.floor(cameBy(nowMs + 1) - cameBy(nowMs + 1 - WINDOW_MS) + 1e-6);
        const counted = usedAt(clockAt(nowMs)) + unitsHeld();
        if (counted < inWindow) expect({ nowMs, counted }).toEqual({ nowMs, inWindow });
      }
    }
  }
});

test("a bucket that is given up soon has used what came until then, and little more", () => {
  const { cutTo, usedAt } = cutAccount();
  const BEGAN_MS = 10_000;
  cutTo(500 * RATE_WINDOWS, BEGAN_MS);
  cutTo(200 * RATE_WINDOWS, BEGAN_MS + 400);
  const first = Math.ceil((300 * (400 + BACK_MS)) / WINDOW_MS);
  expect(usedAt(BEGAN_MS + 400)).toBe(first);
  cutTo(0, BEGAN_MS + 1_000);
  expect(usedAt(BEGAN_MS + 1_000)).toBe(first + (200 * (1_000 + BACK_MS)) / WINDOW_MS);
});

test("of a rate that it had for a window it may have used all", () => {
  const { cutTo, usedAt } = cutAccount();
  cutTo(500 * RATE_WINDOWS, 0);
  cutTo(0, WINDOW_MS);
  expect(usedAt(WINDOW_MS)).toBe(500);
});

test("a bucket that is returned unused gives back to the log what left it", () => {
  const { admit, cutTo, usedAt } = cutAccount();
  for (let nowMs = 0; nowMs < WINDOW_MS; nowMs += 2) admit(1, nowMs);
  cutTo(500 * RATE_WINDOWS, WINDOW_MS, { part: 1 });
  expect(usedAt(WINDOW_MS)).toBeLessThan(LIMIT - 400);
  const nowMs = WINDOW_MS + 100;
  cutTo(0, nowMs, { isUsed: false });
  // All but those of the first 100 ms count.
  expect(usedAt(nowMs)).toBeGreaterThanOrEqual(LIMIT - 50);
});
