/** An address at which somebody answers who is no limiter. */
import { expect, test, vi } from "vitest";
import { createLimiter } from "../../package/client.ts";

const PAGES = {
  "an empty object": () => Response.json({}),
  "a page": () => new Response("<html>sign in</html>", { headers: { "content-type": "text/html" } }),
  nothing: () => new Response(null, { status: 204 }),
  "a text": () => Response.json("ok"),
  null: () => Response.json(null),
  "something created": () => Response.json({ success: true, rules: [] }, { status: 201 }),
};
const ASKED = { policy: "api", key: "a" };
const ID = { id: "lease_x" };

test.each(Object.keys(PAGES) as (keyof typeof PAGES)[])("%s is taken for no answer", async (page) => {
  const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const way = { url: "https://elsewhere.test", token: "weir_token", fetch: async () => PAGES[page]() };
  const limiter = createLimiter(way);
  for (const decided of [
    limiter.limit(ASKED),
    limiter.limit({ ...ASKED, idempotencyKey: "b" }),
    limiter.hold({ ...ASKED, units: 1 }),
    limiter.acquire(ASKED),
    limiter.limitAll({ checks: [ASKED] }).then(({ decisions }) => decisions[0]),
    limiter.limitAny({ checks: [ASKED, ASKED] }).then(({ decisions }) => decisions.at(-1)),
  ])
    expect(await decided).toMatchObject({ success: false, reason: "degraded" });
  const message = expect.stringContaining("(the address does not answer as Weir does: 20") as string;
  const unavailable = { status: 503, code: "unavailable", message };
  for (const made of [
    () => limiter.refund({ ...ASKED, units: 1, idempotencyKey: "c" }),
    () => limiter.renew(ID),
    () => limiter.settle({ ...ID, used: 1 }),
    () => limiter.peek(ASKED),
    () => limiter.policies(),
    // What answers nothing to what is answered with nothing cannot be told from a limiter.
    ...(page === "nothing" ? [] : [() => limiter.release(ID), () => limiter.cancel(ID)]),
    ...(page === "nothing" ? [] : [() => limiter.reset(ASKED)]),
  ])
    await expect(made()).rejects.toMatchObject(unavailable);
  expect(String(warn.mock.calls[0])).toContain("the address does not answer as Weir does: 20");
  warn.mockRestore();
});
