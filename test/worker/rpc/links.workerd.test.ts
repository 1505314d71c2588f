/** Leases over the service binding whose link ends without a release. */
import { exports } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { eventually } from "../../support/eventually.ts";
import { freshKey } from "../../support/limiter.ts";

const limiter = (
  exports as unknown as { Limiter: (options: { props: unknown }) => Service<typeof Limiter> }
).Limiter({ props: { policy: "export" } });

/** Long enough that a lease which lives longer has not been shortened. */
const GRACE_MS = 10_000;
const TTL_MS = 60_000;

type Asked = Parameters<Limiter["acquire"]>[0];
const asked = (key: string, fields: Partial<Asked> = {}): Asked => ({ key, ttlMs: TTL_MS, ...fields });

interface Held {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
  /** The link ends, as it does when it breaks: the object cannot tell the one from the other. */
  breakLink(): void;
  release(): Promise<void>;
}

async function acquire(key: string, fields: Partial<Asked> = {}): Promise<Held> {
  const grant = await limiter.acquire(asked(key, fields));
  const { lease, release } = grant;
  if (lease === undefined || release === undefined) throw new Error(`no lease: ${grant.reason}`);
  return {
    ...lease,
    breakLink: () => (grant as unknown as Disposable)[Symbol.dispose](),
    release: () => release(),
  };
}

const leftMs = async (key: string) => (await limiter.peek({ key })).resetAfterMs;
const leases = async (key: string) => (await limiter.peek({ key })).leases;

/** Waits until the object has heard that a link broke: the lease is to end sooner. */
const untilGrace = (key: string) =>
  eventually(async () => {
    const left = await leftMs(key);
    expect(left).toBeGreaterThan(0);
    expect(left).toBeLessThanOrEqual(GRACE_MS);
  });

/** Long enough for the object to hear of a link that broke. */
const heard = () => new Promise((done) => setTimeout(done, 200));

async function thrownBy(call: () => Promise<unknown>): Promise<unknown> {
  try {
    return await call();
  } catch (error) {
    return error;
  }
}

test.each([0, 5_000])(
  "a lease outlives its link for the grace and no longer (waiting up to %d ms)",
  async (waitMs) => {
    const key = freshKey();
    const held = await acquire(key, { units: 2, graceMs: GRACE_MS, waitMs });
    expect(held.expiresAfterMs).toBe(TTL_MS);
    held.breakLink();
    await untilGrace(key);
    expect(await limiter.acquire(asked(key))).toMatchObject({ success: false, reason: "quota" });
    const brief = freshKey();
    (await acquire(brief, { graceMs: 1, waitMs })).breakLink();
    await eventually(async () => expect(await leases(brief)).toBe(0));
  },
);

test("without a grace a lease ends with its link", async () => {
  const key = freshKey();
  (await acquire(key, { waitMs: 1 })).breakLink();
  await eventually(async () => expect(await leases(key)).toBe(0));
});

test("a release ends a lease at once, whatever its grace is, and its link ends nothing after that", async () => {
  const key = freshKey();
  const held = await acquire(key, { units: 2, graceMs: GRACE_MS });
  await held.release();
  const next = await acquire(key, { units: 2, graceMs: GRACE_MS });
  held.breakLink();
  await heard();
  expect(await leftMs(key)).toBeGreaterThan(GRACE_MS);
  await limiter.release({ id: next.id });
  expect(await leases(key)).toBe(0);
});

test("a lease is resumed: the same id and token, as long as it was asked for, and its slot was nobody's", async () => {
  const key = freshKey();
  const before = await acquire(key, { units: 2, graceMs: GRACE_MS });
  before.breakLink();
  await untilGrace(key);
  const grant = await limiter.acquire({ key, resume: before.id, graceMs: GRACE_MS });
  const { id, fencingToken } = before;
  const lease = { id, fencingToken, expiresAfterMs: TTL_MS };
  expect(grant).toMatchObject({ success: true, reason: "ok", lease });
  expect(await leases(key)).toBe(1);
  // It has a link and a grace like any other.
  (grant as unknown as Disposable)[Symbol.dispose]();
  await untilGrace(key);
});

test.each([undefined, GRACE_MS])(
  "a link that ends after its lease was resumed ends nothing (grace %s)",
  async (graceMs) => {
    const key = freshKey();
    const before = await acquire(key, { ...(graceMs !== undefined && { graceMs }) });
    const resumed = await acquire(key, { resume: before.id });
    before.breakLink();
    await heard();
    expect(await leftMs(key)).toBeGreaterThan(GRACE_MS);
    resumed.breakLink();
    await eventually(async () => expect(await leases(key)).toBe(0));
  },
);

test.each([0, 5_000])(
  "a call made again with its idempotency key has the one lease, and its link (waiting up to %d ms)",
  async (waitMs) => {
    const key = freshKey();
    const fields = { idempotencyKey: "once", graceMs: GRACE_MS, waitMs };
    const first = await acquire(key, fields);
    first.breakLink();
    await untilGrace(key);
    const second = await acquire(key, fields);
    expect(second).toMatchObject({ id: first.id, fencingToken: first.fencingToken, expiresAfterMs: TTL_MS });
    const third = await acquire(key, fields);
    expect(await leases(key)).toBe(1);
    second.breakLink();
    await heard();
    expect(await leftMs(key)).toBeGreaterThan(GRACE_MS);
    third.breakLink();
    await untilGrace(key);
    expect(await leases(key)).toBe(1);
  },
);

test("of two answers to one call without a grace each ends the lease, as long as nobody has resumed it", async () => {
  const key = freshKey();
  const fields = { idempotencyKey: "once" };
  const both = [await acquire(key, fields), await acquire(key, fields)];
  const resumed = await acquire(key, { resume: both[0]?.id ?? "" });
  for (const each of both) each.breakLink();
  await heard();
  expect(await leases(key)).toBe(1);
  const again = await acquire(key, fields);
  expect(again.id).toBe(resumed.id);
  again.breakLink();
  await eventually(async () => expect(await leases(key)).toBe(0));
});

test("what has ended is not resumed, nor what is of another key or policy, or was never there", async () => {
  const key = freshKey();
  const held = await acquire(key);
  await held.release();
  const other = await acquire(freshKey());
  for (const resume of [held.id, other.id, "lease_nonsense"])
    expect(await thrownBy(() => limiter.acquire({ key, resume }))).toMatchObject({
      status: 404,
      code: "lease-not-found",
    });
  expect(await leases(key)).toBe(0);
});

test("a detached lease may be resumed, and ends with its link from then on", async () => {
  const key = freshKey();
  const detached = await limiter.acquire(asked(key, { detached: true }));
  const resumed = await acquire(key, { resume: detached.lease?.id ?? "" });
  resumed.breakLink();
  await eventually(async () => expect(await leases(key)).toBe(0));
});

test("bad graces are refused, with the field, the value and what is allowed", async () => {
  const key = freshKey();
  const problem = (fields: object) => thrownBy(() => limiter.acquire(asked(key, fields)));
  const detail = (text: string) => ({ status: 422, errors: [{ detail: expect.stringContaining(text) }] });
  expect(await problem({ graceMs: 0 })).toMatchObject(detail("graceMs is 0: must be an integer from 1"));
  expect(await problem({ graceMs: 1e9 })).toMatchObject(detail("the policy's maxTtl"));
  const both = "left out where detached is true";
  expect(await problem({ graceMs: 1, detached: true })).toMatchObject(
    detail(`graceMs is 1: must be ${both}`),
  );
  expect(await problem({ resume: "a", detached: true })).toMatchObject(
    detail(`resume is "a": must be ${both}`),
  );
  expect(await leases(key)).toBe(0);
});
