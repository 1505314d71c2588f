/** A candidate is tried, compared and promoted in the dashboard, over real traffic. */
import { expect, test } from "vitest";
import {
  DASHBOARD_POLICIES,
  endlessTraffic,
  fill,
  goTo,
  limitOf,
  openPage,
  press,
  says,
  send,
  signIn,
  until,
  serveDashboard,
  type ServedDashboard,
} from "../support/dashboard.ts";
import { TOKENS } from "../support/fixtures.ts";

let { serving, browser } = {} as ServedDashboard;
serveDashboard((served) => ({ serving, browser } = served));

const FIELD = "textarea[name=candidate-fields]";

test("a candidate is tried beside its policy, compared with it, promoted, and taken back", async () => {
  const { url } = serving;
  const { page, faults } = await openPage(browser);
  await signIn(page, url, TOKENS.full);
  await goTo(page, "#/policy/api");
  await press(page, "Try other fields");
  const fields = { ...DASHBOARD_POLICIES.api, limit: 10 };
  await fill(page, FIELD, JSON.stringify({ ...fields, burst: -1 }));
  await press(page, "Check candidate");
  await says(page, "burst is -1");
  await fill(page, FIELD, JSON.stringify({ ...fields, burst: 11 }));
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
  await fill(page, FIELD, JSON.stringify({ ...fields, burst: 11 }));
  await press(page, "Begin the trial");
  await press(page, "End the trial");
  await press(page, "End the trial", "dialog");
  await until(async () => (await send(url, "GET", "/v1/policies/api/candidate"))["status"] === 404);
  expect(faults).toEqual([]);
});
