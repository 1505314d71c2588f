/** The documentation as a site: every page and anchor is there, its search finds, and llms.txt names each page. */
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { extname, join, posix } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { startChromium } from "../../scripts/chromium.ts";
import { ROOT } from "../../scripts/project.ts";
import { readPages } from "../support/docs.ts";

const SITE = join(ROOT, "dist", "site");
/** Without a generator there is no site: then nothing is tested. */
let isBuilt = false;
beforeAll(() => {
  const canInstall = spawnSync("npm", ["view", "vitepress", "version"]).status === 0;
  if (!canInstall) return console.warn("vitepress cannot be had from npm here: the site was left out");
  const { status, stdout, stderr } = spawnSync(process.execPath, ["scripts/docs-site.ts"], {
    cwd: ROOT,
    encoding: "utf8",
  });
  expect([status, status === 0 ? "" : stdout + stderr]).toEqual([0, ""]);
  isBuilt = true;
});

/** The file of an address, as a server that knows clean addresses finds it. */
function fileOf(path: string): string | undefined {
  const wanted = join(SITE, decodeURIComponent(path));
  return [wanted, `${wanted}.html`, join(wanted, "index.html")].find(
    (file) => existsSync(file) && statSync(file).isFile(),
  );
}

test("every page of the documentation is on the site, and every link and anchor of the site leads somewhere", () => {
  if (!isBuilt) return;
  const files = readdirSync(SITE, { recursive: true, encoding: "utf8" }).filter((file) =>
    file.endsWith(".html"),
  );
  const missing = readPages().filter(
    ({ path }) => !files.includes(path.replace(/README\.md$/, "index.html").replace(/\.md$/, ".html")),
  );
  expect(missing.map(({ path }) => path)).toEqual([]);
  const lost = files.flatMap((file) => {
    const html = readFileSync(join(SITE, file), "utf8");
    const links = [...html.matchAll(/ href="([^"]+)"/g)].map(([, href = ""]) => href);
    return links
      .filter((href) => !/^(https?|mailto):/.test(href) && !isThere(file, href))
      .map((href) => `${file}: ${href}`);
  });
  expect(lost).toEqual([]);
});

function isThere(file: string, href: string): boolean {
  const [path = "", anchor] = href.split("#");
  const target =
    path === ""
      ? join(SITE, file)
      : fileOf(path.startsWith("/") ? path : posix.join("/", posix.dirname(file), path));
  if (target === undefined) return false;
  return anchor === undefined || readFileSync(target, "utf8").includes(` id="${decodeURIComponent(anchor)}"`);
}

test("llms.txt names each page, as text that is on the site", () => {
  if (!isBuilt) return;
  const named = [...readFileSync(join(SITE, "llms.txt"), "utf8").matchAll(/\]\(([^)]+)\)/g)].map(
    ([, path = ""]) => path,
  );
  expect(new Set(named)).toEqual(new Set(readPages().map(({ path }) => path)));
  expect(named.filter((path) => !existsSync(join(SITE, path)))).toEqual([]);
});

const TYPES: Readonly<Record<string, string>> = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};

test("in a browser its search finds the page that explains a word", async () => {
  if (!isBuilt) return;
  const server = createServer((request, response) => {
    const file = fileOf(new URL(request.url ?? "/", "http://site").pathname);
    response.writeHead(file === undefined ? 404 : 200, {
      "content-type": TYPES[extname(file ?? "")] ?? "text/plain",
    });
    response.end(file === undefined ? "" : readFileSync(file));
  });
  await new Promise<void>((up) => server.listen(0, "127.0.0.1", up));
  const browser = await startChromium();
  try {
    const page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`, {
      waitUntil: "networkidle0",
    });
    await page.click("#local-search button");
    const input = await page.waitForSelector("#localsearch-input");
    await input?.type("fencing token");
    const found = await page.waitForSelector('#localsearch-list a[href^="/docs/leases"]');
    expect(await found?.evaluate((link) => link.textContent)).toContain("fencing token");
  } finally {
    await browser.close();
    server.close();
  }
});
