/** Runs Chromium without a window, for tests and pictures of the dashboard. */
import { existsSync } from "node:fs";
import { delimiter, join } from "node:path";
import puppeteer, { type Browser } from "puppeteer-core";
import { ensureTool } from "./installed-tool.ts";

export function ensureChromium(): void {
  ensureTool({
    command: "chromium",
    apt: "chromium",
    brew: "chromium",
    elsewhere: ["elsewhere:       Chromium or Chrome 120 or newer, as chromium on the PATH"],
  });
}

/** Starts Chromium; the caller closes it. */
export async function startChromium(): Promise<Browser> {
  const folders = process.env["PATH"]?.split(delimiter) ?? [];
  const executablePath = folders.map((folder) => join(folder, "chromium")).find((path) => existsSync(path));
  if (executablePath === undefined) throw new Error("chromium is not on the PATH");
  // Chromium refuses to run as root with its sandbox.
  const isRoot = process.getuid?.() === 0;
  const args = ["--disable-gpu", "--disable-dev-shm-usage", ...(isRoot ? ["--no-sandbox"] : [])];
  return await puppeteer.launch({ executablePath, args });
}
