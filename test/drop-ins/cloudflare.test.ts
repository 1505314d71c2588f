import { expect, test } from "vitest";
import { rateLimitBinding } from "../../package/cloudflare.ts";
import { assertAsked, memoryLimiter } from "../../package/testing.ts";

const policies = { login: { algorithm: "sliding-log", limit: 3, window: "1m" } };

test("it is called as Cloudflare's binding is, and says no when the limit is reached", async () => {
  const limiter = memoryLimiter({ policies });
  // Its type is that of the binding: `env` may have it in its place.
  const binding: RateLimit = rateLimitBinding({ limiter, policy: "login" });
  const outcomes = [];
  for (let call = 0; call < 4; call += 1) outcomes.push((await binding.limit({ key: "ann" })).success);
  expect(outcomes).toEqual([true, true, true, false]);
  expect(await binding.limit({ key: "bob", delta: 2 })).toMatchObject({ success: true, remaining: 1 });
  // Cloudflare's would admit this one: it looks only whether anything is left.
  expect(await binding.limit({ key: "bob", delta: 2 })).toMatchObject({ success: false });
  assertAsked(limiter, "limit", { policy: "login", key: "bob", cost: 2 }, 2);
});

test("the policy of the limiter itself is enough", async () => {
  const limiter = memoryLimiter({ policies, policy: "login" });
  expect(await rateLimitBinding({ limiter }).limit({ key: "ann" })).toMatchObject({ policy: "login" });
});
