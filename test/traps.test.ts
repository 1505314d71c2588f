/** Those of the mistakes in test/worker/traps.workerd.test.ts that need no runtime. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { UNTOUCHED } from "../core/accounts/account.ts";
import type { Account } from "../core/accounts/hold.ts";
import type { Rule } from "../core/policies/policy.ts";
import { decide } from "./support/decide.ts";
import { bucket, log } from "./support/rules.ts";

/** How many of calls of cost 1, so far apart, pass. */
function admitted(rule: Rule, calls: number, apartMs: number): number {
  let [account, count] = [UNTOUCHED, 0];
  for (let call = 0; call < calls; call += 1) {
    const decision = decide(rule, account, Math.floor(call * apartMs), 1);
    if (!decision.allowed) continue;
    ({ account } = decision);
    count += 1;
  }
  return count;
}

describe("3. limits are kept at any rate", () => {
  test("1000 per 60 s, a call a millisecond for ten minutes: the burst and ten times a thousand, no more", () => {
    expect(admitted(bucket({ limit: 1_000, window: 60_000 }), 600_000, 1)).toBe(1_000 + 9_999);
    expect(admitted(log({ limit: 1_000, window: 60_000 }), 600_000, 1)).toBe(10_000);
  });

  test("a million a second, called a thousand times each millisecond", () => {
    expect(admitted(bucket({ limit: 1_000_000, window: 1_000, burst: 5_000 }), 100_000, 1 / 2_000)).toBe(
      5_000 + 49 * 1_000,
    );
  });

  test("1 per 1 ms, per 7 ms, per 30 days", () => {
    expect(admitted(bucket({ limit: 1, window: 1 }), 50, 1)).toBe(50);
    expect(admitted(bucket({ limit: 1, window: 7 }), 70, 1)).toBe(10);
    expect(admitted(log({ limit: 1, window: 7 }), 70, 1)).toBe(10);
    expect(admitted(bucket({ limit: 1, window: 30 * 86_400_000 }), 50, 1_000)).toBe(1);
  });
});

describe("10. a policy that changes keeps what was consumed, and its new limit counts at once", () => {
  const changes = [
    { name: "token bucket", of: (limit: number) => bucket({ limit, window: 1_000_000 }) },
    { name: "sliding log", of: (limit: number) => log({ limit, window: 1_000_000 }) },
  ];
  test.each(changes)("$name", ({ of }) => {
    const decision = decide(of(10), UNTOUCHED, 0, 7);
    if (!decision.allowed) throw new Error("7 of 10 pass");
    const left = (limit: number, account: Account = decision.account) =>
      decide(of(limit), account, 0, 0).remaining;
    expect([left(10), left(20), left(7), left(5)]).toEqual([3, 13, 0, 0]);
  });

  test("a sliding log whose window changes counts what was in the new window", () => {
    const decision = decide(log({ limit: 10, window: 1_000 }), UNTOUCHED, 0, 7);
    if (!decision.allowed) throw new Error("7 of 10 pass");
    expect(decide(log({ limit: 10, window: 100 }), decision.account, 500, 0).remaining).toBe(10);
    expect(decide(log({ limit: 10, window: 5_000 }), decision.account, 4_999, 0).remaining).toBe(3);
  });
});

test("14. no timer, clock or randomness is touched while a module loads", () => {
  const root = join(import.meta.dirname, "..");
  const files = ["worker", "durable-objects"].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" }).map((file) =>
      join(root, folder, file),
    ),
  );
  const atLoad = files
    .filter((file) => file.endsWith(".ts"))
    .flatMap((file) => readFileSync(file, "utf8").split("\n"))
    // What stands at the margin and runs at once: a constant that is called for, or a bare call.
    .filter((line) => /^(export )?(const|let) .*= (await )?[\w.]+\(|^[\w.]+\(/.test(line))
    .filter((line) => /setTimeout|setInterval|readClockMs|randomId|Date\b|performance|crypto/.test(line));
  expect(atLoad).toEqual([]);
});
