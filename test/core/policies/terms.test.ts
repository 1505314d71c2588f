/** While two versions of a policy are in use, what passes has to pass under both: so the bounds of both hold. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { UNTOUCHED, advance, place, placeNoted } from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import { algorithms } from "../../../core/policies/algorithms.ts";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import { rulesIn, stricterOf } from "../../../durable-objects/keys/versions.ts";
import { ruleWith, specimens } from "../../support/algorithms.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import type { Given } from "../../support/specimen.ts";

const NOW_MS = 1_760_000_000_000;
const calls = fc.array(
  fc.record({
    afterMs: fc.oneof(fc.constant(0), fc.nat(50), fc.nat(100_000)),
    part: fc.oneof(fc.constant(1), fc.constant(0.01), fc.double({ min: 0, max: 1, noNaN: true })),
    /** The units are held for so long before they are debited. */
    heldMs: fc.option(fc.integer({ min: 1, max: 5_000 })),
  }),
  { maxLength: 40 },
);

describe.each([...algorithms.values()])("$name under two configurations", (algorithm) => {
  const specimen = specimens[algorithm.name];
  const fields = specimen?.fields ?? fc.constant<Given>({});

  test("keeps both bounds in every interval, and a denial changes nothing", () => {
    fc.assert(
      fc.property(fields, fields, calls, (first, second, history) => {
        const [own, other] = [ruleWith(algorithm, first), ruleWith(algorithm, second)];
        const rule = stricterOf(own, [other]);
        if (rule === undefined) throw new Error("they cannot be compared");
        let account: Account = UNTOUCHED;
        let nowMs = NOW_MS;
        const admitted: { units: number; atMs: number }[] = [];
        for (const { afterMs, part, heldMs } of history) {
          nowMs += afterMs;
          account = advance(rule, account, nowMs);
          const cost = Math.min(1_000_000_000, Math.max(1, Math.ceil(rule.capacity * part)));
          const decision = decide(rule, account, nowMs, cost);
          expect(decide(rule, account, nowMs, 0).remaining >= cost).toBe(decision.allowed);
          if (!decision.allowed) continue;
          const hold = {
            id: `${nowMs}`,
            units: cost,
            expiresAtMs: nowMs + (rule.lease?.ttlMs ?? heldMs ?? 0),
          };
          if (rule.lease !== undefined) account = place(decision.account, hold);
          else account = heldMs === null ? decision.account : placeNoted(rule, account, nowMs, hold);
          admitted.push({ units: cost, atMs: nowMs });
        }
        for (const [from, { atMs }] of admitted.entries()) {
          let units = 0;
          for (const each of admitted.slice(from)) {
            units += each.units;
            for (const given of rule.lease === undefined ? [first, second] : [first])
              expect(specimen?.keepsBound(given, units, each.atMs - atMs)).toBe(true);
          }
        }
      }),
      { numRuns: depth(35, 2_000) },
    );
  });

  test("promises the exact wait", () => {
    fc.assert(
      fc.property(fields, fields, calls, (first, second, history) => {
        const rule = stricterOf(ruleWith(algorithm, first), [ruleWith(algorithm, second)]);
        if (rule === undefined || rule.lease !== undefined) return;
        let account: Account = UNTOUCHED;
        let nowMs = NOW_MS;
        const decideAt = (atMs: number, cost: number) =>
          decide(rule, advance(rule, account, atMs), atMs, cost);
        for (const { afterMs, part, heldMs } of history) {
          nowMs += afterMs;
          account = advance(rule, account, nowMs);
          const cost = Math.min(1_000_000_000, Math.max(1, Math.ceil(rule.capacity * part)));
          const decision = decideAt(nowMs, cost);
          const hold = { id: `${nowMs}`, units: cost, expiresAtMs: nowMs + (heldMs ?? 0) };
          if (decision.allowed)
            account = heldMs === null ? decision.account : placeNoted(rule, account, nowMs, hold);
          else if (decision.retryAfterMs !== null) {
            expect(decideAt(nowMs + decision.retryAfterMs, cost).allowed).toBe(true);
            expect(decideAt(nowMs + decision.retryAfterMs - 1, cost).allowed).toBe(false);
          }
        }
      }),
      { numRuns: depth(16, 1_000) },
    );
  });
});

describe("terms", () => {
  const BUCKET = { algorithm: "token-bucket", limit: 10, window: "1s" };
  const policyOf = (given: object) => parsePolicies({ p: given }).get("p") as Policy;

  test("say what the rules say, whether there is one or there are several", () => {
    for (const given of [
      BUCKET,
      { ...BUCKET, onFailure: "open", deadlineMs: 1, headers: "draft-7" },
      { algorithm: "concurrency", limit: 3, ttl: "5s", maxWait: "1s" },
      { rules: { a: BUCKET, b: { algorithm: "sliding-log", limit: 3, window: "1m", unit: "tokens" } } },
      { ...BUCKET, blockFor: "1m" },
      { ...BUCKET, limit: 0 },
    ]) {
      const policy = policyOf(given);
      const rules = rulesIn("p", policy.terms ?? "");
      expect(rules.map(({ name, config, unit }) => ({ name, config, unit }))).toEqual(
        policy.rules.map(({ name, config, unit }) => ({ name, config, unit })),
      );
    }
  });

  test("are the same when only how callers are answered has changed", () => {
    expect(policyOf({ ...BUCKET, onFailure: "open", shadow: true }).terms).toBe(policyOf(BUCKET).terms);
  });

  test("what one admits and the other denies is not taken from what remains", () => {
    const log = { algorithm: "sliding-log", limit: 10, window: "1s" };
    const rule = stricterOf(policyOf(log).rules[0], policyOf({ ...log, limit: 4 }).rules);
    const { allowed, remaining } = rule?.algorithm.decide(rule.config, undefined, NOW_MS, 9, 0) ?? {};
    expect({ allowed, remaining }).toEqual({ allowed: false, remaining: 4 });
  });

  test("that cannot be read, or compared, change nothing", () => {
    expect(rulesIn("p", "{")).toEqual([]);
    expect(rulesIn("p", JSON.stringify([["p", { algorithm: "of tomorrow" }]]))).toEqual([]);
    const [rule] = policyOf(BUCKET).rules;
    expect(stricterOf(rule, policyOf({ ...BUCKET, algorithm: "sliding-log" }).rules)).toBeUndefined();
    expect(stricterOf(rule, policyOf({ rules: { other: BUCKET } }).rules)).toBeUndefined();
  });
});
