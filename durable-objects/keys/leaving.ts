/**
 * Holders that leave a key's home object, since it hears too many of them: from then on isolates ask an object in their region
 * (regions/), and clients in other processes leave their calls to their isolates.
 */
import { rateWindowMs } from "../../core/accounts/hold.ts";
import { RATE_WINDOWS } from "../../core/algorithms/token-bucket.ts";
import { jitterAt } from "../../core/clock.ts";
import {
  areCutByWindow,
  canHaveRegions,
  isCuttable,
  type Policy,
  type Rule,
} from "../../core/policies/policy.ts";
import type { Answer, Reserved } from "../../core/protocol/answers.ts";
import type { LimitCall } from "../../core/protocol/calls.ts";
import { MIN_BURST } from "../../core/reservations/sizing.ts";
import type { KeyState } from "./key-state.ts";

/** One object hears fewer holders often enough: each sends a message in some seconds, and one takes it a millisecond. */
const HOLDERS_FOR_REGIONS = 256;
/** One object serves fewer for less than ten cost, each awake all month. */
const MIN_HOLDERS_FOR_REGIONS = 128;

/**
 * From so many holders on they ask objects in their regions. For fewer the burst is enough: their buckets are small, and
 * there is room for twice as many. Infinity: the policy can have none there, or has none.
 */
export function leastForRegions(
  { pool, jurisdiction, priorities, rules, regions }: Policy,
  most: number,
): number {
  const isAlone = pool === undefined && jurisdiction === undefined && priorities.seen.size === 0;
  if (regions === "off" || !isAlone || !rules.every(canHaveRegions)) return Infinity;
  const inBurst = Math.min(...rules.map(({ capacity }) => capacity / (2 * MIN_BURST)));
  return regions === "always" ? 0 : Math.min(Math.max(MIN_HOLDERS_FOR_REGIONS, inBurst), most);
}

/** @param most from so many holders on, those that know their region ask an object there */
export function hasRegions(
  { holders, policy }: KeyState,
  most: number = HOLDERS_FOR_REGIONS,
  nowMs: number,
): boolean {
  const least = leastForRegions(policy, most);
  if (least === 0 || least === Infinity) return least === 0;
  return holders.areForRegions(least, areCutByWindow(policy.rules), nowMs);
}

/** For about so long an isolate decides the calls of the clients that call it. Those that began together do not end together. */
const SERVED_MS = 20_000;
const servedMs = (nowMs: number) => Math.round(SERVED_MS * (0.5 + jitterAt(nowMs)));
/** Fewer clients have parts of their own, however small. */
const MIN_SERVED = 64;
/**
 * A client's own part has to be of so many units at least. Of 300 clients at twice 1,000 a second that is most of them; at 8,
 * all of them, Jain's index is 0.92 instead of 0.96.
 */
const MIN_PART = 4;
/**
 * With so many times the limit all leave that have no equal part: an isolate hears few of the calls that its clients deny by
 * themselves, so those with a part of their own get more. Of 300 at twenty times 1,000 a second Jain's index was 0.77.
 */
const FAR_OVER = 4;

/**
 * Whether a client's calls are decided by its isolate. 1,000 clients of 1,000 units a second have parts of one unit: nobody
 * can hold these, so each admitted call would be a message. An isolate holds a part for all of its clients, and may ask an
 * object in its region.
 */
function isServed(
  { holders, policy }: KeyState,
  id: string | undefined,
  rules: readonly Needing[],
  nowMs: number,
): boolean {
  const { pool, priorities, isFair } = policy;
  if (pool !== undefined || priorities.seen.size > 0 || isFair === true) return false;
  if (id !== undefined && !holders.hasRoomFor(id)) return true;
  const [count, firsts] = [holders.countWithRegions(nowMs), holders.firstsAt(nowMs)];
  if (count + firsts < MIN_SERVED) return false;
  return rules.some(({ rule, demand: said = 0 }) => {
    if (!isCuttable(rule)) return false;
    const rate = rateOf(rule);
    // Of a log or window all leave, or none: what some hold at the object and others in regions misses a tenth of it. So
    // isolates do not count beside their clients, as they do at first.
    const isWindow = rule.algorithm.isCutByWindow === true;
    const isEqualTooSmall = rule.capacity / (isWindow ? count : count + firsts) < MIN_PART;
    if (id === undefined || said === 0 || isWindow) return isEqualTooSmall;
    const { share, demand } = holders.shareOf(id, rule.name, { said, rate }, nowMs);
    if (isEqualTooSmall) return rule.capacity * share < MIN_PART || demand >= FAR_OVER * rate;
    // Its first message knows of few calls.
    return holders.has(id) && rule.capacity * share < MIN_PART;
  });
}

/** The units that come in a millisecond. */
function rateOf(rule: Rule): number {
  return (RATE_WINDOWS * rule.quota.units) / rateWindowMs(rule);
}

/** The part of a log or window from which on its clients leave together. */
const NEARLY_ALL = 0.7;

/**
 * Whether calls need about all of a log or window, or its holders have left already. One that is full has about a unit free
 * when a message comes, so each admitted call of a client would be a message. Below that clients hold units and call seldom.
 */
function leaveTogether({ holders, ruleStates }: KeyState, nowMs: number): boolean {
  if (holders.areInRegions(nowMs)) return true;
  return ruleStates.some(({ rule }) => {
    const rate = rateOf(rule);
    return holders.demandOf(rule.name, rate, nowMs) >= NEARLY_ALL * rate;
  });
}

/** A rule, and the units that the holder's calls need in a millisecond. */
interface Needing {
  readonly rule: Rule;
  readonly demand?: number | undefined;
}

/** What a message says of the holder. Without a name it says nothing else. */
type Leaver = Pick<LimitCall, "servedBy" | "mayAskRegion" | "near"> & { readonly holder?: string };

/** Who decides the holder's calls from now on; `undefined`: it asks this object again. */
export function leaving(
  keyState: KeyState,
  { holder, servedBy, mayAskRegion, near }: Leaver,
  rules: readonly Needing[],
  most: number | undefined,
  nowMs: number,
): Pick<Reserved, "servedMs" | "asksRegion"> | undefined {
  const isClients = servedBy !== undefined;
  const isOfWindow = areCutByWindow(keyState.policy.rules);
  const mayLeave = mayAskRegion === true || (isClients && isOfWindow);
  const haveRegions = mayLeave && hasRegions(keyState, most, nowMs);
  const asksRegion = mayAskRegion === true && haveRegions;
  if (isClients) {
    const isOneOfMany = holder === undefined && asksRegion && keyState.holders.areTooManyAtOnce(nowMs);
    const isWithOthers = isOfWindow && haveRegions && leaveTogether(keyState, nowMs);
    if (!isOneOfMany && !isWithOthers && !isServed(keyState, holder, rules, nowMs)) return undefined;
  }
  const leaver = servedBy ?? holder;
  if (asksRegion && leaver !== undefined && !isOfWindow) keyState.holders.noteLeaving(leaver, near, nowMs);
  if (!isClients && !asksRegion) return undefined;
  return { ...(isClients && { servedMs: servedMs(nowMs) }), ...(asksRegion && { asksRegion }) };
}

/** The answer to a call that a client has not decided: it may have said nothing of itself yet. */
export function withServed(
  keyState: KeyState,
  call: Leaver,
  answer: Answer,
  most: number | undefined,
  nowMs: number,
): Answer {
  const { servedBy } = call;
  if (servedBy === undefined || !("rules" in answer)) return answer;
  keyState.holders.noteFirst(servedBy, nowMs);
  const leaves = leaving(keyState, call, keyState.ruleStates, most, nowMs);
  return leaves === undefined
    ? answer
    : { ...answer, reserved: { ttlMs: 0, isNew: true, units: {}, ...leaves } };
}
