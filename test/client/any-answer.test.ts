/**
 * A client of a limiter that answers anything, at any time: a decision with a field too few, a proxy's page, nothing at all.
 * Each call ends as docs/clients.md says: with an answer of its kind, or with a `LimiterError`.
 */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { overService } from "../../client/remote/create-limiter.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { isOfShape, overHttp } from "../../client/transports/http.ts";
import { ADDRESSES, type LimiterCalls, type LimiterTransport } from "../../client/transports/transport.ts";
import { SYSTEM_TIME } from "../../core/clock.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { LimiterError } from "../../core/protocol/problems.ts";
import type { ReservationsMessage } from "../../core/protocol/reservation-messages.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";
import { Dice } from "../simulation/dice.ts";
import { depth } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";

const ROUNDS = depth(8, 300);
const MAX_ROUNDS = 20 * ROUNDS;
const DEADLINE_MS = 60;
const POLICY = { algorithm: "token-bucket", limit: 100_000, window: "10s", deadlineMs: 40 };
/** What the policy says by turns, so that it changes all the time. */
const VERSIONS = [99_999, 100_000].map((limit) => {
  const policy = parsePolicies({ hot: { ...POLICY, limit } }).get("hot");
  if (policy === undefined) throw new Error("no policy");
  return describeForClient(policy);
});

beforeEach(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterEach(() => void vi.restoreAllMocks());

const RULE = {
  name: "hot",
  success: true,
  limit: 100_000,
  remaining: 5,
  resetAfterMs: 1,
  retryAfterMs: 0,
  reason: "ok",
};
const DECISION = { ...RULE, policy: "hot", key: "k", source: "object", rules: [RULE] };
const LEASE = { id: "lease", fencingToken: 1, expiresAfterMs: 1_000 };
const PROBLEM = { type: "urn:weir:problem:not-allowed", title: "t", status: 422, detail: "d", errors: [] };
const JUNK = [null, undefined, 0, -1, 1.5, 1e308, "", "x", true, [], {}, [null], [[]], { rules: null }];

/** What a limiter would answer, by what is asked. */
function rightAnswer(dice: Dice, path: string, message: ReservationsMessage | undefined): unknown {
  if (path.endsWith("/settle") || path.endsWith("limit") || path.endsWith("refund")) return DECISION;
  if (path.endsWith("limit/all")) return { success: true, decisions: [DECISION, DECISION] };
  if (path.endsWith("limit/any"))
    return { success: false, chosen: dice.of([null, 0, 1]), decisions: [DECISION, DECISION] };
  if (path.endsWith("holds")) return { ...DECISION, hold: { id: "h", units: 1, expiresAfterMs: 1 } };
  if (path.endsWith("leases")) return { ...DECISION, lease: LEASE };
  if (path.endsWith("/renew")) return LEASE;
  if (path.endsWith("/policies")) return { policies: [] };
  if (!path.endsWith("reservations")) return { ...DECISION, outstanding: 0, holds: 0, leases: 0 };
  const calls = message?.calls ?? [];
  const answers = calls.map(({ reserve, limit }) => {
    if (reserve === undefined && limit === undefined) return null;
    if (dice.chance(0.2))
      return dice.of([
        null,
        { failed: "no" },
        { decision: DECISION },
        { problem: { ...PROBLEM, code: "x" } },
      ]);
    const units = Object.fromEntries(
      Object.entries(reserve?.rules ?? {}).map(([name, { wanted }]) => [name, wanted]),
    );
    const reserved = reserve && { ttlMs: reserve.ttlMs, isNew: dice.chance(0.2), units };
    return { rules: [{ ...RULE, success: dice.chance(0.8) }], ...(reserved && { reserved }) };
  });
  return { protocol: 1, answers, policies: dice.chance(0.5) ? { hot: dice.of(VERSIONS) } : {} };
}

/** The answer with something else somewhere in it. */
function spoilt(dice: Dice, answer: unknown): unknown {
  if (typeof answer !== "object" || answer === null || dice.chance(0.15)) return dice.of(JUNK);
  const copy = (Array.isArray(answer) ? [...answer] : { ...answer }) as Record<string, unknown>;
  const names = Object.keys(copy);
  if (names.length === 0) return dice.of(JUNK);
  const name = dice.of(names);
  copy[name] = spoilt(dice, copy[name]);
  return copy;
}

async function anyTime(dice: Dice): Promise<void> {
  if (dice.chance(0.04)) await new Promise(() => undefined);
  if (dice.chance(0.3)) await new Promise((done) => setTimeout(done, dice.upTo(2 * DEADLINE_MS)));
  if (dice.chance(0.08)) throw dice.of([new TypeError("x"), "text", undefined, null, {}, new Error("")]);
}

function hostileHttp(dice: Dice): LimiterTransport {
  const send = async (url: string, { body }: { readonly body?: string }): Promise<unknown> => {
    await anyTime(dice);
    const { pathname } = new URL(url);
    const message = body === undefined ? undefined : (JSON.parse(body) as ReservationsMessage);
    const isProblem = dice.chance(0.1);
    const right = isProblem ? PROBLEM : rightAnswer(dice, pathname, message);
    const answer = dice.chance(0.5) ? right : spoilt(dice, right);
    const text = dice.chance(0.05) ? "<html>" : (JSON.stringify(answer) ?? "");
    const status = dice.chance(0.9) ? (isProblem ? 422 : 200) : dice.of([204, 301, 401, 404, 500, 503]);
    const type = dice.of(["application/json", isProblem ? "application/problem+json" : "text/html"]);
    return new Response(status === 204 ? null : text, { status, headers: { "content-type": type } });
  };
  return overHttp({ url: "http://limiter.test", token: "t", fetch: send });
}

/** By the names of the calls: where the same is over HTTP. */
const PATHS: Readonly<Record<string, string>> = {
  limitAll: "limit/all",
  limitAny: "limit/any",
  hold: "holds",
  acquire: "leases",
  settle: "x/settle",
  renew: "x/renew",
  policies: "/policies",
  reserve: "reservations",
};

function hostileService(dice: Dice): LimiterTransport {
  const call = (name: string) => async (asked: unknown) => {
    await anyTime(dice);
    const right = rightAnswer(dice, PATHS[name] ?? name, asked as ReservationsMessage);
    return dice.chance(0.5) ? right : spoilt(dice, right);
  };
  return overService(new Proxy({}, { get: (_, name) => call(String(name)) }) as LimiterCalls);
}

type Name = keyof LimiterCalls;
type Calls = readonly (readonly [name: Name | "any", call: () => Promise<unknown>])[];

/** Every call of a client. Hot keys are asked often: those are decided from units. */
function callsOf(limiter: RemoteLimiter, dice: Dice): Calls {
  const target = { policy: "hot", key: dice.of(["k", "k", "k", `k${dice.upTo(5)}`]) };
  const hot = () => limiter.limit({ ...target, cost: dice.of([1, 1, 1, 0, 50]) });
  return [
    ...Array.from({ length: 12 }, () => ["limit", hot] as const),
    ["limit", () => limiter.limit({ ...target, waitMs: 5 })],
    ["limitAll", () => limiter.limitAll({ checks: [target, target] })],
    ["limitAny", () => limiter.limitAny({ checks: [target, target], refundable: dice.chance(0.5) })],
    ["refund", () => limiter.refund({ ...target, units: 1, idempotencyKey: "i" })],
    ["hold", () => limiter.hold({ ...target, units: 1 })],
    ["settle", () => limiter.settle({ id: "h", used: 1 })],
    ["any", () => limiter.cancel({ id: "h" })],
    ["acquire", () => limiter.acquire(target)],
    ["renew", () => limiter.renew({ id: "l" })],
    ["any", () => limiter.release({ id: "l" })],
    ["peek", () => limiter.peek(target)],
    ["any", () => limiter.reset(target)],
    ["policies", () => limiter.policies()],
  ];
}

test.each([
  ["over HTTP", hostileHttp],
  ["over a service binding", hostileService],
])(
  "whatever the limiter answers, %s, a call ends with an answer of its kind or a LimiterError",
  async (_, way) => {
    const seed = announcedSeed("any answer");
    const settled = { answers: 0, refusals: 0, degraded: 0, byUnits: 0 };
    const endsWell = async (name: Name | "any", call: () => Promise<unknown>) => {
      try {
        const answer = await call();
        if (name !== "any")
          expect(isOfShape(ADDRESSES[name].shape, answer), `${name}: ${JSON.stringify(answer)}`).toBe(true);
        const { reason, source } = (answer ?? {}) as { readonly reason?: string; readonly source?: string };
        settled.answers += 1;
        if (reason === "degraded") settled.degraded += 1;
        if (source === "isolate") settled.byUnits += 1;
      } catch (error) {
        expect(error).toBeInstanceOf(LimiterError);
        const { status, code, errors } = error as LimiterError;
        expect([typeof status, typeof code, Array.isArray(errors)]).toEqual(["number", "string", true]);
        settled.refusals += 1;
      }
    };
    const round = async (index: number) => {
      const dice = new Dice(seed + index);
      const inBackground = (work: Promise<unknown>) => void work.catch(() => undefined);
      const options = { deadlineMs: DEADLINE_MS };
      const limiter = new RemoteLimiter({ transport: way(dice), time: SYSTEM_TIME, inBackground }, options);
      for (let step = 0; step < 6; step += 1)
        await Promise.all(callsOf(limiter, dice).map(([name, call]) => endsWell(name, call)));
      await endsWell("any", () => limiter.close());
    };
    // On a busy machine most calls miss their deadline: then more rounds are needed to meet units.
    const isEnough = (rounds: number) =>
      rounds >= ROUNDS && (settled.byUnits > ROUNDS || rounds >= MAX_ROUNDS);
    for (let first = 0; !isEnough(first); first += 30)
      await Promise.all(
        Array.from({ length: first < ROUNDS ? Math.min(30, ROUNDS - first) : 30 }, async (__, index) => {
          await round(first + index).catch((error: unknown) => {
            throw new Error(`SEED=${seed + first + index}: ${String(error)}`, { cause: error });
          });
        }),
      );
    expect(settled.byUnits).toBeGreaterThan(ROUNDS);
    expect(settled.degraded).toBeGreaterThan(ROUNDS);
    expect(settled.refusals).toBeGreaterThan(ROUNDS);
  },
);
