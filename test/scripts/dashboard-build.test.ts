/** What the dashboard is built to. */
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import { FILES } from "../../worker/http/dashboard-files.js";

/** All that a browser loads, in bytes. */
const MAX_BYTES = 150_000;

test("all that a browser loads is under 150 kB, compressed", () => {
  const sizes = Object.values(FILES).map(({ body }) => gzipSync(body).length);
  expect(sizes.length).toBe(3);
  expect(sizes.reduce((sum, each) => sum + each, 0)).toBeLessThan(MAX_BYTES);
});

test("the page names the script and the style, and has nothing inline", () => {
  const page = FILES[""]?.body ?? "";
  for (const name of Object.keys(FILES)) expect(page).toContain(`/dashboard/${name}`);
  expect(page).not.toMatch(/<script>|<style|style=|\son\w+=/);
});
