/** Whether leases exclude each other, their fencing tokens rise, and lost ones come back. */
import { pause, type Calls } from "./calls.ts";
import type { LeasePolicy } from "./policies.ts";
import { type Finding, untested } from "./report.ts";

/** A lease that was surely held from one instant to the other, in milliseconds of this machine's clock. */
interface Held {
  readonly askedAtMs: number;
  readonly fromMs: number;
  readonly untilMs: number;
  readonly units: number;
  readonly fencingToken: number;
}

/** Each takes a share of the slots, so that this many hold at once, and as many wait. */
const HOLDERS = 8;
const WORK_MS = 30;
/** Short, so that a lease whose answer was lost is soon free again. */
const TTL_MS = 3_000;
const WAIT_MS = 10_000;

interface Granted {
  readonly id: string;
  readonly held: Omit<Held, "untilMs">;
  /** The earliest that it expires, by this machine's clock. */
  readonly endsAtMs: number;
  /** The latest: it was granted before the answer came. */
  readonly endedByMs: number;
}

function leaseRequest(
  { policy, maxTtlMs, maxWaitMs }: LeasePolicy,
  key: string,
  units: number,
  waitMs: number,
) {
  return { policy, key, units, ttlMs: Math.min(TTL_MS, maxTtlMs), waitMs: Math.min(waitMs, maxWaitMs) };
}

async function acquire(calls: Calls, lease: LeasePolicy, key: string, units: number, waitMs: number) {
  const answered = await calls.make("POST", "/v1/leases", leaseRequest(lease, key, units, waitMs));
  const granted = answered?.body["lease"] as
    | { id: string; fencingToken: number; expiresAfterMs: number }
    | undefined;
  if (answered === undefined || granted === undefined) return undefined;
  const { sentAtMs, receivedAtMs } = answered;
  const { id, fencingToken, expiresAfterMs } = granted;
  const held = { askedAtMs: sentAtMs, fromMs: receivedAtMs, units, fencingToken };
  const [endsAtMs, endedByMs] = [sentAtMs + expiresAfterMs, receivedAtMs + expiresAfterMs];
  return { id, held, endsAtMs, endedByMs } satisfies Granted;
}

/** Workers acquire, work and release. At no instant may more units be held than there are slots. */
export async function verifyExclusion(calls: Calls, lease: LeasePolicy, lastsMs: number): Promise<Finding> {
  const key = calls.freshKey();
  const units = Math.max(1, Math.ceil(lease.limit / HOLDERS));
  const workers = 2 * Math.max(2, Math.min(HOLDERS, Math.ceil(lease.limit / units)));
  const held: Held[] = [];
  const endMs = performance.now() + lastsMs;
  const work = async () => {
    while (performance.now() < endMs) {
      const granted = await acquire(calls, lease, key, units, WAIT_MS);
      if (granted === undefined) {
        await pause(WORK_MS);
        continue;
      }
      await pause(WORK_MS * Math.random());
      // From here on the slot may be free: the release is under way, or the lease has expired.
      const untilMs = Math.min(Math.floor(performance.now()), granted.endsAtMs);
      held.push({ ...granted.held, untilMs });
      await calls.make("DELETE", `/v1/leases/${granted.id}`);
    }
  };
  await Promise.all(Array.from({ length: workers }, work));
  const most = maxHeld(held);
  const stale = staleTokens(held);
  const says = [
    `${held.length} leases by ${workers} workers: at most ${most} of ${lease.limit} units held at once`,
    stale === 0
      ? "each fencing token is higher than all earlier ones"
      : `${stale} fencing tokens were not higher than an earlier one`,
  ];
  const name = `leases of ${lease.policy} exclude each other: ${lease.limit} at once`;
  if (held.length === 0) return untested(name, "no lease was granted");
  return { name, verdict: most > lease.limit || stale > 0 ? "BROKEN" : "holds", says };
}

/** The maximum number of units surely held at one instant. */
export function maxHeld(held: readonly Pick<Held, "fromMs" | "untilMs" | "units">[]): number {
  const changes = held
    .filter(({ fromMs, untilMs }) => fromMs < untilMs)
    .flatMap(({ fromMs, untilMs, units }) => [
      { atMs: fromMs, units },
      { atMs: untilMs, units: -units },
    ])
    // At one instant, leases end before others begin.
    .toSorted((a, b) => a.atMs - b.atMs || a.units - b.units);
  let [now, most] = [0, 0];
  for (const { units } of changes) {
    now += units;
    most = Math.max(most, now);
  }
  return most;
}

/** How many leases have a token of an earlier lease, or one that is not higher. */
export function staleTokens(held: readonly Pick<Held, "askedAtMs" | "fromMs" | "fencingToken">[]): number {
  const byGrant = held.toSorted((a, b) => a.fromMs - b.fromMs);
  let [next, highest, stale] = [0, -Infinity, 0];
  for (const { askedAtMs, fencingToken } of held.toSorted((a, b) => a.askedAtMs - b.askedAtMs)) {
    for (; (byGrant[next]?.fromMs ?? Infinity) <= askedAtMs; next += 1)
      highest = Math.max(highest, byGrant[next]?.fencingToken ?? 0);
    if (fencingToken <= highest) stale += 1;
  }
  return stale + held.length - new Set(held.map(({ fencingToken }) => fencingToken)).size;
}

/** Takes all slots and abandons them: none is granted before they expire, and then one is. */
export async function verifyExpiry(calls: Calls, lease: LeasePolicy): Promise<Finding> {
  const name = `a lease of ${lease.policy} whose holder vanished comes back, and not before its end`;
  const key = calls.freshKey();
  const lost = await acquire(calls, lease, key, lease.limit, 0);
  if (lost === undefined) return untested(name, "no lease was granted");
  const isEarly = async (): Promise<boolean> => {
    while (performance.now() < lost.endsAtMs - 200) {
      const other = await acquire(calls, lease, key, 1, 0);
      // The first lease counts from its request, which is before it was granted.
      if (other !== undefined) return other.held.fromMs < lost.endsAtMs;
      await pause(200);
    }
    return false;
  };
  if (await isEarly())
    return { name, verdict: "BROKEN", says: ["a second holder before the first one's end"] };
  await pause(Math.max(0, lost.endedByMs - performance.now()) + 500);
  const renewed = await calls.make("POST", `/v1/leases/${lost.id}/renew`, {});
  const answered = await calls.makeOnce("POST", "/v1/leases", leaseRequest(lease, key, lease.limit, WAIT_MS));
  if (answered?.status !== 200 || answered.body["reason"] === "degraded")
    return untested(name, "calls were not answered, or not decided");
  const next = answered.body["lease"] as { id: string } | undefined;
  const afterMs = Math.round(answered.receivedAtMs - lost.endsAtMs);
  if (next !== undefined) await calls.make("DELETE", `/v1/leases/${next.id}`);
  const says = [
    next === undefined ? "the slots did not come back" : `got again ${afterMs} ms after its end`,
    `renewing the lost one is answered ${renewed?.status ?? "nothing"}: 404 is right`,
  ];
  return { name, verdict: next === undefined || renewed?.status === 200 ? "BROKEN" : "holds", says };
}
