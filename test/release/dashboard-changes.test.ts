/** What operators change in a real browser: policies, overrides, tokens and the document. */
import { expect, test } from "vitest";
import {
  choose,
  DASHBOARD_POLICIES,
  fill,
  goTo,
  limitOf,
  NO_TIMERS,
  open,
  openPage,
  press,
  says,
  send,
  serveDashboard,
  signIn,
  textOf,
  type ServedDashboard,
  until,
} from "../support/dashboard.ts";
import { TOKENS } from "../support/fixtures.ts";

let { serving, browser } = {} as ServedDashboard;
serveDashboard((served) => ({ serving, browser } = served));

const FIELDS = "textarea[name=policy-fields]";

test("a policy is checked, changed and brought back; who comes too late is told, and sees what is there", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/visitor");
  const edit = (fields: object) => fill(page, FIELDS, JSON.stringify(fields));
  const fields = DASHBOARD_POLICIES.visitor;
  await edit({ ...fields, limit: -1 });
  for (const button of ["Check", "Save"]) {
    await press(page, button);
    await says(page, "limit is -1");
  }
  await fill(page, FIELDS, "{ limit: 60 }");
  await press(page, "Save");
  await says(page, "the text is not JSON");
  // What cannot be saved is not asked about.
  expect(await page.$$("dialog")).toEqual([]);
  expect(await page.$eval(FIELDS, (field) => field.getAttribute("aria-invalid"))).toBe("true");
  await edit({ ...fields, limit: 60 });
  await press(page, "Check");
  await says(page, "These fields are valid.");
  await press(page, "Save");
  await press(page, "Save", "dialog");
  await until(async () => (await send(url, "GET", "/v1/policies/visitor"))["limit"] === 60);
  await press(page, "Undo");
  await until(async () => (await send(url, "GET", "/v1/policies/visitor"))["source"] === "file");

  await edit({ ...fields, limit: 70 });
  await send(url, "PUT", "/v1/policies/visitor", { ...fields, limit: 90 });
  await press(page, "Save");
  await says(page, "Somebody else changed it first");
  await says(page, '"limit": 90');
  expect(await send(url, "GET", "/v1/policies/visitor")).toMatchObject({ limit: 90 });
  expect(faults).toEqual([]);
});

test("the check of a change, and the question before it, say which plans it removes", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  const fields = { algorithm: "token-bucket", limit: 5, window: "1s" };
  await send(url, "PUT", "/v1/policies/planned", { ...fields, plans: { pro: { limit: 9 } } });
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/planned");
  await fill(page, FIELDS, JSON.stringify(fields));
  for (const button of ["Check", "Save"]) {
    await press(page, button);
    await says(page, "Removed: pro. Calls that name a removed plan are refused.");
  }
  await send(url, "DELETE", "/v1/policies/planned");
  expect(faults).toEqual([]);
});

test("an override is added, edited and removed by a form, and a bad value is refused beside its field", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/api");
  const read = () => send(url, "GET", "/v1/policies/api/overrides/trial:*");
  await open(page, "Add override", "input[name=pattern]");
  await fill(page, "input[name=pattern]", "trial:*");
  await fill(page, "input[name='/limit']", "5");
  await fill(page, "input[name='/window']", "60");
  await press(page, "Save override");
  const refusal = await page.waitForSelector("label:has([name='/window'][aria-invalid]) small");
  expect(
    await refusal?.evaluate((text) => (text as unknown as { textContent: string }).textContent),
  ).toContain('"60s"');
  expect((await read())["status"]).toBe(404);
  await fill(page, "input[name='/window']", "90s");
  await choose(page, "select[name=lasts]", "1 day");
  await press(page, "Save override");
  await says(page, "limit 5, window 90s");
  expect(await read()).toMatchObject({ limit: 5, window: "90s", expiresAt: expect.any(String) });
  await open(page, "Edit", "input[readonly]");
  const window = await page.waitForSelector("input[name='/window']");
  expect(await window?.evaluate((field) => (field as unknown as { value: string }).value)).toBe("90s");
  await choose(page, "select[name=effect]", "blocked: all calls denied");
  await choose(page, "select[name=lasts]", "until I remove it");
  await press(page, "Save override");
  await until(async () => (await read())["blocked"] === true);
  expect(await read()).not.toHaveProperty("expiresAt");
  await press(page, "Remove");
  await press(page, "Remove", "dialog");
  await until(async () => (await read())["status"] === 404);
  expect(faults).toEqual([]);
});

test("an override that begins later is scheduled by the form, is shown as that, and changes nothing before", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/key/api/tenant-31");
  await page.waitForSelector("[data-reason=ok]");
  await press(page, "Set limits");
  await choose(page, "select[name=effect]", "blocked: all calls denied");
  await choose(page, "select[name=lasts]", "1 day");
  await choose(page, "select[name=begins]", "at a time");
  const tomorrow = new Date(Date.now() + 86_400_000 - new Date().getTimezoneOffset() * 60_000);
  await page.$eval(
    "input[name=from]",
    (field, value) => {
      (field as unknown as { value: string }).value = value;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    },
    tomorrow.toISOString().slice(0, 16),
  );
  await press(page, "Save override");
  await says(page, "Override of tenant-31: blocked, starts in");
  const { startsAt, expiresAt } = await send(url, "GET", "/v1/policies/api/overrides/tenant-31");
  expect((Date.parse(String(startsAt)) - Date.now()) / 3_600_000).toBeCloseTo(24, 1);
  // It lasts for a day from its start on.
  expect(Date.parse(String(expiresAt)) - Date.parse(String(startsAt))).toBe(86_400_000);
  await page.waitForSelector("[data-reason=ok]");
  expect(await limitOf(url, "api", "tenant-31")).toMatchObject({ success: true });
  await goTo(page, "#/policy/api");
  await says(page, "blocked, starts in");
  await send(url, "DELETE", "/v1/policies/api/overrides/tenant-31");
  expect(faults).toEqual([]);
});

test("a change is on the page with its answer: no part waits for its next reading", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  // The page reads what it shows once, and then only after a change.
  await page.evaluateOnNewDocument(NO_TIMERS);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/key/api/tenant-30");
  await page.waitForSelector("[data-reason=ok]");
  await press(page, "Set limits");
  await fill(page, "input[name='/limit']", "7");
  await press(page, "Save override");
  await page.waitForSelector("[data-override=tenant-30]");
  await says(page, "In force everywhere within 10 s.");
  await says(page, "limit 7");
  await press(page, "Block");
  await press(page, "Block", "dialog");
  await page.waitForSelector("[data-reason=blocked]");
  await says(page, "Override of tenant-30: blocked, until it is removed");
  await goTo(page, "#/policy/api");
  await press(page, "Remove", "[aria-labelledby=part-overrides]");
  await press(page, "Remove", "dialog");
  await page.waitForFunction(
    `!document.querySelector("[aria-labelledby=part-overrides]").textContent.includes("tenant-30blocked")`,
  );
  await press(page, "Catalog");
  await fill(page, "form[aria-label='Issue a token'] input", "at-once");
  await press(page, "Issue");
  await says(page, "token at-once");
  await send(url, "DELETE", "/v1/tokens/at-once");
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
    await says(page, "This replaces its override: limit 7, burst 8.");
    await press(page, "Raise × 2", "dialog");
    await until(async () => (await send(url, "GET", address))["multiply"] === 2);
  };
  await says(page, "limit 7, burst 8, until it is removed (by hand)");
  await raise();
  await press(page, "Undo");
  await until(async () => (await send(url, "GET", address))["limit"] === 7);
  expect(await send(url, "GET", address)).toMatchObject(before);

  await says(page, "limit 7, burst 8, until it is removed (by hand)");
  await raise();
  await send(url, "PUT", address, { limit: 9 });
  await press(page, "Undo");
  await says(page, "Somebody else changed it first");
  expect(await send(url, "GET", address)).toMatchObject({ limit: 9 });
  expect(faults).toEqual([]);
});

test("a dialog and the form change what they showed: what somebody else made meanwhile stays", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  const address = "/v1/policies/api/overrides/tenant-21";
  for (const before of [undefined, { limit: 7 }])
    for (const button of ["Block", "Raise × 2", "Set limits"]) {
      if (before !== undefined) await send(url, "PUT", address, before);
      await goTo(page, "#/key/api/tenant-21");
      await (before === undefined ? page.waitForSelector("[data-reason=ok]") : says(page, "limit 7, until"));
      await press(page, button);
      await send(url, "PUT", address, { limit: 9, note: "a colleague" });
      // The page goes on to show what is there.
      await says(page, "limit 9, until it is removed (a colleague)");
      await (button === "Set limits" ? press(page, "Save override") : press(page, button, "dialog"));
      await says(page, "Somebody else changed it first");
      expect(await send(url, "GET", address)).toMatchObject({ limit: 9, note: "a colleague" });
      await send(url, "DELETE", address);
      await goTo(page, "#/");
    }
  expect(faults).toEqual([]);
});

test("a key can be changed once its override is shown", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  const address = "/v1/policies/api/overrides/tenant-22";
  await send(url, "PUT", address, { limit: 7 });
  const { promise: isAnswered, resolve: answer } = Promise.withResolvers<void>();
  await page.setRequestInterception(true);
  page.on("request", (request) => {
    const isRead = request.method() === "GET" && request.url().endsWith(address);
    void (isRead ? isAnswered : Promise.resolve()).then(() => request.continue());
  });
  await goTo(page, "#/key/api/tenant-22");
  await page.waitForSelector("[data-reason=ok]");
  expect(await page.$$eval("button", (buttons) => buttons.map((each) => each.textContent))).not.toContain(
    "Block",
  );
  answer();
  await says(page, "limit 7, until");
  await press(page, "Block");
  await press(page, "Block", "dialog");
  await says(page, "tenant-22 is blocked");
  await send(url, "DELETE", address);
  expect(faults).toEqual([]);
});

test("of two who start a trial the second is told", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  const address = "/v1/policies/visitor/candidate";
  await goTo(page, "#/policy/visitor");
  await open(page, "Try other fields", "textarea[name=candidate-fields]");
  // A page that reads later has the form still.
  await page.setRequestInterception(true);
  page.on("request", (request) => {
    const isRead = request.method() === "GET" && request.url().endsWith(address);
    if (!isRead) void request.continue();
  });
  await send(url, "PUT", address, { ...DASHBOARD_POLICIES.visitor, limit: 25 });
  await press(page, "Start the trial");
  await says(page, "Somebody else changed it first");
  expect(await send(url, "GET", address)).toMatchObject({ candidate: { limit: 25 } });
  await send(url, "DELETE", address);
  expect(faults).toEqual([]);
});

test("while the limiter is away only a change may have been made", async () => {
  const { page } = await openPage(browser);
  await signIn(page, serving.url, TOKENS.full);
  await goTo(page, "#/key/api/tenant-22");
  await page.waitForSelector("[data-reason=ok]");
  await page.setOfflineMode(true);
  await says(page, "The limiter cannot be reached");
  expect(await textOf(page)).not.toContain("may have been made");
  await press(page, "Block");
  await press(page, "Block", "dialog");
  await says(page, "the change may have been made");
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
    await press(page, "Add policy");
  };
  const fields = { algorithm: "token-bucket", limit: 7, window: "1h" };
  await make("api", fields);
  await says(page, 'there is a policy "api" already');
  await make("made", { ...fields, limit: "many" });
  await says(page, "limit is");
  expect((await send(url, "GET", "/v1/policies/made"))["status"]).toBe(404);
  await make("made", fields);
  await says(page, "token-bucket: 7 per hour");
  await until(async () => (await limitOfMade()) === 7);
  await press(page, "Remove changes");
  await press(page, "Remove changes", "dialog");
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
  await says(page, "This document is valid.");
  await press(page, "Write");
  await press(page, "Write", "dialog");
  await until(async () => (await send(url, "GET", override))["multiply"] === 4);

  await send(url, "PUT", override, { multiply: 5 });
  await press(page, "Write");
  await says(page, "Somebody else changed it first");
  expect(await send(url, "GET", override)).toMatchObject({ multiply: 5 });
  expect(faults).toEqual([]);
});
