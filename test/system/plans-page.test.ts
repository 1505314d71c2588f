/** The programs of docs/plans.md on the limiter with the policies of that page: one after the other, as a reader runs them. */
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { parse as parseToml } from "smol-toml";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ROOT } from "../../scripts/project.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { readPages } from "../support/docs.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { NOTICES_SECRET, NoticeReceiver } from "../support/notice-receiver.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const PAGE = "docs/plans.md";
const fences = readPages().find(({ path }) => path === PAGE)?.fences ?? [];
const programs = fences.flatMap(({ language, code, line }, index) => {
  const next = fences[index + 1];
  return language === "ts" ? [{ code, line, prints: next?.language === "text" ? next.code : undefined }] : [];
});
/** All tables of the page: each has policies of its own. */
const policies = Object.assign(
  {},
  ...fences
    .filter(({ language }) => language === "toml")
    .map(({ code }) => (parseToml(code)["vars"] as { readonly POLICIES: object }).POLICIES),
) as object;

const folder = mkdtempSync(join(tmpdir(), "weir-plans-"));
const state = makeState();
const receiver = new NoticeReceiver();
let weir: Serving;
beforeAll(async () => {
  const target = { webhook: await receiver.listen() };
  weir = await serveBundle(state, policies, { notices: { target, secret: NOTICES_SECRET } });
});
afterAll(async () => {
  await weir.stop();
  receiver.close();
  removeState(state);
  rmSync(folder, { recursive: true, force: true });
});

/** The program with the package, the address and the token that a reader has. */
function filled(code: string): string {
  const values = {
    "weir-limiter/client": join(ROOT, "package", "client.ts"),
    "https://weir.example.workers.dev": weir.url,
    "...": TOKENS.full,
  };
  return Object.entries(values).reduce(
    (text, [name, value]) => text.replaceAll(JSON.stringify(name), () => JSON.stringify(value)),
    code,
  );
}

test.each(programs)(
  "the program of line $line runs, and prints what the page says",
  async ({ code, line, prints }) => {
    const file = join(folder, `line-${line}.ts`);
    writeFileSync(file, filled(code));
    const { stdout } = await promisify(execFile)(process.execPath, [file], { timeout: 60_000 });
    if (prints !== undefined) expect(stdout.trim()).toBe(prints);
  },
);

test("a notice at 80 % has left for the customer, with the plan that it had", async () => {
  expect(programs.filter(({ prints }) => prints !== undefined)).toHaveLength(1);
  await eventually(() =>
    expect(receiver.of("customer:42").map(({ data }) => data)).toContainEqual(
      expect.objectContaining({ policy: "month", threshold: 0.8, limit: 1_000, used: 900 }),
    ),
  );
});
