/** Tests of an application that uses Weir, without a limiter that runs somewhere. */
import { expect, test } from "vitest";
import { assertAsked, manualClock, memoryLimiter, unlimited } from "weir-limiter/testing";
import { makeApp, POLICIES } from "./index.ts";

const post = (body?: object) => ({
  method: "POST",
  ...(body !== undefined && { body: JSON.stringify(body) }),
});

test("a sixth login has to wait, and then it passes", async () => {
  const clock = manualClock();
  const app = makeApp(memoryLimiter({ policies: POLICIES, clock }), clock);
  const login = async (name: string) => (await app.request(`/login/${name}`, post())).status;
  for (let attempt = 0; attempt < 5; attempt += 1) expect(await login("ann")).toBe(200);
  expect(await login("ann")).toBe(429);
  expect(await login("bob")).toBe(200);
  await clock.advance("15m");
  expect(await login("ann")).toBe(200);
});

test("nobody logs in while the limiter is away", async () => {
  const limiter = memoryLimiter({ policies: POLICIES });
  limiter.fail();
  expect((await makeApp(limiter).request("/login/ann", post())).status).toBe(503);
  limiter.recover();
  expect((await makeApp(limiter).request("/login/ann", post())).status).toBe(200);
});

test("each mail counts", async () => {
  const limiter = unlimited();
  const sent = await makeApp(limiter).request("/mails", post({ to: ["a@example.com", "b@example.com"] }));
  expect(await sent.text()).toBe("sent 2");
  assertAsked(limiter, "limit", { policy: "mails", cost: 2 }, 1);
});

test("a body that names nobody is refused, and nothing is asked", async () => {
  const limiter = unlimited();
  for (const body of [undefined, {}, { to: "a@example.com" }, { to: [] }])
    expect((await makeApp(limiter).request("/mails", post(body))).status).toBe(400);
  assertAsked(limiter, "limit", { policy: "mails" }, 0);
});
