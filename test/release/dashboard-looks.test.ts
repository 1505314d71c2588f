/** The dashboard by keyboard alone, on a phone, in the dark, and for whoever reads by ear. */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Page } from "puppeteer-core";
import { beforeAll, expect, test } from "vitest";
import {
  DASHBOARD_POLICIES,
  goTo,
  limitOf,
  open,
  openPage,
  press,
  says,
  send,
  signIn,
  traffic,
  until,
  serveDashboard,
  type ServedDashboard,
} from "../support/dashboard.ts";
import { TOKENS } from "../support/fixtures.ts";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const LONG_KEY = "a-key-without-any-space-in-it-".repeat(8);
/** Places, and what is there when they are shown. */
const PLACES = [
  ["#/", ".plot canvas"],
  ["#/policy/api", "[data-top=denied] td.key"],
  ["#/policy/export", "textarea[name=policy-fields]"],
  ["#/policy/visitor", "[data-figure='calls compared']"],
  ["#/key/api/tenant-13", "button.danger"],
  [`#/key/visitor/${LONG_KEY}`, "button.danger"],
  ["#/catalog", "section table"],
  ["#/try/api/tenant-1", "form.box"],
] as const;

let { serving, browser } = {} as ServedDashboard;
serveDashboard((served) => ({ serving, browser } = served));
beforeAll(async () => {
  const { url } = serving;
  await traffic(url);
  await limitOf(url, "visitor", LONG_KEY);
  await send(url, "PUT", "/v1/policies/api/overrides/tenant-13", { multiply: 2, note: "x".repeat(80) });
  await send(url, "PUT", "/v1/policies/visitor/candidate", { ...DASHBOARD_POLICIES.visitor, limit: 5 });
  // Counts come some seconds later, with calls that are made anyway.
  await until(async () => {
    await limitOf(url, "api", "tenant-1");
    const { keys = [] } = await send(url, "GET", "/v1/stats/keys?policy=api&by=denied");
    return (keys as object[]).length > 0;
  });
});

/** Presses Tab until the element with this text, or this name, has the focus. */
async function tabTo(page: Page, name: string): Promise<void> {
  for (let tabs = 0; tabs < 80; tabs += 1) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(
      "document.activeElement.name || document.activeElement.textContent.trim()",
    );
    if (at !== name) continue;
    // Whoever uses a keyboard has to see where they are.
    const outline = await page.evaluate(
      "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).boxShadow",
    );
    expect(outline).not.toBe("nonenone");
    return;
  }
  throw new Error(`Tab never comes to ${name}`);
}

test("a key is found, blocked and let in again without a mouse", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await page.waitForSelector("[data-policy=api]");
  await tabTo(page, "api");
  await page.keyboard.press("Enter");
  await says(page, "Look at a key");
  // The next Tab begins where the new page does.
  expect(await page.evaluate("document.activeElement.id")).toBe("main");
  await tabTo(page, "key");
  await page.keyboard.type("tenant-9");
  await page.keyboard.press("Enter");
  await page.waitForSelector("button.danger");
  await tabTo(page, "Block");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open]");
  // Escape leaves everything as it is.
  await page.keyboard.press("Escape");
  await until(async () => (await page.$("dialog")) === null);
  expect(await limitOf(url, "api", "tenant-9")).toMatchObject({ success: true });
  await tabTo(page, "Block");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open]");
  await tabTo(page, "Block");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[data-reason=blocked]");
  await tabTo(page, "Undo");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[data-reason=ok]");
  expect(await limitOf(url, "api", "tenant-9")).toMatchObject({ success: true });
  expect(faults).toEqual([]);
});

test("on a phone of 360 pixels nothing is wider than the page", async () => {
  const { page, faults } = await openPage(browser, { width: 360, height: 740 });
  await page.goto(`${serving.url}/dashboard`);
  await page.waitForSelector("input[type=password]");
  expect(await page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(360);
  await signIn(page, serving.url, TOKENS.full);
  for (const [place, there] of PLACES) {
    await goTo(page, place);
    await page.waitForSelector(there);
    const width = await page.evaluate("document.documentElement.scrollWidth");
    expect({ place, width }).toEqual({ place, width: 360 });
  }
  await goTo(page, "#/key/api/tenant-13");
  await press(page, "Block");
  await page.waitForSelector("dialog[open]");
  expect(await page.evaluate("document.documentElement.scrollWidth")).toBe(360);
  expect(faults).toEqual([]);
});

test.each(["light", "dark"])("axe finds no fault on any page, %s", async (scheme) => {
  const { page, faults } = await openPage(browser);
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(`${serving.url}/dashboard`);
  await page.waitForSelector("input[type=password]");
  const background = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor");
  const [red = 0] = /\d+/.exec(String(background))?.map(Number) ?? [];
  expect(red < 128).toBe(scheme === "dark");
  await page.evaluate(AXE);
  const violations = async () =>
    await page.evaluate(`axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
      violations.map(({ id, nodes }) => id + ": " + nodes.map(({ html }) => html).join(" ")))`);
  expect(await violations()).toEqual([]);
  await signIn(page, serving.url, TOKENS.full);
  await page.evaluate(AXE);
  for (const [place, there] of PLACES) {
    await goTo(page, place);
    await page.waitForSelector(there);
    expect({ place, found: await violations() }).toEqual({ place, found: [] });
  }
  await goTo(page, "#/key/api/tenant-13");
  await open(page, "Block", "dialog[open]");
  expect(await violations()).toEqual([]);
  expect(faults).toEqual([]);
});
