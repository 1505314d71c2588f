/** A limiter and a browser for the dashboard's tests. */
import type { Browser } from "puppeteer-core";
import { afterAll, beforeAll } from "vitest";
import { startChromium } from "../../scripts/chromium.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { DASHBOARD_POLICIES } from "./dashboard.ts";
import { makeState, removeState, serveBundle } from "./served.ts";

/** A limiter, and a browser. */
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
