/** A caller that makes random calls of every kind by a seed, with known ids and invented ones. */
import { setTimeout as sleep } from "node:timers/promises";
import { claimId } from "../../core/protocol/names.ts";
import { claimIn, type Argument, type Ask, type Cost, type Kind, type Made } from "./attack-history.ts";

export interface Grounds {
  /** Policies that count rates, each with its keys. */
  readonly rates: Readonly<Record<string, readonly string[]>>;
  /** The units of a policy that counts several; any other counts requests. */
  readonly units: Readonly<Record<string, readonly string[]>>;
  /** Policies that lease. */
  readonly slots: Readonly<Record<string, readonly string[]>>;
  /** A policy without refills, with its current key, which changes now and then. */
  readonly budget: { readonly policy: string; keyNow(): string };
  /** The only policies and keys that are ever reset. */
  readonly resettable: readonly (readonly [policy: string, key: string])[];
}

export interface Attacker {
  readonly caller: string;
  readonly ask: Ask;
  readonly random: () => number;
  /** May reset keys. */
  readonly isAdmin: boolean;
}

interface Claim {
  readonly kind: "hold" | "lease";
  readonly id: string;
  readonly policy: string;
  readonly diesAtMs: number;
}

/** Idempotency keys that all callers use, so that they meet; the last one has the stored form. */
const SHARED_KEYS = ["order-1", "order-2", '\u0001{"token":"one"}\u0001order-1'];
/** The share of calls with an idempotency key that are repeated at once, answered or not. */
const RETRIED = 0.3;
/** Of 100 calls, on average. */
const WEIGHTS: readonly (readonly [Kind, number])[] = [
  ["limit", 26],
  ["limitAll", 9],
  ["refund", 5],
  ["hold", 14],
  ["acquire", 14],
  ["settle", 8],
  ["cancel", 5],
  ["renew", 5],
  ["release", 7],
  ["peek", 3],
  ["idle", 2],
  ["reset", 2],
];

/** Attacks until the end; `note` gets each call. */
export async function attack(
  { caller, ask, random, isAdmin }: Attacker,
  grounds: Grounds,
  isOver: () => boolean,
  note: (made: Made) => void,
): Promise<void> {
  const pick = picker(random);
  const claims: Claim[] = [];
  let before: Made | undefined;
  while (!isOver()) {
    const again = before?.argument.idempotencyKey !== undefined && random() < RETRIED ? before : undefined;
    const kind = again?.kind ?? pick.weighed(WEIGHTS);
    if (kind === "reset" && !isAdmin) continue;
    const argument = again?.argument ?? ARGUMENTS[kind](grounds, claims, pick);
    // Some claims are ended at the instant at which they expire.
    const dying = claims.find(({ id }) => id === argument.id)?.diesAtMs ?? 0;
    if (random() < 0.2 && dying > Date.now()) await sleep(dying - Date.now());
    const sentAtMs = Date.now();
    const answer = await ask(kind, argument).catch(() => undefined);
    const unanswered = { status: 0, body: {}, sentAtMs, receivedAtMs: Date.now() };
    const made: Made = { caller, kind, argument, ...(answer ?? unanswered) };
    before = made;
    note(made);
    // The server was killed, and is started again.
    if (answer === undefined) await sleep(50);
    const told = claimIn(made);
    if (told === undefined || made.status !== 200) continue;
    const { policy = "" } = argument;
    const of = kind === "hold" ? "hold" : "lease";
    claims.push({ kind: of, id: told.id, policy, diesAtMs: made.sentAtMs + told.expiresAfterMs });
    if (claims.length > 8) claims.shift();
  }
}

type Pick = ReturnType<typeof picker>;

function picker(random: () => number) {
  const upTo = (most: number) => Math.floor(random() * (most + 1));
  const oneOf = <Item>(items: readonly Item[]) => items[upTo(items.length - 1)] as Item;
  const weighed = <Item>(items: readonly (readonly [Item, number])[]): Item => {
    let left = random() * items.reduce((sum, [, weight]) => sum + weight, 0);
    return (items.find(([, weight]) => (left -= weight) < 0) ?? items[0])?.[0] as Item;
  };
  return { random, upTo, oneOf, weighed };
}

type MakeArgument = (grounds: Grounds, claims: readonly Claim[], pick: Pick) => Argument;

const ARGUMENTS: Readonly<Record<Kind, MakeArgument>> = {
  limit: (grounds, _, pick) => ({
    ...ratePlaceWith("cost", 0, grounds, pick),
    ...idempotency(pick, "cost"),
  }),
  limitAll: (grounds, _, pick) => ({ checks: checks(grounds, pick), ...idempotency(pick) }),
  refund: (grounds, _, pick) => refund(grounds, pick),
  hold: (grounds, _, pick) => ({
    ...ratePlaceWith("units", 1, grounds, pick),
    ttlMs: 100 + pick.upTo(900),
    ...idempotency(pick, "units"),
  }),
  acquire: (grounds, _, pick) => acquire(grounds, pick),
  settle: (grounds, claims, pick) => settle(grounds, claims, pick),
  cancel: (grounds, claims, pick) => ({ id: idOf("hold", grounds, claims, pick) }),
  renew: (grounds, claims, pick) => ({
    id: idOf("lease", grounds, claims, pick),
    ...(pick.random() < 0.5 && { ttlMs: 100 + pick.upTo(900) }),
  }),
  release: (grounds, claims, pick) => ({ id: idOf("lease", grounds, claims, pick) }),
  peek: (grounds, _, pick) => ratePlace(grounds, pick),
  idle: (grounds, _, pick) => ({ ...slotPlace(grounds, pick), waitMs: pick.upTo(300) }),
  reset: (grounds, _, pick) => {
    const [policy, key] = pick.oneOf(grounds.resettable);
    return { policy, key };
  },
};

/** Mostly few units, sometimes none or too many; sometimes by unit, where 0 leaves a rule out. */
function cost({ random, upTo }: Pick, least: 0 | 1, units: readonly string[] = ["requests"]): Cost {
  if (random() < 0.05) return 1_000;
  if (random() < 0.5) return least + upTo(5);
  const [first = "", ...others] = units;
  return {
    [first]: others.length === 0 ? least + upTo(4) : upTo(3),
    ...Object.fromEntries(others.map((unit) => [unit, least + upTo(20)])),
  };
}

/** A place that counts a rate, with a cost there. */
function ratePlaceWith<Field extends string>(
  field: Field,
  least: 0 | 1,
  grounds: Grounds,
  pick: Pick,
): Argument {
  const place = ratePlace(grounds, pick);
  return { ...place, [field]: cost(pick, least, grounds.units[place.policy ?? ""]) };
}

function ratePlace({ rates, budget }: Grounds, pick: Pick): Argument {
  if (pick.random() < 0.35) return { policy: budget.policy, key: budget.keyNow() };
  const [policy, keys] = pick.oneOf(Object.entries(rates));
  return { policy, key: pick.oneOf(keys) };
}

function slotPlace({ slots }: Grounds, pick: Pick): Argument {
  const [policy, keys] = pick.oneOf(Object.entries(slots));
  return { policy, key: pick.oneOf(keys) };
}

/** Mostly the same cost under an idempotency key, so that calls are repeated and not only refused. */
function idempotency({ random, oneOf }: Pick, field?: "cost" | "units"): Argument {
  if (random() < 0.6) return {};
  return { idempotencyKey: oneOf(SHARED_KEYS), ...(field !== undefined && random() < 0.8 && { [field]: 2 }) };
}

/** Up to four checks. One key may come twice. */
function checks(grounds: Grounds, pick: Pick): Argument[] {
  const several = Array.from({ length: 1 + pick.upTo(2) }, () => ratePlaceWith("cost", 0, grounds, pick));
  const [first] = several;
  return first !== undefined && pick.random() < 0.4 ? [...several, { ...first, cost: 1 }] : several;
}

function settle(grounds: Grounds, claims: readonly Claim[], pick: Pick): Argument {
  const id = idOf("hold", grounds, claims, pick);
  const policy = claims.find((claim) => claim.id === id)?.policy ?? "";
  return { id, used: cost(pick, 0, grounds.units[policy]) };
}

/** Of the budget only: the effect of a refund on other quotas is unknown to clients. */
function refund({ budget }: Grounds, pick: Pick): Argument {
  const [idempotencyKey, charge] = [pick.oneOf(SHARED_KEYS), pick.oneOf(SHARED_KEYS)];
  const named = pick.random() < 0.5 ? { charge } : {};
  return {
    policy: budget.policy,
    key: budget.keyNow(),
    units: pick.random() < 0.7 ? 2 : 1 + pick.upTo(4),
    idempotencyKey: `back ${idempotencyKey}`,
    ...named,
  };
}

function acquire(grounds: Grounds, pick: Pick): Argument {
  const wait = pick.random() < 0.4 ? { waitMs: pick.upTo(600) } : {};
  const life = pick.random() < 0.7 ? { ttlMs: 100 + pick.upTo(900) } : {};
  return {
    ...slotPlace(grounds, pick),
    units: 1 + pick.upTo(2),
    ...wait,
    ...life,
    ...idempotency(pick, "units"),
  };
}

/** Mostly the id of a claim that this caller got, lasting or not; otherwise an invented one. */
function idOf(kind: "hold" | "lease", grounds: Grounds, claims: readonly Claim[], pick: Pick): string {
  const own = claims.filter((claim) => claim.kind === kind);
  const lasting = own.filter(({ diesAtMs }) => diesAtMs > Date.now());
  if (lasting.length > 0 && pick.random() < 0.7) return pick.oneOf(lasting).id;
  if (own.length > 0 && pick.random() < 0.7) return pick.oneOf(own).id;
  const { policy = "", key = "" } = kind === "hold" ? ratePlace(grounds, pick) : slotPlace(grounds, pick);
  const secret = Array.from({ length: 22 }, () => "0123456789abcdef"[pick.upTo(15)]).join("");
  return claimId(kind, { policy, key }, secret);
}
