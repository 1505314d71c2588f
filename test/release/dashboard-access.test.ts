/** What a token may not do is not offered, and what callers write is never taken for HTML. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { BUNDLE } from "../../scripts/project.ts";
import {
  DASHBOARD_POLICIES,
  goTo,
  limitOf,
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
import { makeState, removeState, serveBundle } from "../support/served.ts";

let { serving, browser } = {} as ServedDashboard;
serveDashboard((served) => ({ serving, browser } = served));

async function opened(token: string) {
  const { page, faults } = await openPage(browser);
  await signIn(page, serving.url, token);
  const headings = () => page.$$eval("h2", (found) => found.map((each) => each.textContent));
  const cards = () => page.$$eval(".card h3", (found) => found.map((each) => each.textContent));
  const buttons = () => page.$$eval("main button", (found) => found.map((each) => each.textContent));
  return { page, faults, headings, cards, buttons };
}

test("a token that may only ask sees policies and keys, and nothing that it could change", async () => {
  const { page, faults, headings, buttons } = await opened(TOKENS.limit);
  await says(page, "visitor");
  expect(await page.$$eval("nav a", (links) => links.map((link) => link.textContent))).toEqual([
    "Overview",
    "Try a call",
  ]);
  await goTo(page, "#/policy/api");
  await says(page, "As in wrangler.toml, version 0");
  await until(async () => (await headings()).length > 0);
  expect(await headings()).toEqual(["Overrides"]);
  expect(await buttons()).toEqual(["Show"]);
  await goTo(page, "#/key/api/tenant-1");
  await page.waitForSelector("[data-reason]");
  expect(await headings()).toEqual(["Now", "While this page is open"]);
  expect(await buttons()).toEqual([]);
  await goTo(page, "#/catalog");
  await says(page, "Overview");
  expect(await textOf(page)).not.toContain("Scopes");
  expect(faults).toEqual([]);
});

test("a token for metrics sees the rates of all policies, and no key", async () => {
  await limitOf(serving.url, "api", "secret-key");
  const { page, faults, cards } = await opened(TOKENS.metrics);
  await until(async () => (await cards()).includes("api"));
  expect(await page.$$eval("nav a, main a", (links) => links.map((link) => link.textContent))).toEqual([
    "Overview",
  ]);
  expect(await textOf(page)).not.toContain("secret-key");
  await goTo(page, "#/key/api/secret-key");
  await says(page, "Rates are of the last half minute");
  expect(faults).toEqual([]);
});

test("a token for one policy and some keys sees that policy alone; one that may only refund is told so", async () => {
  const tenant = await opened(TOKENS.tenant);
  await says(tenant.page, "api");
  await until(async () => String(await tenant.cards()) === "api");
  await goTo(tenant.page, "#/key/api/tenant-b%3A1");
  await says(tenant.page, "may use keys that begin with");
  const refund = await opened(TOKENS.refund);
  await says(refund.page, "The token refund may make calls, and see nothing here");
  expect([...tenant.faults, ...refund.faults]).toEqual([]);
});

test("an admin of some keys may change those, and is offered nothing that concerns all", async () => {
  const { url } = serving;
  const rights = { name: "tenant-admin", scopes: ["limit", "admin"], keyPrefix: "t1:" };
  const { token } = await send(url, "POST", "/v1/tokens", rights);
  await send(url, "PUT", "/v1/policies/visitor/candidate", { ...DASHBOARD_POLICIES.visitor, limit: 20 });
  const { page, faults, headings, buttons } = await opened(String(token));
  await goTo(page, "#/policy/visitor");
  await says(page, "most denied");
  const shown = await headings();
  expect(shown.filter((each) => ["Overrides", "Candidate", "Fields"].includes(each ?? ""))).toEqual([]);
  await goTo(page, "#/key/visitor/other");
  await says(page, "may use keys that begin with");
  expect(await buttons()).not.toContain("Block");
  await goTo(page, "#/key/visitor/t1%3Aa");
  await until(async () => (await buttons()).includes("Block"));
  await send(url, "DELETE", "/v1/tokens/tenant-admin");
  await send(url, "DELETE", "/v1/policies/visitor/candidate");
  expect(faults).toEqual([]);
});

test("a wrong token is refused, and one that is revoked is sent back to the beginning", async () => {
  const { page, faults } = await openPage(browser);
  await page.goto(`${serving.url}/dashboard`);
  await (await page.waitForSelector("input[type=password]"))?.type("weir_wrong");
  await page.keyboard.press("Enter");
  await says(page, "the token is not known");

  const issued = await send(serving.url, "POST", "/v1/tokens", { name: "leaving", scopes: ["limit"] });
  const leaving = await opened(String(issued["token"]));
  await goTo(leaving.page, "#/key/api/tenant-1");
  await leaving.page.waitForSelector("[data-reason]");
  // It lives in this tab, and survives that the page is loaded again.
  await leaving.page.reload();
  await leaving.page.waitForSelector("[data-reason]");
  await send(serving.url, "DELETE", "/v1/tokens/leaving");
  await says(leaving.page, "This token is no longer valid: sign in with another one.");
  expect(await leaving.page.evaluate("sessionStorage.length + localStorage.length")).toBe(0);

  const other = await opened(TOKENS.full);
  await press(other.page, "Sign out");
  await other.page.waitForSelector("input[type=password]");
  expect(await other.page.evaluate("sessionStorage.length + localStorage.length")).toBe(0);
  expect([...faults, ...leaving.faults, ...other.faults]).toEqual([]);
});

const ODD_KEYS = [
  '<img src=x onerror="document.title=1">',
  "a/../b?c#d%2F\\",
  "ключ 🗝 ‮",
  "'\";`${1}",
  "é".repeat(256),
];

test("a key is shown and found as it is, whatever is in it", async () => {
  const { page, faults } = await opened(TOKENS.full);
  for (const key of ODD_KEYS) await limitOf(serving.url, "visitor", key);
  await goTo(page, "#/policy/visitor");
  for (const key of ODD_KEYS) {
    await says(page, key);
    await goTo(page, `#/key/visitor/${encodeURIComponent(key)}`);
    await page.waitForSelector("[data-reason=ok]");
    expect(await page.$eval("h1", (heading) => heading.textContent)).toBe(key);
    await press(page, "Reset");
    await press(page, "Reset", "dialog");
    await says(page, "has its full quota");
    expect(await page.$$("main img, h1 *")).toEqual([]);
    await goTo(page, "#/policy/visitor");
  }
  await goTo(page, "#/key/visitor/..");
  await says(page, "cannot be part of an address");
  expect(await page.title()).toBe("Weir");
  expect(faults).toEqual([]);
});

test("a limiter that keeps no counts and no catalog says so in the parts that need them", async () => {
  const folder = makeState();
  const bare = await serveBundle(folder, DASHBOARD_POLICIES, { main: BUNDLE });
  try {
    const { page, faults } = await openPage(browser);
    await signIn(page, bare.url, TOKENS.full);
    await says(page, "there are no counts to read: this deployment has no binding STATS");
    await goTo(page, "#/catalog");
    await says(page, "CATALOG");
    await goTo(page, "#/key/api/tenant-1");
    await page.waitForSelector("[data-reason=ok]");
    expect(faults).toEqual([]);
  } finally {
    await bare.stop("SIGKILL");
    removeState(folder);
  }
});

test("while the statistics do not answer the pages say so instead of rates, and have them again afterwards", async () => {
  const folder = makeState();
  const main = join(import.meta.dirname, "..", "support", "unsteady-stats.mjs");
  const unsteady = await serveBundle(folder, DASHBOARD_POLICIES, { main, hasDeploymentObjects: true });
  const answering = (fate: string) => fetch(`${unsteady.url}/statistics`, { method: "PUT", body: fate });
  try {
    await answering("failing");
    const { page, faults } = await openPage(browser);
    await signIn(page, unsteady.url, TOKENS.full);
    for (const place of ["#/policy/api", "#/"]) {
      await goTo(page, place);
      await says(page, "the object with the statistics does not answer");
      expect(await textOf(page)).not.toContain("Measuring");
      expect(await page.$$("[data-figure]")).toEqual([]);
    }
    await answering("well");
    await page.waitForSelector("[data-figure]");
    // A card shows its history with its own next message.
    await expect.poll(() => textOf(page), { timeout: 120_000 }).not.toContain("does not answer");
    expect(faults).toEqual([]);
  } finally {
    await unsteady.stop("SIGKILL");
    removeState(folder);
  }
});

test("the page of a key that groups share has the active ones with their parts", async () => {
  const { url } = serving;
  const policy = { algorithm: "token-bucket", limit: 10, window: "1d", fair: true };
  await send(url, "PUT", "/v1/policies/shared", policy);
  for (const [group, cost] of [
    ["calm", 1],
    ["eager", 2],
  ] as const)
    await until(async () => {
      const called = await send(url, "POST", "/v1/limit", { policy: "shared", key: "model", group, cost });
      return called["success"] === true;
    });
  const { page, faults } = await opened(TOKENS.full);
  await goTo(page, "#/key/shared/model");
  await page.waitForSelector("#part-groups");
  await says(page, "2 active.");
  const rows = await page.$$eval("[aria-label='Groups'] tbody tr", (found) =>
    found.map((row) => [...row.children].map(({ textContent }) => textContent)),
  );
  expect(rows).toEqual([
    ["eager", "0", "5"],
    ["calm", "1", "5"],
  ]);
  const other = await opened(TOKENS.limit);
  await goTo(other.page, "#/key/shared/model");
  await says(other.page, "2 active. Their names need the scope admin.");
  expect(await textOf(other.page)).not.toContain("eager");
  expect([...faults, ...other.faults]).toEqual([]);
});
