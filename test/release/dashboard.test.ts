/** Operators use the dashboard in a real browser over real traffic: keys, policies, candidates and the catalog. */
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import {
  DASHBOARD_POLICIES,
  endlessTraffic,
  fill,
  goTo,
  HAMMERING,
  limitOf,
  open,
  openPage,
  press,
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

  // Find it.
  await page.waitForSelector("[data-policy=api] .figure.bad");
  await page.waitForSelector("[data-policy=api] .plot canvas");
  await press(page, "api");
  const denied = await page.waitForSelector("[data-top=denied] td.key a");
  expect(await denied?.evaluate((link) => link.textContent)).toBe(HAMMERING);
  await press(page, HAMMERING, "[data-top=denied]");

  // Block it, and watch it take effect.
  await page.waitForSelector("[data-reason=quota]");
  await press(page, "Block");
  await says(page, `Block ${HAMMERING}?`);
  await press(page, "Block", "dialog");
  await page.waitForSelector("[data-reason=blocked]");
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
  const rows = await page.$$eval("[data-part=plans] tbody tr", (found) =>
    found.map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent)),
  );
  expect(rows).toEqual([
    ["(none)", "5", "3"],
    ["pro", "8", "0"],
  ]);
  const active = await page.waitForSelector("[data-top=active] td.key");
  expect(await active?.evaluate((cell) => cell.textContent)).toBe("acme plan pro");
  await goTo(page, "#/key/customer/acme");
  await says(page, "pro");
  await page.waitForSelector("[data-figure=plan]");
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
  const cells = async () => {
    const shown = await page.$$eval("section tbody tr", (rows) =>
      rows.map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent)),
    );
    return shown.find(([key, , of]) => key === "customer:1" && of === "3")?.slice(0, 7);
  };
  // Key, left, of, in use, holds, leases, waiting.
  await until(async () => String(await cells()) === "customer:1,0,3,3,0,3,1");
  const { id } = first["lease"] as { id: string };
  await send(url, "DELETE", `/v1/leases/${id}`);
  expect(await waiting).toMatchObject({ success: true });
  await until(async () => String(await cells()) === "customer:1,0,3,3,0,3,0");
  expect(faults).toEqual([]);
});

test("a policy is checked, changed and brought back; who comes too late is told, and sees what is there", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/visitor");
  const edit = (fields: object) => fill(page, "textarea[name=policy-fields]", JSON.stringify(fields));
  const fields = DASHBOARD_POLICIES.visitor;
  await edit({ ...fields, limit: -1 });
  await press(page, "Check");
  await says(page, "limit is -1");
  await edit({ ...fields, limit: 60 });
  await press(page, "Check");
  await says(page, "These fields would be accepted.");
  await press(page, "Save");
  await press(page, "Save", "dialog");
  await until(async () => (await send(url, "GET", "/v1/policies/visitor"))["limit"] === 60);
  await press(page, "Undo");
  await until(async () => (await send(url, "GET", "/v1/policies/visitor"))["source"] === "file");

  await edit({ ...fields, limit: 70 });
  await send(url, "PUT", "/v1/policies/visitor", { ...fields, limit: 90 });
  await press(page, "Save");
  await press(page, "Save", "dialog");
  await says(page, "It was changed in the meantime");
  await says(page, '"limit": 90');
  expect(await send(url, "GET", "/v1/policies/visitor")).toMatchObject({ limit: 90 });
  expect(faults).toEqual([]);
});

test("an override is added, edited and deleted, and a bad one is refused beside its field", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/api");
  const read = () => send(url, "GET", "/v1/policies/api/overrides/trial:*");
  await open(page, "Add an override", "input[name=pattern]");
  await page.type("input[name=pattern]", "trial:*");
  await fill(page, "textarea[name=fields]", '{ "limit": 5, "brust": 5 }');
  await press(page, "Save override");
  await says(page, "brust");
  await fill(page, "textarea[name=fields]", '{ "limit": 5, "burst": 5 }');
  await press(page, "Save override");
  await until(async () => (await read())["burst"] === 5);
  await press(page, "Edit");
  await fill(page, "textarea[name=fields]", '{ "blocked": true }');
  await press(page, "Save override");
  await until(async () => (await read())["blocked"] === true);
  await press(page, "Delete");
  await press(page, "Delete", "dialog");
  await until(async () => (await read())["status"] === 404);
  expect(faults).toEqual([]);
});

test("undoing brings back what was there, and not what somebody else has changed since", async () => {
  const { url } = serving;
  const address = "/v1/policies/api/overrides/tenant-20";
  const before = { limit: 7, burst: 8, note: "by hand" };
  await send(url, "PUT", address, before);
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/key/api/tenant-20");
  const raise = async () => {
    await press(page, "Raise × 2");
    await says(page, "It replaces the override of this key: limit 7, burst 8.");
    await press(page, "Raise × 2", "dialog");
    await until(async () => (await send(url, "GET", address))["multiply"] === 2);
  };
  await says(page, "limit 7, burst 8 (by hand)");
  await raise();
  await press(page, "Undo");
  await until(async () => (await send(url, "GET", address))["limit"] === 7);
  expect(await send(url, "GET", address)).toMatchObject(before);

  await says(page, "limit 7, burst 8 (by hand)");
  await raise();
  await send(url, "PUT", address, { limit: 9 });
  await press(page, "Undo");
  await says(page, "It was changed in the meantime");
  expect(await send(url, "GET", address)).toMatchObject({ limit: 9 });
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
  await press(page, "Begin the trial");
  await says(page, "On trial since");

  // It decides nothing, and what it would have decided is seen, with the keys that it alone would deny.
  const load = endlessTraffic(url);
  await page.waitForSelector("[data-figure='denied by the candidate alone'].bad");
  await load.stop();
  expect(await limitOf(url, "api", "somebody-new")).toMatchObject({ limit: 30 });

  await press(page, "Promote");
  await press(page, "Promote", "dialog");
  await says(page, "The candidate of api is in force.");
  expect(await limitOf(url, "api", "somebody-else")).toMatchObject({ limit: 11 });
  await press(page, "Undo");
  await until(async () => (await limitOf(url, "api", "somebody-else"))["limit"] === 30);
  expect(await send(url, "GET", "/v1/policies/api")).toMatchObject({ source: "file", limit: 20 });

  await press(page, "Try other fields");
  await fill(page, CANDIDATE_FIELDS, JSON.stringify({ ...fields, burst: 11 }));
  await press(page, "Begin the trial");
  await press(page, "End the trial");
  await press(page, "End the trial", "dialog");
  await until(async () => (await send(url, "GET", "/v1/policies/api/candidate"))["status"] === 404);
  expect(faults).toEqual([]);
});

/** The page of the catalog. */
async function openCatalog() {
  const { page, faults } = await openPage(browser);
  await signIn(page, serving.url, TOKENS.full);
  await press(page, "Catalog");
  return { page, faults };
}

test("a policy is made, counts, is changed, and taken away", async () => {
  const { url } = serving;
  const { page, faults } = await openCatalog();
  const limitOfMade = async () =>
    (await send(url, "POST", "/v1/limit", { policy: "made", key: "k", cost: 0 }))["limit"];
  const make = async (name: string, fields: object) => {
    await fill(page, "input[name=new-policy]", name);
    await fill(page, "textarea[name=new-fields]", JSON.stringify(fields));
    await press(page, "Make the policy");
  };
  const fields = { algorithm: "token-bucket", limit: 7, window: "1h" };
  await make("api", fields);
  await says(page, 'there is a policy "api" already');
  await make("made", { ...fields, limit: "many" });
  await says(page, "limit is");
  expect((await send(url, "GET", "/v1/policies/made"))["status"]).toBe(404);
  await make("made", fields);
  await says(page, "token-bucket: 7 per 1 h");
  await until(async () => (await limitOfMade()) === 7);
  await press(page, "Take away");
  await press(page, "Take away", "dialog");
  await until(async () => (await send(url, "GET", "/v1/policies/made"))["status"] === 404);
  await says(page, "Overview");
  // The name can be used again.
  await press(page, "Catalog");
  await make("made", { ...fields, limit: 9 });
  await until(async () => (await limitOfMade()) === 9);
  await send(url, "DELETE", "/v1/policies/made");
  expect(faults).toEqual([]);
});

test("a token is issued, shown once, works, and is revoked", async () => {
  const { url } = serving;
  const { page, faults } = await openCatalog();
  await fill(page, "form[aria-label='Issue a token'] input", "billing");
  await press(page, "Issue");
  const shown = await page.waitForSelector("form [role=status] code");
  const token = String(
    await shown?.evaluate((code) => (code as unknown as { textContent: string }).textContent),
  );
  const asked = () => fetch(`${url}/v1/token`, { headers: { authorization: `Bearer ${token}` } });
  expect(await (await asked()).json()).toEqual({ name: "billing", scopes: ["limit"] });
  await page.reload();
  await says(page, "billing");
  expect(await textOf(page)).not.toContain(token);

  // The same name again is refused, as the limiter says it.
  await fill(page, "form[aria-label='Issue a token'] input", "billing");
  await press(page, "Issue");
  await page.waitForSelector("form [role=alert]");

  await press(page, "Revoke");
  await press(page, "Revoke", "dialog");
  await until(async () => (await asked()).status === 401);
  expect(faults).toEqual([]);
});

test("the document is read, checked and written back, and refused when something was changed meanwhile", async () => {
  const { url } = serving;
  const override = "/v1/policies/api/overrides/customer:7";
  await send(url, "PUT", override, { multiply: 3 });
  const { page, faults } = await openCatalog();
  await press(page, "Read");
  await page.waitForSelector("textarea[name=document]");
  const text = JSON.stringify(await send(url, "GET", "/v1/catalog"));
  expect(text).toContain('"multiply":3');
  await fill(page, "textarea[name=document]", text.replace('"multiply":3', '"multiply":-3'));
  await press(page, "Check document");
  await says(page, "multiply is -3");
  await fill(page, "textarea[name=document]", text.replace('"multiply":3', '"multiply":4'));
  await press(page, "Check document");
  await says(page, "This document would be accepted.");
  await press(page, "Write");
  await press(page, "Write", "dialog");
  await until(async () => (await send(url, "GET", override))["multiply"] === 4);

  await send(url, "PUT", override, { multiply: 5 });
  await press(page, "Write");
  await press(page, "Write", "dialog");
  await says(page, "It was changed in the meantime");
  expect(await send(url, "GET", override)).toMatchObject({ multiply: 5 });
  expect(faults).toEqual([]);
});

test("a history of a month is asked for when somebody wants it", async () => {
  const { page, faults } = await openCatalog();
  const asked: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  await goTo(page, "#/policy/api");
  await says(page, "in the last hour");
  expect(asked.some((url) => url.includes("step=hour"))).toBe(false);
  await press(page, "the last month");
  await says(page, "in the last month");
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
