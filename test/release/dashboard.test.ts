/** Operators use the dashboard in a real browser over real traffic: keys, policies, candidates and the catalog. */
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import {
  choose,
  DASHBOARD_POLICIES,
  endlessTraffic,
  fill,
  goTo,
  HAMMERING,
  limitOf,
  NO_TIMERS,
  openPage,
  press,
  rowsOf,
  says,
  send,
  serveDashboard,
  signIn,
  textOf,
  traffic,
  type ServedDashboard,
  until,
} from "../support/dashboard.ts";
import { TOKENS } from "../support/fixtures.ts";

let { serving, browser } = {} as ServedDashboard;
serveDashboard((served) => ({ serving, browser } = served));

test("among 50 keys the one that hammers is found, blocked and let in again; a customer is raised", async () => {
  const { url } = serving;
  const load = endlessTraffic(url);
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);

  // It is on the first page, and the first of its policy's keys.
  await page.waitForSelector("[data-policy=api] .figure.bad");
  await page.waitForSelector("[data-policy=api] .plot canvas");
  await until(async () => (await rowsOf(page, "[data-limited]")).length > 0);
  expect((await rowsOf(page, "[data-limited]")).map(({ key, policy }) => [key, policy])).toEqual([
    [HAMMERING, "api"],
  ]);
  await press(page, "api", "[data-policy=api]");
  await page.waitForSelector("[data-top=denied] .key a");
  const [first, ...others] = await rowsOf(page, "[data-top=denied]");
  expect(first?.["key"]).toBe(HAMMERING);
  expect(Number(first?.["denied"]?.replaceAll(",", ""))).toBeGreaterThan(0);
  expect(others.map(({ denied }) => denied)).toEqual(others.map(() => "0"));
  await press(page, HAMMERING, "[data-top=denied]");

  // Block it, and watch it take effect.
  await page.waitForSelector("[data-reason=quota]");
  await press(page, "Block");
  await says(page, `Block ${HAMMERING}?`);
  await choose(page, "dialog select[name=lasts]", "1 hour");
  await says(page, "Until ");
  await press(page, "Block", "dialog");
  await page.waitForSelector("[data-reason=blocked]");
  const block = await send(url, "GET", `/v1/policies/api/overrides/${HAMMERING}`);
  expect(block).toMatchObject({ blocked: true, expiresAt: expect.any(String) });
  expect(await limitOf(url, "api", HAMMERING)).toMatchObject({ success: false, reason: "blocked" });

  // Raise a customer.
  await goTo(page, "#/policy/api");
  await (await page.waitForSelector("input[name=key]"))?.type("tenant-7");
  await page.keyboard.press("Enter");
  await press(page, "Raise × 10");
  await press(page, "Raise × 10", "dialog");
  await says(page, "all limits × 10");
  expect(await limitOf(url, "api", "tenant-7")).toMatchObject({ success: true, limit: 300 });

  // Undo both: one by the note that says what was done, the other later.
  await press(page, "Undo");
  await until(async () => (await limitOf(url, "api", "tenant-7"))["limit"] === 30);
  await goTo(page, `#/key/api/${HAMMERING}`);
  await press(page, "Unblock");
  await press(page, "Unblock", "dialog");
  await until(async () => (await limitOf(url, "api", HAMMERING))["reason"] !== "blocked");
  await page.waitForSelector("[data-reason=quota]");

  // A reset gives it what it had at first.
  await load.stop();
  await press(page, "Reset");
  await press(page, "Reset", "dialog");
  await page.waitForSelector("[data-reason=ok]");

  // All of it is in the audit log.
  await press(page, "Catalog");
  await says(page, `override api ${HAMMERING}`);
  expect(await textOf(page)).toContain("override api tenant-7");
  expect(faults).toEqual([]);
});

test("keys that are denied now are listed, whatever their policy; one that is admitted again is not", async () => {
  const { url } = serving;
  // Both have had a denial; one has its leases still.
  const leased = async (key: string) => {
    const acquired: Record<string, unknown>[] = [];
    for (let lease = 0; lease < 4; lease += 1)
      acquired.push(await send(url, "POST", "/v1/leases", { policy: "export", key }));
    expect(acquired.map(({ success }) => success)).toEqual([true, true, true, false]);
    return acquired.flatMap(({ lease }) => (lease === undefined ? [] : [(lease as { id: string }).id]));
  };
  await leased("spent");
  for (const id of await leased("released")) await send(url, "DELETE", `/v1/leases/${id}`);
  await until(async () => {
    const { keys } = await send(url, "GET", "/v1/stats/keys?policy=export&by=denied");
    return (keys as object[]).length === 2;
  });
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  const mine = async () =>
    (await rowsOf(page, "[data-limited]")).filter(({ key = "" }) => ["spent", "released"].includes(key));
  await until(async () => (await mine()).length > 0);
  expect(await mine()).toMatchObject([{ key: "spent", policy: "export", reason: "quota", denials: "1" }]);
  expect(faults).toEqual([]);
});

test("rates are those of the history at first: an attack is seen with the first answers", async () => {
  const { url } = serving;
  const load = endlessTraffic(url);
  const denials = async () => {
    const { points } = await send(url, "GET", "/v1/stats?policy=api&since=1m");
    return (points as { denied: number }[]).some(({ denied }) => denied > 0);
  };
  await until(denials);
  const { page, faults } = await openPage(browser);
  // The page never reads its counters a second time.
  await page.evaluateOnNewDocument(NO_TIMERS);
  await signIn(page, url, TOKENS.full);
  const figure = await page.waitForSelector("[data-policy=api] [data-figure='denied / s'].bad");
  expect(figure).not.toBeNull();
  await load.stop();
  expect(faults).toEqual([]);
});

test("a policy's first calls are in its plot as soon as in its rates", async () => {
  const { url } = serving;
  await send(url, "PUT", "/v1/policies/fresh", { algorithm: "token-bucket", limit: 5, window: "1m" });
  // All cards are in view.
  const { page, faults } = await openPage(browser, { width: 1_100, height: 2_000 });
  // Plots are never read a second time by themselves.
  await page.evaluateOnNewDocument(`{
    const after = window.setTimeout.bind(window);
    window.setTimeout = (work, ms, ...args) => (ms === 20_000 ? 0 : after(work, ms, ...args));
  }`);
  await signIn(page, url, TOKENS.full);
  const plot = "[data-policy=fresh] [aria-label^='In the last hour: ";
  await page.waitForSelector(`${plot}0 admitted']`);
  await page.waitForSelector("[data-policy=fresh] [data-figure='admitted / s']");
  await until(async () => (await limitOf(url, "fresh", "first"))["success"] === true);
  await page.waitForSelector(`${plot}1 admitted']`);
  await send(url, "DELETE", "/v1/policies/fresh");
  expect(faults).toEqual([]);
});

test("the plan that decided is seen of a policy's history, of its top keys, and of a key", async () => {
  const { url } = serving;
  for (let call = 0; call < 8; call += 1) {
    await send(url, "POST", "/v1/limit", { policy: "customer", key: "acme", plan: "pro" });
    await send(url, "POST", "/v1/limit", { policy: "customer", key: "corner-shop" });
  }
  await until(async () => {
    const { points } = await send(url, "GET", "/v1/stats?policy=customer&step=hour");
    const sums = (points as { admitted: number; denied: number }[]).map(
      (each) => each.admitted + each.denied,
    );
    return sums.reduce((all, each) => all + each, 0) === 16;
  });
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/customer");
  await page.waitForSelector("[data-part=plans] tbody tr");
  expect(await rowsOf(page, "[data-part=plans]")).toEqual([
    { plan: "(none)", admitted: "5", denied: "3" },
    { plan: "pro", admitted: "8", denied: "0" },
  ]);
  await page.waitForSelector("[data-top=denied] .key a");
  expect((await rowsOf(page, "[data-top]")).map(({ key, denied }) => [key, denied])).toEqual([
    ["corner-shop", "3"],
    ["acme plan pro", "0"],
  ]);
  await press(page, "most called");
  await page.waitForSelector("[data-top=active] .key a");
  expect((await rowsOf(page, "[data-top=active]")).map(({ key }) => key)).toContain("acme plan pro");
  await goTo(page, "#/key/customer/acme");
  await says(page, "pro");
  await page.waitForSelector("[data-figure=plan]");
  expect(faults).toEqual([]);
});

test("the groups that share a policy's keys are seen, the one that floods first", async () => {
  const { url } = serving;
  let denied = 0;
  for (let call = 0; call < 30; call += 1) {
    const about = { policy: "model", key: `provider-${call % 2}`, group: "flood" };
    denied += (await send(url, "POST", "/v1/limit", about))["success"] === true ? 0 : 1;
  }
  expect(denied).toBeGreaterThan(5);
  await send(url, "POST", "/v1/limit", { policy: "model", key: "provider-0", group: "small", cost: 0 });
  await until(async () => {
    const { groups } = await send(url, "GET", "/v1/stats/groups?policy=model&by=active");
    return (groups as { count: number }[]).reduce((sum, { count }) => sum + count, 0) === 31;
  });
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/model");
  await page.waitForSelector("[data-top-groups=denied] tbody tr");
  expect(await rowsOf(page, "[data-top-groups]")).toEqual([
    { group: "flood", denied: String(denied), calls: "30" },
    { group: "small", denied: "0", calls: "1" },
  ]);
  expect(faults).toEqual([]);
});

test("leases and callers that wait are seen as they come and go", async () => {
  const { url } = serving;
  const acquire = (waitMs: number) =>
    send(url, "POST", "/v1/leases", { policy: "export", key: "customer:1", waitMs });
  const [first] = await Promise.all([acquire(0), acquire(0), acquire(0)]);
  const waiting = acquire(30_000);
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/export");
  const shown = async () => {
    const row = (await rowsOf(page, "[aria-labelledby=part-all-keys]")).find(
      ({ key }) => key === "customer:1",
    );
    return row && [row["remaining"], row["limit"], row["leases"], row["waiting"] ?? "none"];
  };
  await until(async () => String(await shown()) === "0,3,3,1");
  const { id } = first["lease"] as { id: string };
  await send(url, "DELETE", `/v1/leases/${id}`);
  expect(await waiting).toMatchObject({ success: true });
  await until(async () => String(await shown()) === "0,3,3,none");
  expect(faults).toEqual([]);
});

const HISTORY = "[aria-labelledby=part-while-this-page-is-open]";

test("a key's page shows what was left of it since the page was opened", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/key/api/tenant-40");
  const seen = async () => String(await page.evaluate(`document.querySelector("${HISTORY}").textContent`));
  await page.waitForSelector(`${HISTORY} canvas`);
  expect(await seen()).toContain("denied at 0 of ");
  // The bucket has a unit again after 3 s: it stays empty for as long as the page may take to look.
  await until(async () => {
    await Promise.all(Array.from({ length: 40 }, () => limitOf(url, "api", "tenant-40")));
    return / denied at [1-9]\d* of /.test(await seen());
  });
  expect(faults).toEqual([]);
});

test("the form makes the call that its curl line makes", async () => {
  const { url } = serving;
  await traffic(url);
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await press(page, "Try a call");
  await (await page.waitForSelector("input[name=key]"))?.type("o'brien");
  await press(page, "Call");
  await page.waitForSelector("[data-answer]");
  expect(await textOf(page)).toContain(`-d '{"policy":"api","key":"o'\\''brien","cost":1}'`);
  expect(await send(url, "GET", "/v1/policies/api/keys/o'brien")).toMatchObject({ remaining: 29 });
  expect(faults).toEqual([]);
});

const CANDIDATE_FIELDS = "textarea[name=candidate-fields]";

test("a candidate is tried beside its policy, compared with it, promoted, and taken back", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/api");
  await press(page, "Try other fields");
  const fields = { ...DASHBOARD_POLICIES.api, limit: 10 };
  await fill(page, CANDIDATE_FIELDS, JSON.stringify({ ...fields, burst: -1 }));
  await press(page, "Check candidate");
  await says(page, "burst is -1");
  await fill(page, CANDIDATE_FIELDS, JSON.stringify({ ...fields, burst: 11 }));
  await press(page, "Start the trial");
  await says(page, "On trial since");

  // It decides nothing, and what it would have decided is seen, with the keys that it alone would deny.
  const load = endlessTraffic(url);
  await page.waitForSelector("[data-figure='denied by the candidate alone'].bad");
  await load.stop();
  expect(await limitOf(url, "api", "somebody-new")).toMatchObject({ limit: 30 });

  await press(page, "Promote");
  await press(page, "Promote", "dialog");
  await says(page, "The candidate of api is promoted.");
  expect(await limitOf(url, "api", "somebody-else")).toMatchObject({ limit: 11 });
  await press(page, "Undo");
  await until(async () => (await limitOf(url, "api", "somebody-else"))["limit"] === 30);
  expect(await send(url, "GET", "/v1/policies/api")).toMatchObject({ source: "file", limit: 20 });

  await press(page, "Try other fields");
  await fill(page, CANDIDATE_FIELDS, JSON.stringify({ ...fields, burst: 11 }));
  await press(page, "Start the trial");
  await press(page, "End the trial");
  await press(page, "End the trial", "dialog");
  await until(async () => (await send(url, "GET", "/v1/policies/api/candidate"))["status"] === 404);
  expect(faults).toEqual([]);
});

test("a history of a month is asked for when somebody wants it", async () => {
  const { page, faults } = await openPage(browser);
  await signIn(page, serving.url, TOKENS.full);
  const asked: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  await goTo(page, "#/policy/api");
  await page.waitForSelector("[aria-label^='In the last hour']");
  expect(asked.some((url) => url.includes("step=hour"))).toBe(false);
  await press(page, "the last month");
  await page.waitForSelector("[aria-label^='In the last month']");
  expect(asked.some((url) => url.includes("since=30d&step=hour"))).toBe(true);
  expect(faults).toEqual([]);
});

test("a page that nobody uses calls less often, and a hidden one not at all", async () => {
  const { page, faults } = await openPage(browser);
  // The intervals that the page asks for, which are shortened only then, and a clock that can be put ahead.
  await page.evaluateOnNewDocument(`{
    const [after, nowMs] = [window.setTimeout, Date.now];
    window.intervals = [];
    window.setTimeout = (work, ms, ...args) => (window.intervals.push(ms), after(work, ms, ...args));
    window.aheadMs = 0;
    Date.now = () => nowMs() + window.aheadMs;
  }`);
  let calls = 0;
  page.on("request", (request) => (calls += request.url().includes("/v1/") ? 1 : 0));
  await signIn(page, serving.url, TOKENS.full);
  await goTo(page, "#/key/api/tenant-1");
  await page.waitForSelector("[data-reason]");
  const intervals = async () =>
    (await page.evaluate("intervals.splice(0).filter((ms) => ms >= 1_000)")) as number[];
  /** Waits until parts ask for this interval, and for no other. */
  const becomes = (intervalMs: number) =>
    until(async () => {
      const seen = await intervals();
      return seen.length > 0 && seen.every((ms) => ms === intervalMs);
    });
  await becomes(5_000);
  await page.evaluate("aheadMs = 3 * 60_000");
  await becomes(30_000);
  await page.evaluate("aheadMs = 60 * 60_000");
  await becomes(300_000);

  // Whoever comes back sees what is so now, and does not wait for minutes.
  const before = calls;
  await page.mouse.move(100, 100);
  await until(async () => Promise.resolve(calls > before));
  await becomes(5_000);

  const other = await page.browserContext().newPage();
  await other.bringToFront();
  await page.waitForFunction("document.hidden");
  // Calls under way come to their end.
  await page.waitForNetworkIdle();
  await intervals();
  const hidden = calls;
  await sleep(2_000);
  expect([calls, await intervals()]).toEqual([hidden, []]);
  await page.bringToFront();
  await until(async () => Promise.resolve(calls > hidden));
  expect(faults).toEqual([]);
});
