/** Builds the dashboard once, before tests import the worker that serves it. */
export { buildDashboard as default } from "../../scripts/dashboard-build.ts";
