/**
 * What an object knows of a holder of slots: the last message that it has applied, and what it has still to tell. A holder is
 * told of an end until it has heard an answer that says it, since answers get lost.
 */
import type { Slots } from "../../core/protocol/answers.ts";
import type { SlotsCall } from "../../core/protocol/calls.ts";
import { PACE_MS } from "../../core/protocol/messages.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Claim } from "../storage/records.ts";

export interface KnownHolder {
  turn: number;
  answer: Slots | undefined;
  /** When it may lease no more. */
  aliveUntilMs: number;
  /** Until when its row lasts. */
  rowUntilMs: number;
  leased: number;
  wanted: number;
  /** Slots that it keeps while it is silent for longer than its pace. */
  resting: number;
  granted: number;
  released: number;
  /** How many fencing tokens it got with the last answer, unless it rests. */
  tokens: number;
  /** Since when it has granted and released nothing, and has wanted no more than its leases. */
  keepsFromMs: number;
  handed: ReadonlySet<string>;
  /** By id: the turn in whose answer it was named first. */
  readonly ended: Map<string, number>;
  /** Leases that are not known here, and when they were asked for first. */
  readonly asked: Map<string, number>;
  heardAtMs: number;
  paceMs: number;
  /** The last reset of the key, and the last end of its waits, of which the holder has not heard. */
  reset: Said | undefined;
  waitsEnded: Said | undefined;
}

/** What a holder is told until it has heard of it, and the turn in whose answer it was said first. */
interface Said {
  readonly atMs: number;
  readonly turn: number;
}

/** A lease that a holder has is handed over after so long. */
export function handedMs({ paceMs }: KnownHolder): number {
  return 2 * paceMs + 500;
}

/** Since when a holder only keeps its leases, as its messages say. */
export function keepsFrom(holder: KnownHolder, call: SlotsCall, nowMs: number): number {
  const { kept, leased, wanted, granted, released } = call;
  const isSame = granted === holder.granted && released === holder.released;
  return isSame && kept <= leased && wanted <= leased ? Math.min(holder.keepsFromMs, nowMs) : nowMs;
}

/** A message was applied, and what it has heard of need not be said again. */
export function heard(holder: KnownHolder, call: SlotsCall): void {
  holder.turn = call.turn;
  holder.handed = new Set(call.handed.map(({ id }) => id));
  for (const [id, turn] of holder.ended)
    if (turn <= call.heard) holder.ended.delete(id);
    else holder.ended.set(id, Math.min(turn, call.turn));
  holder.reset = unheard(holder.reset, call);
  holder.waitsEnded = unheard(holder.waitsEnded, call);
}

/** What the holder has still to hear of, and is told in the answer to this call. */
function unheard(said: Said | undefined, { heard: turn, turn: now }: SlotsCall): Said | undefined {
  if (said === undefined || said.turn <= turn) return undefined;
  return said.turn <= now ? said : { ...said, turn: now };
}

export function newHolder(claim: Claim | undefined): KnownHolder {
  return {
    turn: 0,
    answer: undefined,
    aliveUntilMs: -Infinity,
    rowUntilMs: claim?.expiresAtMs ?? -Infinity,
    leased: 0,
    wanted: 0,
    resting: 0,
    granted: 0,
    released: 0,
    tokens: 0,
    keepsFromMs: Infinity,
    handed: new Set(),
    ended: new Map(),
    asked: new Map(),
    heardAtMs: -Infinity,
    paceMs: PACE_MS,
    reset: undefined,
    waitsEnded: undefined,
  };
}

interface Handed {
  readonly id: string;
  readonly units: number;
  readonly expiresAtMs: number;
  readonly claim: Claim;
}

/** The leases that a message hands over, out of so many slots that it does not keep. */
export function handedLeases(
  { claims }: KeyState,
  holder: KnownHolder,
  { handed }: SlotsCall,
  slots: number,
  rule: string,
  nowMs: number,
): Handed[] {
  const taken: Handed[] = [];
  let left = slots;
  for (const { id, units, ttlMs, leftMs, heldMs, fencingToken, caller } of handed) {
    // An earlier message has handed it over, or it was released elsewhere.
    if (holder.handed.has(id) || holder.ended.has(id) || claims.has(id)) continue;
    if (units > left || leftMs <= 0) continue;
    // The message was under way when the key was reset, and the lease was granted before.
    if (heldMs !== undefined && holder.reset !== undefined && nowMs - heldMs <= holder.reset.atMs) continue;
    left -= units;
    const expiresAtMs = nowMs + leftMs;
    const by = caller === undefined ? {} : { caller };
    const since = heldMs === undefined ? {} : { grantedAtMs: nowMs - heldMs };
    const lease = { id, kind: "lease", ttlMs, expiresAtMs, fencingToken } as const;
    const claim: Claim = { ...lease, units: { [rule]: units }, ...by, ...since };
    taken.push({ id, units, expiresAtMs, claim });
  }
  return taken;
}
