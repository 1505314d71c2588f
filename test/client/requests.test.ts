/** How many requests a client has under way: bounded, whatever is asked of it and whatever its policies become. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import {
  MAX_QUEUED,
  overHttp,
  PROCESS_BOUNDS,
  type RequestBounds,
  UNBOUNDED,
} from "../../client/transports/http.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { LimiterError } from "../../core/protocol/problems.ts";
import type { ReservationsMessage } from "../../core/protocol/reservation-messages.ts";
import { manualClock } from "../../package/testing.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";

let warned: string[] = [];
beforeEach(() => {
  warned = [];
  vi.spyOn(console, "warn").mockImplementation((line: string) => void warned.push(line));
});
afterEach(() => void vi.restoreAllMocks());

/** What `api` may be. No client decides anything by itself under the first two. */
const KINDS = {
  rate: { algorithm: "token-bucket", limit: 100_000, window: "30d", reservation: "off" },
  shed: { algorithm: "token-bucket", limit: 100_000, window: "30d", shed: { by: "reports" } },
  slots: { algorithm: "concurrency", limit: 5 },
} as const;
const describe = (kind: keyof typeof KINDS) => {
  const policy = parsePolicies({ api: { ...KINDS[kind], deadlineMs: 2_000 } }).get("api");
  if (policy === undefined) throw new Error("no policy");
  return describeForClient(policy);
};

const REFUSED = {
  status: 422,
  code: "not-allowed",
  title: "a value is not allowed",
  detail: "one value is not allowed",
  errors: [{ pointer: "/policy", detail: "policy is api: must be a policy without a concurrency rule" }],
};

interface Request {
  readonly path: string;
  readonly answer: () => void;
}

function leaving() {
  const controller = new AbortController();
  return { signal: controller.signal, abort: () => controller.abort(new Error("the caller has gone")) };
}

/** A limiter that the test plays over HTTP: it answers when the test says so. */
class Played {
  readonly clock = manualClock();
  readonly limiter: RemoteLimiter;
  readonly underWay = new Set<Request>();
  kind: keyof typeof KINDS = "rate";
  /** Whether requests are answered at once. */
  isQuick = true;
  most = 0;
  requests = 0;
  /** How many calls came in messages. */
  calls = 0;

  constructor(bounds?: RequestBounds) {
    const fetch = (url: string, { signal, body }: { signal: AbortSignal; body?: string }) =>
      new Promise<Response>((done, failed) => {
        const path = new URL(url).pathname;
        const leave = () => {
          this.underWay.delete(request);
          failed(signal.reason as Error);
        };
        const answer = () => {
          this.underWay.delete(request);
          signal.removeEventListener("abort", leave);
          done(this.#answer(path, body ?? "{}"));
        };
        const request = { path, answer };
        signal.addEventListener("abort", leave);
        this.underWay.add(request);
        this.requests += 1;
        this.most = Math.max(this.most, this.underWay.size);
        if (this.isQuick) queueMicrotask(answer);
      });
    const transport = overHttp({ url: "https://weir.test", token: "t", fetch }, bounds);
    const inBackground = (work: Promise<unknown>) => void work.catch(() => undefined);
    this.limiter = new RemoteLimiter({ transport, time: this.clock, inBackground });
  }

  #answer(path: string, body: string): Response {
    if (path.endsWith("/release")) return new Response(null, { status: 204 });
    const decision = { success: true, policy: "api", key: "a", rules: [], source: "object", reason: "ok" };
    if (path !== "/v1/reservations") return Response.json(decision);
    const { calls, known = {} } = JSON.parse(body) as ReservationsMessage;
    this.calls += calls.length;
    const description = describe(this.kind);
    const isKnown = known["api"] === description.version;
    const isRefused = ({ limit }: (typeof calls)[number]) => this.kind === "slots" && limit?.cost !== 0;
    const answers = calls.map((call) => (isRefused(call) ? { problem: REFUSED } : { decision }));
    return Response.json({ protocol: 1, answers, policies: isKnown ? {} : { api: description } });
  }

  /** Makes so many calls at once, and returns how many ended in which way, when all have. */
  async make(calls: number, more: object = {}, stepMs = 0): Promise<Record<string, number>> {
    const ends: Record<string, number> = {};
    const note = (end: string) => void (ends[end] = (ends[end] ?? 0) + 1);
    const all = Array.from({ length: calls }, async (_, index) => {
      try {
        note((await this.limiter.limit({ policy: "api", key: `k${index % 100}`, ...more })).reason);
      } catch (error) {
        note(error instanceof LimiterError ? `${error.status}` : String(error));
      }
    });
    let isOver = false;
    const over = Promise.all(all).then(() => (isOver = true));
    while (!isOver) await this.clock.advance(Math.max(1, stepMs));
    await over;
    return ends;
  }
}

// Each of these calls was a request of its own, and a server ended that had no more files for their sockets.
test("calls that a client may not decide travel together, and those of the wrong kind hardly at all", async () => {
  const played = new Played();
  for (const kind of ["rate", "shed"] as const) {
    played.kind = kind;
    expect(await played.make(1)).toEqual({ ok: 1 });
    played.requests = 0;
    expect(await played.make(1_000)).toEqual({ ok: 1_000 });
    expect(played.requests).toBe(10);
  }
  played.kind = "slots";
  expect(await played.make(1_000)).toEqual({ 422: 1_000 });
  [played.requests, played.calls] = [0, 0];
  // From now on one call a second asks whether the policy is another.
  for (let second = 0; second < 5; second += 1) {
    expect(await played.make(1_000)).toEqual({ 422: 1_000 });
    await played.clock.advance(1_000);
  }
  expect(played.calls).toBeLessThanOrEqual(5);
  expect(await played.make(10, { cost: 0 })).toEqual({ ok: 10 });
  played.kind = "rate";
  await played.clock.advance(1_000);
  await played.make(1);
  expect(await played.make(1_000)).toEqual({ ok: 1_000 });
  expect(played.most).toBeLessThanOrEqual(PROCESS_BOUNDS.asking);
});

test("while the kind changes under calls that are slow to be answered, requests stay bounded, and each call ends", async () => {
  const played = new Played();
  await played.make(1);
  played.isQuick = false;
  const ends: Record<string, number> = {};
  for (const kind of ["slots", "rate", "slots", "shed", "slots"] as const) {
    played.kind = kind;
    const made = played.make(4_000, {}, 5);
    for (let step = 0; step < 100; step += 1) {
      await played.clock.advance(10);
      if (step % 20 === 19) for (const { answer } of played.underWay) answer();
    }
    played.isQuick = true;
    for (const { answer } of played.underWay) answer();
    for (const [end, count] of Object.entries(await made)) ends[end] = (ends[end] ?? 0) + count;
    played.isQuick = false;
  }
  expect(Object.keys(ends).filter((end) => !["ok", "422", "degraded"].includes(end))).toEqual([]);
  expect(Object.values(ends).reduce((all, each) => all + each, 0)).toBe(20_000);
  expect(played.most).toBeLessThanOrEqual(PROCESS_BOUNDS.asking);
  await vi.waitUntil(() => played.underWay.size === 0, { timeout: 10_000 });
});

test("what has to go by itself waits for a place, and past the bound of those that wait fails at once", async () => {
  const played = new Played();
  await played.make(1);
  [played.isQuick, played.requests] = [false, 0];
  const more = 50;
  const made = played.make(PROCESS_BOUNDS.asking + MAX_QUEUED + more, { idempotencyKey: "once" }, 10);
  await played.clock.advance(0);
  expect([played.requests, warned.length]).toEqual([PROCESS_BOUNDS.asking, 1]);
  expect(warned[0]).toContain(`${MAX_QUEUED} calls wait to be sent`);
  for (const { answer } of [...played.underWay].slice(0, 100)) answer();
  await played.clock.advance(0);
  expect(played.underWay.size).toBe(PROCESS_BOUNDS.asking);
  expect(await made).toEqual({ ok: 100, degraded: PROCESS_BOUNDS.asking + MAX_QUEUED + more - 100 });
  expect([played.underWay.size, played.most]).toEqual([0, PROCESS_BOUNDS.asking]);
  // Nothing was answered in time: for a while no call goes to the limiter, then one.
  played.isQuick = true;
  expect(await played.make(10, { idempotencyKey: "once" })).toEqual({ degraded: 10 });
  await played.clock.advance(1_500);
  expect(await played.make(10, { idempotencyKey: "once" })).toEqual({ ok: 1, degraded: 9 });
  expect(await played.make(1_000, { idempotencyKey: "once" })).toEqual({ ok: 1_000 });
});

test("whose caller leaves before there was a place is not made", async () => {
  const played = new Played();
  await played.make(1);
  [played.isQuick, played.requests] = [false, 0];
  const { signal, abort } = leaving();
  const acquire = (more: object) => played.limiter.acquire({ policy: "api", key: "a", ...more });
  const made = Array.from({ length: PROCESS_BOUNDS.asking }, () => acquire({}));
  const left = Promise.allSettled(Array.from({ length: 10 }, () => acquire({ signal })));
  await played.clock.advance(0);
  abort();
  expect((await left).map(({ status }) => status)).toEqual(Array.from({ length: 10 }, () => "rejected"));
  for (const { answer } of played.underWay) answer();
  expect(await Promise.all(made)).toHaveLength(PROCESS_BOUNDS.asking);
  expect([played.requests, played.underWay.size]).toEqual([PROCESS_BOUNDS.asking, 0]);
  // Nor does it keep a place from those that come later.
  const later = Array.from({ length: PROCESS_BOUNDS.asking }, () => acquire({}));
  await played.clock.advance(0);
  expect(played.underWay.size).toBe(PROCESS_BOUNDS.asking);
  for (const { answer } of played.underWay) answer();
  await Promise.all(later);
});

test("calls that wait for their turn have places of their own: what ends their wait always finds one", async () => {
  const played = new Played();
  await played.make(1);
  played.isQuick = false;
  const { limiter, underWay } = played;
  const acquire = () => limiter.acquire({ policy: "api", key: "a", waitMs: 60_000 });
  const waiting = Array.from({ length: PROCESS_BOUNDS.waiting + 10 }, acquire);
  await played.clock.advance(0);
  expect(underWay.size).toBe(PROCESS_BOUNDS.waiting);
  const released = limiter.release({ id: "lease_a" });
  await played.clock.advance(0);
  expect([...underWay].filter(({ path }) => path.endsWith("/release"))).toHaveLength(1);
  while (underWay.size > 0) {
    for (const { answer } of underWay) answer();
    await played.clock.advance(0);
  }
  await released;
  expect(await Promise.all(waiting)).toHaveLength(PROCESS_BOUNDS.waiting + 10);
});

test("in a worker the runtime has its own bound", async () => {
  const played = new Played(UNBOUNDED);
  await played.make(1);
  played.isQuick = false;
  const made = played.make(1_000, { idempotencyKey: "once" }, 10);
  await played.clock.advance(0);
  expect(played.underWay.size).toBe(1_000);
  for (const { answer } of played.underWay) answer();
  await made;
});
