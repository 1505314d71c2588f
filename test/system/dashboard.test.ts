/** An operator's walk through the dashboard, in a real browser over real traffic. */
import { expect, test } from "vitest";
import {
  DASHBOARD_POLICIES,
  endlessTraffic,
  fill,
  goTo,
  HAMMERING,
  limitOf,
  openPage,
  press,
  says,
  send,
  signIn,
  textOf,
  traffic,
  until,
  serveDashboard,
  type ServedDashboard,
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
  await press(page, "Add an override");
  await (await page.waitForSelector("input[name=pattern]"))?.type("trial:*");
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
