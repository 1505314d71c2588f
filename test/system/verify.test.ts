/** npm run verify, against the real limiter, one behind a bad network, and one that leaks. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { ROOT } from "../../scripts/project.ts";
import { Calls, pause } from "../../scripts/verify/calls.ts";
import { verifyHoldExpiry } from "../../scripts/verify/holds.ts";
import { maxHeld, staleTokens, verifyExpiry } from "../../scripts/verify/leases.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import { depth, inDeepRuns, IS_DEEP } from "../support/depth.ts";
import { eventually } from "../support/eventually.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { startUnreliable } from "../support/unreliable-http.ts";

const PATIENT = { deadlineMs: 20_000 };
const policies = {
  api: { algorithm: "token-bucket", limit: 20, window: "1s", burst: 40, ...PATIENT },
  login: { algorithm: "sliding-log", limit: 30, window: "1m", ...PATIENT },
  fair: { algorithm: "gcra", limit: 30, window: "1s", ...PATIENT },
  plan: { algorithm: "fixed-window", limit: 25, window: "500ms", ...PATIENT },
  llm: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 20, window: "1m" },
      tokens: { algorithm: "sliding-log", limit: 10_000, window: "1m", unit: "tokens" },
      day: { algorithm: "fixed-window", limit: 1_000, window: "1 day" },
    },
    ...PATIENT,
  },
  mutex: { algorithm: "concurrency", limit: 1, ttl: "3s", maxWait: "30s", objects: 2, ...PATIENT },
  trial: { algorithm: "token-bucket", limit: 1, window: "1s", shadow: true, ...PATIENT },
};

/** Where a call without a group is refused, or one without a priority may not have all. */
const parted = {
  shared: { algorithm: "token-bucket", limit: 20, window: "1m", fair: true, ...PATIENT },
  "shared-slots": { algorithm: "concurrency", limit: 2, ttl: "3s", maxWait: "30s", fair: true, ...PATIENT },
  kept: { algorithm: "sliding-log", limit: 20, window: "1m", reserve: { high: "20%" }, ...PATIENT },
};

interface Verified {
  readonly exitCode: number;
  readonly printed: string;
}

/** Runs the script on Node alone: the packages are installed. */
function verify(
  url: string,
  args: readonly string[] = ["--quick"],
  token: string = TOKENS.full,
  onTold: (text: string) => void = () => undefined,
) {
  return new Promise<Verified>((done) => {
    const script = join(ROOT, "scripts", "verify.ts");
    const env = { ...process.env, TOKEN: token };
    const child = execFile(process.execPath, [script, url, ...args], { env }, (error, stdout, stderr) =>
      done({ exitCode: error === null ? 0 : Number(error.code), printed: stdout === "" ? stderr : stdout }),
    );
    child.stderr?.on("data", (text: Buffer | string) => onTold(String(text)));
  });
}

const states = [makeState(), makeState(), makeState()] as const;
let [served, leaking, greedy]: Serving[] = [];
beforeAll(async () => {
  served = await serveBundle(states[0], { ...policies, ...parted });
  if (!IS_DEEP) return;
  const support = join(import.meta.dirname, "..", "support");
  leaking = await serveBundle(states[1], policies, { main: join(support, "leaking-worker.mjs") });
  const llm = { ...policies.llm, reservation: "off" };
  greedy = await serveBundle(states[2], { llm }, { main: join(support, "greedy-worker.mjs") });
});
afterAll(async () => {
  await Promise.all([served?.stop(), leaking?.stop(), greedy?.stop()]);
  for (const state of states) removeState(state);
});

test("policies of groups, and with a reserve, are called with what gives one caller all of it", async () => {
  const names = Object.keys(parted).flatMap((name) => ["--policy", name]);
  const { exitCode, printed } = await verify(served?.url ?? "", ["--quick", ...names]);
  expect(printed).toMatch(/^holds +exactness of shared: token-bucket/m);
  expect(printed).toMatch(/^holds +exactness of kept: sliding-log/m);
  expect(printed).toMatch(/^holds +a hold of \w+ keeps others out, and what it did not use is free again/m);
  expect(printed).toMatch(/^holds +leases of shared-slots exclude each other/m);
  expect(printed).toMatch(/^holds +a lease of shared-slots that a socket holds/m);
  expect(printed).toMatch(/8 held, 0 broken, 2 untested; \d+ calls$/m);
  expect(exitCode).toBe(0);
});

test("of the real limiter it finds that everything holds, and leaves no lease behind", async () => {
  const names = Object.keys(policies).flatMap((name) => ["--policy", name]);
  const { exitCode, printed } = await verify(served?.url ?? "", ["--quick", ...names]);
  expect(printed).toMatch(/^measured +latency/m);
  expect(printed).toMatch(/^holds +exactness of api: token-bucket/m);
  expect(printed).toMatch(/^holds +exactness of login: sliding-log/m);
  expect(printed).toMatch(/^holds +exactness of fair: gcra/m);
  expect(printed).toMatch(/^holds +exactness of plan: fixed-window/m);
  expect(printed).toMatch(/^holds +several rules of llm, all or nothing: requests, tokens, day/m);
  expect(printed).toMatch(
    /tokens: never more than its bound; \d+ of 10000 left, 0 that were denied are missing/,
  );
  expect(printed).toMatch(/^holds +units that are held of \w+ keep to the bound/m);
  expect(printed).toMatch(/^holds +a hold of \w+ keeps others out, and what it did not use is free again/m);
  expect(printed).toMatch(/^holds +a hold of \w+ that nobody settles counts as used when it expires/m);
  expect(printed).toMatch(/^holds +leases of mutex exclude each other/m);
  expect(printed).toMatch(/^holds +a lease of mutex whose holder vanished/m);
  expect(printed).toMatch(/^holds +a lease of mutex that a socket holds/m);
  expect(printed).toMatch(/11 held, 0 broken, 0 untested; \d+ calls$/m);
  expect(exitCode).toBe(0);
  const headers = { authorization: `Bearer ${TOKENS.full}` };
  const listed = await fetch(`${served?.url}/v1/policies/mutex/keys`, { headers });
  const { keys } = (await listed.json()) as { keys: readonly { readonly leases: number }[] };
  expect(keys.filter(({ leases }) => leases > 0)).toEqual([]);
});

inDeepRuns("of a limiter that leaks it finds what is broken, and its exit code is 1", async () => {
  const { exitCode, printed } = await verify(leaking?.url ?? "");
  expect(printed).toMatch(/^BROKEN +exactness of api/m);
  expect(printed).toMatch(/^BROKEN +exactness of login/m);
  expect(printed).toMatch(/^BROKEN +exactness of fair/m);
  expect(printed).toMatch(/^BROKEN +exactness of plan/m);
  expect(printed).toMatch(/^BROKEN +several rules of llm/m);
  expect(printed).toMatch(/^BROKEN +units that are held of/m);
  expect(printed).toMatch(/^BROKEN +a hold of \w+ keeps others out/m);
  expect(printed).toMatch(/^BROKEN +leases of mutex exclude each other/m);
  expect(exitCode).toBe(1);
});

inDeepRuns("denied calls that take units of the other rules are found", async () => {
  const { exitCode, printed } = await verify(greedy?.url ?? "", ["--quick"]);
  expect(printed).toMatch(/^BROKEN +several rules of llm/m);
  expect(printed).toMatch(/requests: never more than its bound/);
  expect(exitCode).toBe(1);
});

test("what is granted late ends late: nothing is called broken for that", async () => {
  const slow = await startUnreliable(served?.url ?? "");
  const calls = new Calls(slow.url, TOKENS.full, "");
  const windowMs = 60_000;
  const rule = { name: "login", unit: "login", algorithm: "sliding-log", limit: 30, capacity: 30 } as const;
  const login = { ...rule, policy: "login", windowMs, shortestMs: windowMs };
  const mutex = { policy: "mutex", limit: 1, maxTtlMs: 3_000, maxWaitMs: 30_000 } as const;
  try {
    for (const check of [() => verifyHoldExpiry(calls, login), () => verifyExpiry(calls, mutex)]) {
      slow.setFault({ kind: "delay-request", ms: 900 });
      const before = slow.forwarded();
      const checking = check();
      await eventually(() => expect(slow.forwarded()).toBe(before + 1));
      slow.setFault({ kind: "pass" });
      expect(await checking).toMatchObject({ verdict: "holds" });
    }
  } finally {
    await slow.stop();
  }
});

inDeepRuns("a network that loses answers, and sends calls twice, breaks no guarantee", async () => {
  const unreliable = await startUnreliable(served?.url ?? "", 7);
  try {
    for (const kind of ["lose-reply", "duplicate"] as const) {
      unreliable.setFault({ kind }, 0.05);
      const { exitCode, printed } = await verify(unreliable.url);
      expect(printed).not.toContain("BROKEN");
      expect(exitCode).toBe(0);
    }
  } finally {
    await unreliable.stop();
  }
});

inDeepRuns("over a restart it says what became of a socket, and that the bound was kept", async () => {
  const stateDir = makeState();
  const port = await freePort();
  const start = () => serve({ stateDir, policies, port, apiTokens: JSON.stringify(TEST_TOKENS) });
  let restarted = start();
  let verifying: Promise<Verified> | undefined;
  try {
    const { url } = await restarted;
    const deploysNow = new Promise<void>((done) => {
      verifying = verify(url, ["--quick", "--redeploy"], TOKENS.full, (told) => {
        if (told.includes("deploy now")) done();
      });
    });
    await deploysNow;
    await pause(1_000);
    await (await restarted).stop("SIGKILL");
    restarted = start();
    await restarted;
    const { exitCode, printed } = (await verifying) ?? {};
    expect(printed).toMatch(/it was cut after [\d.]+ s, with code \d+; its slots were free again/);
    expect(printed).toMatch(/12 held, 0 broken, 0 untested/);
    expect(exitCode).toBe(0);
  } finally {
    await (await restarted).stop();
    removeState(stateDir);
  }
});

test("what it cannot test it names, with what it needs, and a limiter without any of it is exit code 2", async () => {
  const { exitCode, printed } = await verify(served?.url ?? "", ["--quick", "--policy", "trial"]);
  expect(printed).toContain("exactness of token-bucket, gcra, sliding-log, fixed-window\n");
  expect(printed).toContain("needs a policy with one rule, token-bucket, gcra, sliding-log or fixed-window");
  expect(printed).toContain("needs a policy with several rules");
  expect(printed).toContain("needs a policy with one rule, token-bucket, gcra or sliding-log, of 2 to");
  expect(printed).toContain("needs a policy with one rule, concurrency");
  expect(exitCode).toBe(2);
});

const REFUSED: readonly (readonly [string, readonly string[], string, RegExp])[] = [
  ["a wrong token", ["--quick"], "weir_wrong", /answers 401: /],
  ["no token", ["--quick"], "", /^TOKEN is missing/],
  [
    "an unknown policy",
    ["--policy", "ap"],
    TOKENS.full,
    /^--policy is ap: must be one of api, login, fair, plan, llm, mutex, trial, shared/,
  ],
  ["an unknown flag", ["--fast"], TOKENS.full, /--fast/],
];
test.each(REFUSED.slice(0, depth(1, REFUSED.length)))(
  "%s is refused with a sentence",
  async (_, args, token, sentence) => {
    const { exitCode, printed } = await verify(served?.url ?? "", args, token);
    expect(printed).toMatch(sentence);
    expect(exitCode).toBe(2);
  },
);

describe("what it counts", () => {
  test("units count as held only while their lease surely was", () => {
    const at = (fromMs: number, untilMs: number) => ({ fromMs, untilMs, units: 1 });
    expect(maxHeld([at(0, 10), at(10, 20)])).toBe(1);
    expect(maxHeld([at(0, 11), at(10, 20), at(15, 15)])).toBe(2);
  });

  test("a fencing token must be higher than all that were granted before it was asked for", () => {
    const lease = (askedAtMs: number, fromMs: number, fencingToken: number) => ({
      askedAtMs,
      fromMs,
      fencingToken,
    });
    expect(staleTokens([lease(0, 5, 1), lease(5, 9, 2), lease(6, 7, 3)])).toBe(0);
    expect(staleTokens([lease(0, 5, 2), lease(5, 9, 1)])).toBe(1);
    expect(staleTokens([lease(0, 5, 2), lease(1, 9, 2)])).toBe(1);
  });
});
