import { outstandingOf, withoutTaking } from "../../core/accounts/account.ts";
import { heldByGroup } from "../../core/accounts/hold.ts";
import { namesOf } from "../../core/algorithms/fair/slot-shares.ts";
import { planIn } from "../../core/policies/seen-policy.ts";
import type { GroupsReport, Peeked } from "../../core/protocol/answers.ts";
import type { SeenBy } from "../../core/protocol/calls.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { policyFor } from "../keys/versions.ts";
import { Claims } from "./claims.ts";
import { Limits } from "./limits.ts";
import type { Operations } from "./operations.ts";
import { type ReservationOptions, Reservations } from "./reservations.ts";
import type { Shedders } from "./shedders.ts";
import { SlotOwner } from "./slots.ts";
import { peekTurn } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** The operations of an object that decides alone, with parts that pooled operations use. */
export interface LocalOperations extends Operations {
  readonly limits: Limits;
  readonly reservations: Reservations;
  readonly slots: SlotOwner;
}

/** None of these operations waits for I/O. */
export function localOperations(
  store: KeyStore,
  queue: WaitQueue,
  shedders: Shedders,
  options: ReservationOptions = {},
): LocalOperations {
  const limits = new Limits(store, queue, options.holdersForRegions);
  const reservations = new Reservations(store, limits.limit, queue, options);
  const slots = new SlotOwner(store, queue, options.counter);
  const { hold, settle, cancel, acquire, renew, release } = new Claims(
    store,
    queue,
    shedders,
    slots,
    options.counter,
  );
  return {
    limits,
    reservations,
    slots,
    limit: limits.limit,
    refund: limits.refund,
    reserve: reservations.reserve,
    giveBack: reservations.giveBack,
    hold,
    settle,
    cancel,
    acquire,
    renew,
    release,
    peek: (keyState, nowMs, by) => peeked(keyState, { queue, shedders, slots }, nowMs, by),
    reset: (keyState, nowMs) => {
      store.reset(keyState, nowMs);
      slots.reset(keyState, nowMs);
      shedders.reset(keyState, nowMs);
      queue.serve(keyState);
    },
    endWaits: (keyState, nowMs) => {
      queue.endWaits(keyState, nowMs);
      slots.endWaits(keyState, nowMs);
    },
  };
}

interface Parts {
  readonly queue: WaitQueue;
  readonly shedders: Shedders;
  readonly slots: SlotOwner;
}

function peeked(
  keyState: KeyState,
  { queue, shedders, slots }: Parts,
  nowMs: number,
  { group, inForce }: Pick<SeenBy, "group" | "inForce"> = {},
): Peeked {
  const count = { hold: 0, lease: 0, holders: 0 };
  for (const claim of keyState.claims.values()) {
    count[claim.isSlots === true ? "holders" : claim.kind] += 1;
    if (claim.isSlots === true) count.lease += slots.leasedBy(keyState, claim);
  }
  const reclaimed = keyState.ruleStates.map(({ rule, account }) =>
    account.state === undefined ? 0 : (rule.algorithm.leasing?.reclaimed(account.state) ?? 0),
  );
  const waiters = queue.waitersOf(keyState);
  const shedding = shedders.report(keyState, nowMs);
  const groups = groupsOf(keyState, nowMs);
  return {
    rules: peekTurn(queue, keyState, { cost: 1, group, inForce }, nowMs),
    outstanding: Math.max(...keyState.accounts.map(outstandingOf)) - slots.owed(keyState),
    holds: count.hold,
    leases: count.lease,
    reclaimed: Math.max(...reclaimed),
    queueLength: waiters.length,
    longestWaitMs: waiters[0] === undefined ? 0 : nowMs - waiters[0].sinceMs,
    holders: keyState.holders.countAt(nowMs) + count.holders,
    ...planIn(policyFor(keyState.chosen, { inForce })),
    ...(shedding && { shedding }),
    ...(groups && { groups }),
  };
}

/** The most groups in a peek. */
const MAX_GROUPS_LISTED = 20;

function groupsOf(keyState: KeyState, nowMs: number): GroupsReport | undefined {
  const index = keyState.ruleStates.findIndex(({ rule }) => rule.algorithm.isFair === true);
  const shared = keyState.ruleStates[index];
  if (shared === undefined) return undefined;
  const { algorithm, config } = shared.rule;
  const held = heldByGroup(shared.account.holds);
  const known = algorithm.groups?.(config, shared.account.state, nowMs) ?? [];
  // A start forgets groups, but not what they hold.
  const names = [...new Set([...known, ...namesOf(held)])].toSorted(
    (one, other) => (held.get(other) ?? 0) - (held.get(one) ?? 0),
  );
  const busiest = names.slice(0, MAX_GROUPS_LISTED).flatMap((group) => {
    const { share } = withoutTaking(keyState.seenBy({ group }), nowMs, 0)[index] ?? {};
    return share === undefined ? [] : { group, limit: share.limit, remaining: share.remaining };
  });
  return { active: names.length, busiest };
}
