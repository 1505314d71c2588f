/** The dashboard in a browser, over a limiter with traffic. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Browser, ElementHandle, Page } from "puppeteer-core";
import { afterAll, beforeAll, onTestFinished } from "vitest";
import { startChromium } from "../../scripts/chromium.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "./fixtures.ts";
import { makeState, removeState, serveBundle } from "./served.ts";

/** An API, its logins, and exports: keys with an object each, and two policies that can be listed. */
export const DASHBOARD_POLICIES = {
  api: { algorithm: "token-bucket", limit: 20, window: "1m", burst: 30, deadlineMs: 20_000 },
  customer: {
    algorithm: "fixed-window",
    limit: 5,
    window: "1d",
    plans: { pro: { limit: 1_000 } },
    deadlineMs: 20_000,
  },
  model: { algorithm: "token-bucket", limit: 10, window: "1h", fair: true, deadlineMs: 20_000 },
  visitor: { algorithm: "token-bucket", limit: 30, window: "1m", objects: 4, deadlineMs: 20_000 },
  export: {
    algorithm: "concurrency",
    limit: 3,
    ttl: "60s",
    maxWait: "30s",
    objects: 2,
    deadlineMs: 20_000,
  },
};
/** The key that hammers. */
export const HAMMERING = "tenant-13";
const KEYS = 50;
/** After this number of attempts a condition has failed. */
const MAX_ASKED = 300;

export interface Opened {
  readonly page: Page;
  /** Errors of the page and of its console, and violations of its content security policy. */
  readonly faults: string[];
}

/** Calls over HTTP, with the token that has all rights. */
export async function send(
  url: string,
  method: string,
  path: string,
  body?: object,
): Promise<Record<string, unknown>> {
  const response = await fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return text === "" ? {} : (JSON.parse(text) as Record<string, unknown>);
}

/** `POST /v1/limit`. */
export function limitOf(url: string, policy: string, key: string): Promise<Record<string, unknown>> {
  return send(url, "POST", "/v1/limit", { policy, key });
}

/** Each of 50 keys makes a call, and one of them many. */
export async function traffic(url: string, rounds = 1): Promise<void> {
  for (let round = 0; round < rounds; round += 1) {
    const calls = Array.from({ length: KEYS }, (_, index) => limitOf(url, "api", `tenant-${index + 1}`));
    const hammered = Array.from({ length: 60 }, () => limitOf(url, "api", HAMMERING));
    const visits = Array.from({ length: 10 }, (_, index) => limitOf(url, "visitor", `guest-${index}`));
    await Promise.all([...calls, ...hammered, ...visits]);
  }
}

/** Opens a page in the browser, and records its errors. */
export async function openPage(browser: Browser, size = { width: 1_100, height: 900 }): Promise<Opened> {
  const context = await browser.createBrowserContext();
  // An open page would continue to make calls.
  onTestFinished(() => context.close());
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  await page.setViewport(size);
  const faults: string[] = [];
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("console", (message) => {
    // A refusal by the limiter is no error of the page.
    const isRefusal = message.text().startsWith("Failed to load resource");
    if (message.type() === "error" && !isRefusal) faults.push(message.text());
  });
  await page.evaluateOnNewDocument(`document.addEventListener("securitypolicyviolation", (event) =>
    console.error("violates " + event.violatedDirective + ": " + event.blockedURI))`);
  // The page refreshes after a tenth of the time for users.
  await page.evaluateOnNewDocument(`{
    const after = window.setTimeout.bind(window);
    window.setTimeout = (work, ms, ...args) => after(work, ms >= 1_000 ? ms / 10 : ms, ...args);
  }`);
  return { page, faults };
}

/** For a page that reads nothing a second time by itself. */
export const NO_TIMERS = `{
  const after = window.setTimeout.bind(window);
  window.setTimeout = (work, ms, ...args) => (ms >= 1_000 ? 0 : after(work, ms, ...args));
}`;

/** Opens the dashboard and signs in with the keyboard. */
export async function signIn(page: Page, url: string, token: string): Promise<void> {
  await page.goto(`${url}/dashboard`);
  const field = await page.waitForSelector("input[type=password]");
  await field?.type(token);
  await page.keyboard.press("Enter");
  await page.waitForSelector("nav");
}

/** Goes to a place, by its hash. */
export async function goTo(page: Page, hash: string): Promise<void> {
  await page.evaluate(`location.hash = ${JSON.stringify(hash)}`);
}

/** Waits for a button or a link with this text, and returns it. */
export async function named(page: Page, name: string, within = "body"): Promise<ElementHandle> {
  const found = await page.waitForSelector(selectorOf(name, within));
  if (found === null) throw new Error(`nothing is called ${name}`);
  return found as ElementHandle;
}

interface Pressable {
  readonly isConnected: boolean;
  readonly disabled?: boolean;
  click(): void;
}

/** Presses a button or follows a link. */
export async function press(page: Page, name: string, within = "body"): Promise<void> {
  await until(async () => {
    const found = await page.waitForSelector(selectorOf(name, within), { visible: true });
    // In one step of the page, which may be drawn again at any other moment: a press at its place could be lost.
    const isPressed = await found?.evaluate((element) => {
      const button = element as unknown as Pressable;
      if (!button.isConnected || button.disabled === true) return false;
      button.click();
      return true;
    });
    return isPressed === true;
  });
}

/** Presses a button until what it opens is there: the page may be drawn again between the look and the press. */
export async function open(page: Page, name: string, selector: string): Promise<void> {
  await until(async () => {
    await press(page, name);
    const opened = page.waitForSelector(selector, { timeout: 5_000 });
    return (await opened.catch(() => null)) !== null;
  });
}

function selectorOf(name: string, within: string): string {
  return ["button", "link"].map((role) => `${within} ::-p-aria([name="${name}"][role="${role}"])`).join(", ");
}

/** Waits until the page has this text. */
export async function says(page: Page, text: string): Promise<void> {
  await page.waitForFunction(`document.body.textContent.includes(${JSON.stringify(text)})`);
}

export async function textOf(page: Page): Promise<string> {
  return (await page.evaluate("document.body.textContent")) as string;
}

/** Polls a condition: answers, and not the time, decide. */
export async function until(holds: () => Promise<boolean>): Promise<void> {
  for (let asked = 0; asked < MAX_ASKED; asked += 1) {
    if (await holds()) return;
    await sleep(100);
  }
  throw new Error(`it never held: ${holds.toString()}`);
}

/** Calls until the page is left: rates exist only during traffic. */
export function endlessTraffic(url: string): { stop(): Promise<void> } {
  let isOver = false;
  const ended = (async () => {
    while (!isOver) {
      await traffic(url);
      await sleep(500);
    }
  })();
  return {
    stop: () => {
      isOver = true;
      return ended;
    },
  };
}

/** Replaces the text of a field. A click could miss it: the page moves while its parts are loaded. */
export async function fill(page: Page, selector: string, text: string): Promise<void> {
  await until(async () => {
    const field = await page.waitForSelector(selector);
    await field?.evaluate((element) => {
      const entry = element as unknown as { focus(): void; select(): void };
      entry.focus();
      entry.select();
    });
    await page.keyboard.type(text);
    return (await field?.evaluate((element) => (element as unknown as { value: string }).value)) === text;
  });
}

/** Chooses an option by its text. */
export async function choose(page: Page, selector: string, option: string): Promise<void> {
  const field = await page.waitForSelector(selector);
  const value = await field?.evaluate(
    (element, name) =>
      [...(element as unknown as { options: { text: string; value: string }[] }).options].find(
        ({ text }) => text === name,
      )?.value,
    option,
  );
  if (value === undefined) throw new Error(`${selector} has no option ${option}`);
  await page.select(selector, value);
}

/** The rows of a table, each by its heads. */
export async function rowsOf(page: Page, within: string): Promise<Record<string, string>[]> {
  return (await page.evaluate(`[...document.querySelectorAll(${JSON.stringify(`${within} tbody tr`)})].map((row) =>
    Object.fromEntries([...row.querySelectorAll("td")].map((cell) => [cell.dataset.head, cell.textContent])))`)) as Record<
    string,
    string
  >[];
}

export interface ServedDashboard {
  readonly serving: Serving;
  readonly browser: Browser;
}

/** Serves the limiter for the tests of a file, and starts a browser. */
export function serveDashboard(use: (served: ServedDashboard) => unknown): void {
  const state = makeState();
  let served: ServedDashboard | undefined;
  beforeAll(async () => {
    const [serving, browser] = await Promise.all([serveBundle(state, DASHBOARD_POLICIES), startChromium()]);
    served = { serving, browser };
    use(served);
  });
  afterAll(async () => {
    await served?.browser.close();
    await served?.serving.stop("SIGKILL");
    removeState(state);
  });
}
