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
  ["#/", "[data-limited] .key"],
  ["#/policy/api", "[data-top=denied] .key"],
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
  // A key that stays denied, on the first page.
  await send(url, "PUT", "/v1/policies/api/overrides/tenant-14", { blocked: true });
  await until(async () => (await limitOf(url, "api", "tenant-14"))["reason"] === "blocked");
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
  await says(page, "Find a key");
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

test("an override with own limits is added, and a key blocked for a day, without a mouse", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/api");
  await page.waitForSelector("[aria-labelledby=part-overrides] table");
  await tabTo(page, "Add override");
  await page.keyboard.press("Enter");
  await page.waitForSelector("input[name='/burst']");
  await tabTo(page, "pattern");
  await page.keyboard.type("by-keyboard:*");
  await tabTo(page, "/burst");
  await page.keyboard.type("44");
  await page.keyboard.press("Enter");
  await until(async () => (await limitOf(url, "api", "by-keyboard:1"))["limit"] === 44);

  await goTo(page, "#/key/api/tenant-21");
  await page.waitForSelector("button.danger");
  await tabTo(page, "Block");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open]");
  await tabTo(page, "lasts");
  await page.keyboard.type("1 d");
  await says(page, "Until ");
  await tabTo(page, "Block");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[data-reason=blocked]");
  const { expiresAt } = await send(url, "GET", "/v1/policies/api/overrides/tenant-21");
  expect((Date.parse(String(expiresAt)) - Date.now()) / 3_600_000).toBeCloseTo(24, 0);
  expect(faults).toEqual([]);
});

/** Every element that is wider than the page, or whose text has to be moved sideways to be read. */
const TOO_WIDE = `[...document.querySelectorAll("*")]
  .filter((each) => {
    const { overflowX, clipPath } = getComputedStyle(each);
    const scrolls = overflowX !== "visible" && overflowX !== "hidden" && each.scrollWidth > each.clientWidth;
    const isHidden = clipPath !== "none" || each.closest(".skip, thead") !== null;
    return !isHidden && (scrolls || each.getBoundingClientRect().right > innerWidth);
  })
  .map((each) => each.outerHTML.slice(0, 200))`;

test.each([360, 390])("on a phone of %i pixels all can be read without moving sideways", async (width) => {
  const { page, faults } = await openPage(browser, { width, height: 740 });
  const tooWide = async () => ({
    width: await page.evaluate("document.documentElement.scrollWidth"),
    elements: await page.evaluate(TOO_WIDE),
  });
  await page.goto(`${serving.url}/dashboard`);
  await page.waitForSelector("input[type=password]");
  expect(await tooWide()).toEqual({ width, elements: [] });
  await signIn(page, serving.url, TOKENS.full);
  for (const [place, there] of PLACES) {
    await goTo(page, place);
    await page.waitForSelector(there);
    expect({ place, ...(await tooWide()) }).toEqual({ place, width, elements: [] });
  }
  // A row is a block, and every cell says what it is.
  await goTo(page, "#/policy/api");
  await page.waitForSelector("[data-top=denied] .key");
  const heads = await page.evaluate(`[...document.querySelectorAll("[data-top] tr:first-child td + td")]
    .map((cell) => getComputedStyle(cell, "::before").content)`);
  expect(heads).toEqual(['"denied"', '"calls"', '"remaining"', '"limit"']);
  await open(page, "Add override", "input[name=pattern]");
  await page.waitForSelector("input[name='/limit']");
  expect(await tooWide()).toEqual({ width, elements: [] });
  await goTo(page, "#/key/api/tenant-13");
  await open(page, "Block", "dialog[open]");
  expect(await tooWide()).toEqual({ width, elements: [] });
  expect(faults).toEqual([]);
});

test("the plots of all policies have one axis of time", async () => {
  const { page, faults } = await openPage(browser, { width: 1_280, height: 2_000 });
  // What a canvas is asked to write below its axis.
  await page.evaluateOnNewDocument(`{
    window.written = new Map();
    const write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
      const all = window.written.get(this.canvas) ?? new Set();
      window.written.set(this.canvas, all.add(text));
      return write.call(this, text, ...where);
    };
  }`);
  await signIn(page, serving.url, TOKENS.full);
  const cards = Object.keys(DASHBOARD_POLICIES).length;
  const axes = async () =>
    (await page.evaluate(`[...document.querySelectorAll(".card canvas")].map((canvas) =>
      [...(window.written.get(canvas) ?? [])].filter((text) => text.includes(":")).join(" "))`)) as string[];
  await until(async () => {
    const found = await axes();
    // Plots on both sides of a minute's end differ until the older is drawn again.
    return found.length === cards && found[0] !== "" && new Set(found).size === 1;
  });
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
  await goTo(page, "#/policy/api");
  await open(page, "Add override", "input[name=pattern]");
  await page.waitForSelector("input[name='/limit']");
  expect(await violations()).toEqual([]);
  await goTo(page, "#/key/api/tenant-13");
  await open(page, "Block", "dialog[open]");
  expect(await violations()).toEqual([]);
  expect(faults).toEqual([]);
});
