/** The contract of limiters over each way to a real one. In memory it runs in memory-limiter.test.ts. */
import { buildSync } from "esbuild";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { LimiterError, type FieldError } from "../../core/protocol/problems.ts";
import { createLimiter } from "../../package/client.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import type { Told } from "../support/contract-caller.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { CONTRACT_POLICIES, describeContract, type Called } from "../support/limiter-contract.ts";

const folder = mkdtempSync(join(tmpdir(), "weir-contract-"));
let served: Serving;
beforeAll(async () => {
  const caller = join(folder, "caller.js");
  buildSync({
    entryPoints: [join(import.meta.dirname, "../support/contract-caller.ts")],
    outfile: caller,
    bundle: true,
    format: "esm",
    external: ["cloudflare:workers"],
  });
  served = await serve({
    stateDir: join(folder, "state"),
    policies: CONTRACT_POLICIES,
    apiTokens: JSON.stringify(TEST_TOKENS),
    caller,
    callerHasObjects: true,
  });
});
afterAll(async () => {
  await served.stop();
  rmSync(folder, { recursive: true, force: true });
});

describeContract("over HTTP", () => Promise.resolve(createLimiter({ url: served.url, token: TOKENS.full })));
describeContract("over the service binding", () => Promise.resolve(toldLimiter(served.callerUrl, "service")));
describeContract("over the objects", () => Promise.resolve(toldLimiter(served.callerUrl, "objects")));

test("over the binding a lease with a grace outlives its request, is resumed, and is plain data", async () => {
  const limiter = toldLimiter(served.callerUrl, "service");
  const asked = { policy: "export", key: "graced", units: 2, graceMs: 15_000 };
  const { lease, ...decision } = await limiter.acquire(asked);
  expect(decision).not.toHaveProperty("slot");
  expect(decision).not.toHaveProperty("renew");
  expect(await limiter.acquire(asked)).toMatchObject({ success: false, reason: "quota" });
  const resumed = await limiter.acquire({
    policy: "export",
    key: "graced",
    resume: lease?.id ?? "",
    graceMs: 15_000,
  });
  expect(resumed.lease).toMatchObject({ id: lease?.id, fencingToken: lease?.fencingToken });
  await limiter.release({ id: lease?.id ?? "" });
  expect(await limiter.peek({ policy: "export", key: "graced" })).toMatchObject({ leases: 0 });
});

const HELD = [
  ["the answer has been sent", "GET", "read"],
  ["the answer has no body", "HEAD", "empty"],
  ["the handler throws", "GET", "thrown"],
  ["the caller leaves", "GET", "left"],
] as const;
test.each(HELD.flatMap((each) => [[...each, "service"] as const, [...each, "objects"] as const]))(
  "a handler without ctx frees its slot when %s (%s /held/%s, over the %s)",
  async (_, method, how, way) => {
    const key = `/held/${way}/${how}`;
    const limiter = toldLimiter(served.callerUrl, "service");
    const leasesOf = async () => (await limiter.peek({ policy: "export", key })).leases;
    const leaving = new AbortController();
    const { body, status } = await fetch(`${served.callerUrl}${key}`, { method, signal: leaving.signal });
    expect(status).toBe(how === "thrown" ? 500 : 200);
    if (how === "left") {
      expect(await leasesOf()).toBe(1);
      leaving.abort();
    } else await body?.cancel();
    await vi.waitFor(async () => expect(await leasesOf()).toBe(0), 5_000);
  },
);

test("elsewhere a grace is refused by name", async () => {
  const asked = { policy: "export", key: "a", graceMs: 1_000 };
  const refusal = { status: 422, message: expect.stringContaining("graceMs is not a field") };
  const limiters = [
    createLimiter({ url: served.url, token: TOKENS.full }),
    toldLimiter(served.callerUrl, "objects"),
  ];
  for (const limiter of limiters) await expect(limiter.acquire(asked)).rejects.toMatchObject(refusal);
});

interface Answered {
  readonly answer?: unknown;
  readonly error?: {
    readonly status: number;
    readonly code: string;
    readonly errors: readonly FieldError[];
    readonly message: string;
  };
}

/** The limiter of a worker at this address that is told by requests what to call (contract-caller.ts). */
function toldLimiter(url: string, way: Told["way"]): Called {
  const call = async (method: Told["method"], asked: unknown): Promise<unknown> => {
    const response = await fetch(url, { method: "POST", body: JSON.stringify({ way, method, asked }) });
    const text = await response.text();
    if (!response.ok) throw new Error(`the caller failed: ${text}`);
    const { answer, error } = JSON.parse(text) as Answered;
    if (error === undefined) return answer;
    const { message: title } = error;
    throw new LimiterError({ ...error, title, detail: title }, title);
  };
  return new Proxy({} as Called, {
    // A promise of it must not take it for another promise.
    get: (_, method) =>
      method === "then" ? undefined : (asked: unknown) => call(method as Told["method"], asked),
  });
}
