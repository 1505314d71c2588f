/** What `verify` finds when a single answer is lost, or a single call comes twice: nothing that is not so. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { Calls, type Answered } from "../../scripts/verify/calls.ts";
import { verifyHoldExpiry, verifySettling } from "../../scripts/verify/holds.ts";
import { verifyExpiry } from "../../scripts/verify/leases.ts";
import { verifyRules } from "../../scripts/verify/rules.ts";
import { verifySockets } from "../../scripts/verify/sockets.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

type Fault = "answer lost" | "call twice";

/** Calls of which some have a fault: they are made, and not answered; or made twice, and answered as the second was. */
class FaultyCalls extends Calls {
  readonly #fault: Fault;
  readonly #isHit: (call: number, path: string) => boolean;
  #calls = 0;

  constructor(url: string, fault: Fault, isHit: (call: number, path: string) => boolean) {
    super(url, TOKENS.full, "");
    this.#fault = fault;
    this.#isHit = isHit;
  }

  override async make(method: string, path: string, body?: object): Promise<Answered | undefined> {
    this.#calls += 1;
    const isHit = this.#isHit(this.#calls, path);
    const answered = await super.make(method, path, body);
    if (!isHit) return answered;
    if (this.#fault === "call twice") return await super.make(method, path, body);
    this.lost += 1;
    return undefined;
  }
}

const PATIENT = { deadlineMs: 20_000 };
const minute = { limit: 30, window: "1m" };
const policies = {
  login: { algorithm: "sliding-log", ...minute, ...PATIENT },
  mutex: { algorithm: "concurrency", limit: 1, ttl: "3s", maxWait: "30s", ...PATIENT },
  // Longer than a machine stands still, and than the check waits: what frees its slot is only that the socket closes.
  connection: { algorithm: "concurrency", limit: 1, ttl: "60s", ...PATIENT },
  llm: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 20, window: "1h" },
      tokens: { algorithm: "sliding-log", limit: 10_000, window: "1h", unit: "tokens" },
    },
    ...PATIENT,
  },
};
const lasting = (windowMs: number) => ({ windowMs, shortestMs: windowMs });
const log = { ...lasting(60_000), name: "login", unit: "login", algorithm: "sliding-log" } as const;
const login = { ...log, policy: "login", limit: 30, capacity: 30 };
const mutex = { policy: "mutex", limit: 1, maxTtlMs: 3_000, maxWaitMs: 30_000 };
const connection = { policy: "connection", limit: 1, maxTtlMs: 60_000, maxWaitMs: 0 };
const bucket = { ...lasting(3_600_000), algorithm: "token-bucket", limit: 20, capacity: 20 } as const;
const tokens = { ...lasting(3_600_000), algorithm: "sliding-log", limit: 10_000, capacity: 10_000 } as const;
const llm = {
  policy: "llm",
  rules: [
    { ...bucket, name: "requests", unit: "requests" },
    { ...tokens, name: "tokens", unit: "tokens" },
  ],
  reservationTtlMs: 1_000,
};

const state = makeState();
let served: Serving | undefined;
beforeAll(async () => {
  served = await serveBundle(state, policies);
});
afterAll(async () => {
  await served?.stop();
  removeState(state);
});

/** Longer than any of these makes calls of one kind. */
const CALLS = 24;
/** Each of so many of the calls is hit. */
const EACH = depth(2, 1);
const checks = {
  "holds that are settled": (calls: Calls) => verifySettling(calls, login),
  "holds that expire": (calls: Calls) => verifyHoldExpiry(calls, login),
  "leases that expire": (calls: Calls) => verifyExpiry(calls, mutex),
  "leases of sockets": (calls: Calls) => verifySockets(calls, connection),
};

test.concurrent.each(
  Object.entries(checks).flatMap(([name, check]) =>
    (["answer lost", "call twice"] as const).map((fault) => [name, fault, check] as const),
  ),
)("%s are not called broken for one call with this fault: %s", async (_, fault, check) => {
  const url = served?.url ?? "";
  const nths = Array.from({ length: CALLS }, (_each, index) => index + 1).filter((nth) => nth % EACH === 0);
  const byNumber = nths.map((nth) => check(new FaultyCalls(url, fault, (call) => call === nth)));
  // What comes when all that was held is over is the last: its number depends on how often others asked before.
  let isLast = false;
  const afterRenewal = check(
    new FaultyCalls(url, fault, (_call, path) => {
      const isHit = isLast && path === "/v1/leases";
      isLast = path.endsWith("/renew");
      return isHit;
    }),
  );
  const findings = await Promise.all([...byNumber, afterRenewal]);
  expect(findings.filter(({ verdict }) => verdict === "BROKEN")).toEqual([]);
  // A fault may leave it untested, of the first calls or the last; the others show what they are there for.
  expect(findings.filter(({ verdict }) => verdict === "holds").length).toBeGreaterThan(nths.length / 2);
});

test.concurrent("several rules are not called broken because some calls came twice", async () => {
  const calls = new FaultyCalls(served?.url ?? "", "call twice", (call) => call <= 5);
  expect(await verifyRules(calls, llm, 2_000)).toMatchObject({ verdict: "holds" });
});
