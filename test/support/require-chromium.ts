/** Installs Chromium where it is missing: the dashboard is tested in it. */
export { ensureChromium as default } from "../../scripts/chromium.ts";
