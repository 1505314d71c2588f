/** Takes the pictures of docs/dashboard.md: a real limiter, real traffic, a real browser. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Page } from "puppeteer-core";
import { ensureChromium, startChromium } from "../scripts/chromium.ts";
import { build, ROOT } from "../scripts/project.ts";
import { DASHBOARD_POLICIES, goTo, HAMMERING, send, signIn, traffic } from "../test/support/dashboard.ts";
import { TOKENS } from "../test/support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../test/support/served.ts";
import { withPalette } from "./palette-png.ts";

const FOLDER = process.argv[2] ?? join(ROOT, "docs", "images");
/** How long there is traffic, in milliseconds: plots by the minute need some. */
const TRAFFIC_MS = Number(process.env["TRAFFIC_MS"] ?? 480_000);

async function main(): Promise<void> {
  ensureChromium();
  build();
  const state = makeState();
  const serving = await serveBundle(state, DASHBOARD_POLICIES, { onOutput: () => undefined });
  const browser = await startChromium();
  let isOver = false;
  try {
    const { url } = serving;
    const loads = load(url, () => isOver);
    const page = await browser.newPage();
    await page.setViewport({ width: 1_100, height: 800 });
    // Leases are requested every half minute.
    page.setDefaultTimeout(120_000);
    await signIn(page, url, TOKENS.full);
    await sleep(TRAFFIC_MS);
    await pictures(page);
    isOver = true;
    await loads;
  } finally {
    isOver = true;
    await browser.close();
    await serving.stop();
    removeState(state);
  }
}

/** Traffic that never rests, with leases that are held and callers that wait for them. */
async function load(url: string, isOver: () => boolean): Promise<void> {
  await send(url, "PUT", "/v1/policies/api/overrides/tenant-7", { multiply: 10, note: "launch week" });
  const stricter = { ...DASHBOARD_POLICIES.visitor, limit: 10 };
  await send(url, "PUT", "/v1/policies/visitor/candidate", stricter);
  for (let round = 0; !isOver(); round += 1) {
    // It comes and goes.
    await traffic(url, 1 + Math.round(2 * Math.sin(round / 12) ** 2));
    if (round % 5 === 0)
      for (let lease = 0; lease < 5; lease += 1)
        void send(url, "POST", "/v1/leases", { policy: "export", key: "tenant-13", waitMs: 25_000 });
    await sleep(7_000);
  }
}

async function pictures(page: Page): Promise<void> {
  await sleep(12_000);
  await take(page, "overview");
  await goTo(page, "#/policy/api");
  await page.waitForSelector("[data-top=denied] .key");
  await sleep(3_000);
  await take(page, "policy");
  await goTo(page, `#/key/api/${HAMMERING}`);
  await page.waitForSelector("[data-reason]");
  // Its history begins with the page.
  await sleep(45_000);
  await take(page, "key");
  await goTo(page, "#/policy/visitor");
  await page.waitForSelector("::-p-aria([name='Promote'])");
  await sleep(3_000);
  await take(page, "candidate", "[aria-labelledby=part-candidate]");
  await goTo(page, "#/policy/export");
  // Leases are requested now and then; three are granted, and the others wait.
  await page.waitForFunction(
    `[...document.querySelectorAll("td[data-head=waiting]")].some((cell) => cell.textContent > "0")`,
  );
  await take(page, "leases", "[aria-labelledby=part-all-keys]");
  await goTo(page, "#/try/api/tenant-7");
  await page.waitForSelector("form.box");
  await page.click("form.box button");
  await page.waitForSelector("[data-answer]");
  await take(page, "try");
  await goTo(page, "#/catalog");
  await sleep(1_000);
  await take(page, "catalog");
  await page.setViewport({ width: 360, height: 640, deviceScaleFactor: 1 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
  await goTo(page, "#/");
  await sleep(12_000);
  await take(page, "phone-dark");
}

/** Takes a picture: of one part of the page, or of all of it; on the phone of what is seen of it. */
async function take(page: Page, name: string, part?: string): Promise<void> {
  const element = part === undefined ? undefined : await page.waitForSelector(part);
  const taken = element?.screenshot() ?? page.screenshot({ fullPage: name !== "phone-dark" });
  const image = withPalette(await taken);
  writeFileSync(join(FOLDER, `dashboard-${name}.png`), image);
  console.log(`dashboard-${name}.png: ${Math.round(image.length / 1024)} KiB`);
}

await main();
