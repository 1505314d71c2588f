/** The catalog in the dashboard: tokens, the document, who changed what. */
import { expect, test } from "vitest";
import {
  fill,
  goTo,
  openPage,
  press,
  says,
  send,
  signIn,
  textOf,
  until,
  serveDashboard,
  type ServedDashboard,
} from "../support/dashboard.ts";
import { TOKENS } from "../support/fixtures.ts";

let { serving, browser } = {} as ServedDashboard;
serveDashboard((served) => ({ serving, browser } = served));

async function opened() {
  const { page, faults } = await openPage(browser);
  await signIn(page, serving.url, TOKENS.full);
  await press(page, "Catalog");
  return { page, faults };
}

test("a policy is made, counts, is changed, and taken away", async () => {
  const { url } = serving;
  const { page, faults } = await opened();
  const limitOf = async () =>
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
  await until(async () => (await limitOf()) === 7);
  await press(page, "Take away");
  await press(page, "Take away", "dialog");
  await until(async () => (await send(url, "GET", "/v1/policies/made"))["status"] === 404);
  await says(page, "Overview");
  // The name can be used again.
  await press(page, "Catalog");
  await make("made", { ...fields, limit: 9 });
  await until(async () => (await limitOf()) === 9);
  await send(url, "DELETE", "/v1/policies/made");
  expect(faults).toEqual([]);
});

test("a token is issued, shown once, works, and is revoked", async () => {
  const { url } = serving;
  const { page, faults } = await opened();
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
  const { page, faults } = await opened();
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
  const { page, faults } = await opened();
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
