/** How the worker serves the dashboard, and what it tells a token of itself. */
import { SELF } from "cloudflare:test";
import { expect, test } from "vitest";
import { TOKENS } from "../../support/fixtures.ts";
import { call } from "../../support/limiter.ts";

const get = (path: string, init: RequestInit = {}) => SELF.fetch(`https://weir.test${path}`, init);
/** The addresses of the script and the style, as the page names them. */
async function filesOfPage(): Promise<string[]> {
  const page = await (await get("/dashboard")).text();
  return [...page.matchAll(/(?:src|href)="(\/dashboard\/[^"]+)"/g)].map(([, path = ""]) => path);
}

test("the page and its files need no token, and are served as what they are", async () => {
  const paths = await filesOfPage();
  expect(paths).toEqual([
    expect.stringMatching(/^\/dashboard\/style-[\w-]{12}\.css$/),
    expect.stringMatching(/^\/dashboard\/app-[\w-]{12}\.js$/),
  ]);
  const types = ["text/html", "text/css", "text/javascript"];
  for (const [index, path] of ["/dashboard", ...paths].entries()) {
    const response = await get(path);
    expect(response.status).toBe(200);
    expect(response.headers.get("content-type")).toBe(`${types[index] ?? ""}; charset=utf-8`);
    expect((await response.text()).length).toBeGreaterThan(100);
  }
});

test("a browser may do nothing on the page but what its own files say, and nobody frames it", async () => {
  for (const path of ["/dashboard", ...(await filesOfPage())]) {
    const { headers } = await get(path);
    expect(headers.get("content-security-policy")).toBe(
      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    );
    expect(headers.get("x-content-type-options")).toBe("nosniff");
    expect(headers.get("referrer-policy")).toBe("no-referrer");
  }
});

test("files are kept for ever, the page is asked for again, and what is known is not sent again", async () => {
  const [style = ""] = await filesOfPage();
  expect((await get(style)).headers.get("cache-control")).toBe("public, max-age=31536000, immutable");
  for (const path of ["/dashboard", style]) {
    const etag = (await get(path)).headers.get("etag") ?? "";
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`]) {
      const again = await get(path, { headers: { "if-none-match": known } });
      expect([again.status, await again.text(), again.headers.get("etag")]).toEqual([304, "", etag]);
    }
    expect((await get(path, { headers: { "if-none-match": '"other"' } })).status).toBe(200);
  }
  expect((await get("/dashboard")).headers.get("cache-control")).toBe("no-cache");
});

test("HEAD has the headers alone, other methods are refused, and another name is not there", async () => {
  const head = await get("/dashboard", { method: "HEAD" });
  expect([head.status, await head.text()]).toEqual([200, ""]);
  expect((await call("/dashboard", { method: "POST" })).status).toBe(405);
  for (const name of ["app-000000000000.js", "constructor", "__proto__"])
    expect(await call(`/dashboard/${name}`)).toMatchObject({
      status: 404,
      body: { type: "urn:weir:problem:not-found" },
    });
});

test("a token is told what it may do, whatever that is", async () => {
  expect((await call("/v1/token", { token: TOKENS.metrics })).body).toEqual({
    name: "metrics",
    scopes: ["metrics"],
  });
  expect((await call("/v1/token", { token: TOKENS.tenant })).body).toEqual({
    name: "tenant",
    scopes: ["limit"],
    policies: ["api"],
    keyPrefix: "tenant-a:",
  });
  expect((await call("/v1/token", { token: "weir_guess" })).status).toBe(401);
  expect((await call("/v1/token", { token: "" })).status).toBe(401);
  expect((await call("/v1/token?name=x", { token: TOKENS.full })).status).toBe(422);
});
