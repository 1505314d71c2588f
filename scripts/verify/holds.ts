/** Whether held units are unavailable to others, and unused ones return. */
import type { AdmittedCall } from "../../test/support/interval-bound.ts";
import { pause, type Answered, type Calls } from "./calls.ts";
import { CALLERS, boundOf, CLOCKS_DIFFER_MS, inWords } from "./exactness.ts";
import type { RatePolicy } from "./policies.ts";
import { type Finding, untested } from "./report.ts";

/** A hold, and when it was requested and granted, in milliseconds of this machine's clock. */
interface Placed {
  readonly id: string;
  readonly receivedAtMs: number;
  /** The earliest that it expires. */
  readonly endsAtMs: number;
  /** The latest: it was granted before the answer came. */
  readonly endedByMs: number;
}

/** Short, so that a hold whose answer was lost soon counts as used. */
const TTL_MS = 5_000;
/** Of a hold that is left to expire. */
const BRIEF_TTL_MS = 2_000;
/** The most units held at once, and the duration of the work. */
const MAX_HELD = 5;
const WORK_MS = 30;
/** Units that came back may wait for an isolate that remembers a denial. */
const BACK_WITHIN_MS = 12_000;
const NO_HOLD = "no hold of all units was granted, or calls were not answered";

async function place(
  calls: Calls,
  policy: string,
  key: string,
  units: number,
  ttlMs: number,
): Promise<Placed | "denied" | undefined> {
  const answered = await calls.make("POST", "/v1/holds", { policy, key, units, ttlMs });
  const hold = answered?.body["hold"] as { id: string; expiresAfterMs: number } | undefined;
  if (answered === undefined || answered.body["reason"] === "degraded") return undefined;
  if (hold === undefined) return answered.body["success"] === false ? "denied" : undefined;
  const { sentAtMs, receivedAtMs } = answered;
  const { id, expiresAfterMs } = hold;
  return { id, receivedAtMs, endsAtMs: sentAtMs + expiresAfterMs, endedByMs: receivedAtMs + expiresAfterMs };
}

/** Many callers hold, work and settle. Units used during a hold keep to the bound. */
export async function verifyHeldUnits(calls: Calls, rate: RatePolicy, lastsMs: number): Promise<Finding> {
  const name = `units that are held of ${rate.policy} keep to the bound: ${inWords(rate)}`;
  const key = calls.freshKey();
  const most = Math.max(1, Math.min(MAX_HELD, Math.floor(rate.capacity / 8)));
  const used: AdmittedCall[] = [];
  let [placed, denied] = [0, 0];
  const endMs = performance.now() + lastsMs;
  const work = async () => {
    while (performance.now() < endMs) {
      const units = 1 + Math.floor(Math.random() * most);
      const hold = await place(calls, rate.policy, key, units, TTL_MS);
      if (hold === "denied") denied += 1;
      // A millisecond at least, so that the instant of use is after the answer.
      await pause(1 + Math.random() * WORK_MS);
      if (hold === undefined || hold === "denied") continue;
      placed += 1;
      const atMs = Math.floor(performance.now());
      const count = atMs < hold.endsAtMs ? Math.floor(Math.random() * (units + 1)) : 0;
      if (count > 0) used.push({ sentAtMs: atMs, receivedAtMs: atMs, units: count });
      await calls.make("POST", `/v1/holds/${hold.id}/settle`, { used: count });
    }
  };
  await Promise.all(Array.from({ length: CALLERS }, work));
  await calls.reset(rate.policy, key);
  const { excess, isBroken } = boundOf(rate, used);
  const says = [
    `${placed} holds by ${CALLERS} at once in ${lastsMs / 1_000} s: ${used.reduce((sum, { units }) => sum + units, 0)} units used, ${denied} holds denied`,
    excess > 0
      ? `in the worst interval ${Math.ceil(excess)} more used than the bound`
      : "in no interval more used than the bound",
  ];
  if (used.length === 0) return untested(name, ...says, "nothing was held");
  if (denied === 0) says.push("nothing was denied: this machine cannot hold fast enough to test this limit");
  return { name, verdict: isBroken ? "BROKEN" : denied > 0 ? "holds" : "untested", says };
}

/** Holds all units of a key, checks that no other call gets one, and settles with half of them. */
export async function verifySettling(calls: Calls, rate: RatePolicy): Promise<Finding> {
  const { policy, capacity } = rate;
  const name = `a hold of ${policy} keeps others out, and what it did not use is free again`;
  const key = calls.freshKey();
  const hold = await place(calls, policy, key, capacity, 10 * TTL_MS);
  if (hold === undefined || hold === "denied") return untested(name, NO_HOLD);
  // Enough calls to reach every object that might wrongly serve the key.
  const others = await Promise.all(Array.from({ length: 16 }, () => take(calls, policy, key, 1)));
  const used = Math.floor(capacity / 2);
  const settled = await calls.make("POST", `/v1/holds/${hold.id}/settle`, { used });
  if (settled === undefined) return untested(name, "settling was not answered");
  const seen = await peek(calls, policy, key);
  const tooMany =
    seen !== undefined && seen.remaining > capacity - used + back(rate, seen.atMs - settled.sentAtMs);
  const beginMs = performance.now();
  let isBack = false;
  while (!isBack && performance.now() - beginMs < BACK_WITHIN_MS) {
    isBack = await takeOnce(calls, policy, key, capacity - used);
    if (!isBack) await pause(100);
  }
  const afterMs = Math.round(performance.now() - beginMs);
  await calls.reset(rate.policy, key);
  const says = [
    others.includes(true)
      ? `others got units while all ${capacity} were held`
      : `all ${capacity} units were held, and no other call got one`,
    tooMany ? "more came back than was not used" : `${used} were used, and no more than the rest came back`,
    isBack
      ? `the other ${capacity - used} were had ${afterMs} ms after it was settled`
      : `the other ${capacity - used} were not free ${BACK_WITHIN_MS / 1_000} s after it was settled`,
  ];
  return { name, verdict: others.includes(true) || tooMany || !isBack ? "BROKEN" : "holds", says };
}

/** Holds all units of a key, and leaves them: they count as used when the hold expires, and not before. */
export async function verifyHoldExpiry(calls: Calls, rate: RatePolicy): Promise<Finding> {
  const { policy, capacity } = rate;
  const name = `a hold of ${policy} that nobody settles counts as used when it expires`;
  const key = calls.freshKey();
  const hold = await place(calls, policy, key, capacity, BRIEF_TTL_MS);
  if (hold === undefined || hold === "denied") return untested(name, NO_HOLD);
  let isEarly = false;
  while (!isEarly && performance.now() < hold.endsAtMs - 200) {
    isEarly = await take(calls, policy, key, 1);
    await pause(100);
  }
  await pause(Math.max(0, hold.endedByMs - performance.now()) + CLOCKS_DIFFER_MS);
  // This is too late, so it is answered and changes nothing.
  await calls.make("POST", `/v1/holds/${hold.id}/settle`, { used: 0 });
  const seen = await peek(calls, policy, key);
  await calls.reset(rate.policy, key);
  if (seen === undefined) return untested(name, NO_HOLD);
  const most = back(rate, seen.atMs - hold.endsAtMs);
  const says = [
    isEarly ? "others got units before its end" : "no other call got a unit before its end",
    `after it, and settled too late, ${seen.remaining} of ${capacity} units were free: ${most} may have come back since`,
  ];
  const isBroken = isEarly || seen.remaining > most;
  return { name, verdict: isBroken ? "BROKEN" : "holds", says };
}

async function take(calls: Calls, policy: string, key: string, cost: number): Promise<boolean> {
  return isAdmitted(await calls.make("POST", "/v1/limit", { policy, key, cost }));
}

function isAdmitted(answered: Answered | undefined): boolean {
  return answered?.body["success"] === true && answered.body["reason"] !== "degraded";
}

/** As `take`, but units of an unanswered or repeated call are not missed afterwards. */
async function takeOnce(calls: Calls, policy: string, key: string, cost: number): Promise<boolean> {
  return isAdmitted(await calls.makeOnce("POST", "/v1/limit", { policy, key, cost }));
}

/** How many units are free, and when that was decided at the latest; `undefined`: unknown. */
async function peek(
  calls: Calls,
  policy: string,
  key: string,
): Promise<{ remaining: number; atMs: number } | undefined> {
  const answered = await calls.make("POST", "/v1/limit", { policy, key, cost: 0 });
  const remaining = answered?.body["remaining"];
  return typeof remaining === "number" && answered !== undefined
    ? { remaining, atMs: answered.receivedAtMs }
    : undefined;
}

function back({ algorithm, limit, windowMs, capacity }: RatePolicy, ms: number): number {
  const passedMs = Math.max(0, ms) + CLOCKS_DIFFER_MS;
  if (algorithm === "sliding-log") return passedMs < windowMs ? 0 : capacity;
  return Math.min(capacity, Math.ceil((limit * passedMs) / windowMs));
}
