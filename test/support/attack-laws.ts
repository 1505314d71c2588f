/**
 * The laws of any history of calls, as far as callers can check them. Each returns its evidence. Where a
 * client cannot know (a call overlaps a reset, or was not answered), the law is silent.
 */
import { costText } from "../../core/policies/policy.ts";
import {
  claimIn,
  idsIn,
  inOrder,
  isAdmitted,
  isOn,
  repetitionName,
  shown,
  unitsOf,
  type History,
  type Made,
} from "./attack-history.ts";
import { mostInWindow, worstExcess, type AdmittedCall } from "./interval-bound.ts";

/** A rule that counts a rate. */
export interface RateRule {
  readonly unit: string;
  readonly limit: number;
  readonly windowMs: number;
  /** Absent: a sliding log. */
  readonly burst?: number;
}
export interface AttackedPolicy {
  readonly rates?: readonly RateRule[];
  /** The limit of a policy that leases. */
  readonly slots?: number;
  /** Nothing refills: the rest is known to the unit. */
  readonly budget?: number;
}
export type Attacked = Readonly<Record<string, AttackedPolicy>>;

/** Two readings of one clock may differ by one. */
const ROUNDING_MS = 2;

/** Answered calls have a status that the contract names, and are decided. */
export function statusesAreAllowed(history: History): string[] {
  const allowed = [0, 200, 204, 403, 404, 409, 422, 429];
  return history.made
    .filter((call) => !allowed.includes(call.status) || call.body["reason"] === "degraded")
    .filter((call) => !wasMadeTwice(call) && !wasConfirmedTooLate(call) && !wasResetTwice(history, call))
    .map((call) => `answered with ${call.status}: ${shown(call)}`);
}

/** A call on several keys that was made twice at once may be cancelled by its double, and reports it. */
function wasMadeTwice({ kind, status, argument }: Made): boolean {
  return kind === "limitAll" && status === 503 && argument.idempotencyKey !== undefined;
}

/** A busy machine may confirm a lease too late: a repetition's lease began with the first call. */
function wasConfirmedTooLate({ kind, argument, status, body, sentAtMs, receivedAtMs }: Made): boolean {
  const { waitMs = 0, ttlMs = 0, idempotencyKey } = argument;
  const isUnconfirmed = kind === "acquire" && waitMs > 0 && status === 200 && body["lease"] === undefined;
  return isUnconfirmed && (idempotencyKey !== undefined || receivedAtMs - sentAtMs >= ttlMs);
}

/** A call whose unconfirmed lease was reset is made again, once. */
function wasResetTwice({ resets }: History, call: Made): boolean {
  const meanwhile = resets.filter(
    (reset) =>
      isOn(reset, call) && reset.sentAtMs <= call.receivedAtMs && reset.receivedAtMs >= call.sentAtMs,
  );
  return call.kind === "acquire" && meanwhile.length > 1;
}

/** Whether it is unknowable if the call took effect. */
function isUnclear(call: Made): boolean {
  return call.status === 0 || wasMadeTwice(call);
}

/** A caller with a key prefix gets no answer about any other key. */
export function prefixIsKept(history: History, caller: string, prefix: string): string[] {
  const isStray = ({ argument }: Made) =>
    [argument, ...(argument.checks ?? [])].some(({ key = prefix }) => !key.startsWith(prefix));
  return history.made
    .filter((call) => call.caller === caller && isStray(call) && ![0, 403].includes(call.status))
    .map((call) => `outside its prefix: ${shown(call)}`);
}

/** Only the caller that made a claim gets its id. */
export function idsAreTheirOwn(history: History): string[] {
  const owners = new Map<string, Made>();
  const wrong: string[] = [];
  for (const call of history.made)
    for (const id of idsIn(call)) {
      const owner = owners.get(id) ?? call;
      owners.set(id, owner);
      if (owner.caller !== call.caller)
        wrong.push(`an id of another caller: ${shown(call)}, first told by ${shown(owner)}`);
    }
  const byId = history.made.filter(({ argument, status }) => argument.id !== undefined && status !== 0);
  for (const call of byId)
    if (!owners.has(call.argument.id ?? "") && call.status !== 404) wrong.push(`a forged id: ${shown(call)}`);
  return wrong;
}

/** The first call to end or renew a claim that has surely not expired finds it. */
export function claimsLast(history: History): string[] {
  const wrong: string[] = [];
  for (const [id, granted] of grants(history)) {
    const [first, ...others] = history.on(id);
    if (first === undefined || first.status !== 404 || !history.isFirst(granted)) continue;
    const isAlone = others.every((other) => other.sentAtMs > first.receivedAtMs);
    const isReset = history.resets.some(
      (call) => isOn(call, granted) && call.receivedAtMs >= granted.sentAtMs,
    );
    if (isAlone && !isReset && first.receivedAtMs < surelyUntilMs(granted))
      wrong.push(`a claim that had not ended: ${shown(first)}, made by ${shown(granted)}`);
  }
  return wrong;
}

/** No interval has more units than the rule allows. Units count where they were admitted. */
export function ratesAreKept(history: History, attacked: Attacked): string[] {
  const wrong: string[] = [];
  for (const [policy, { rates = [] }] of Object.entries(attacked))
    for (const { unit, limit, windowMs, burst } of rates)
      for (const [key, taken] of Map.groupBy(takings(history, policy, unit), (each) => each.key))
        for (const calls of withoutResets(taken, history, policy, key)) {
          const excess =
            burst === undefined
              ? mostInWindow(calls, windowMs) - limit
              : worstExcess(calls, { limit, windowMs, burst });
          if (calls.length > 0 && excess > 0)
            wrong.push(`${excess} ${unit} over the bound of ${policy}/${key}, of ${calls.length} calls`);
        }
  return wrong;
}

/** At no instant more units are certainly leased than the limit. */
export function slotsAreKept(history: History, attacked: Attacked): string[] {
  const wrong: string[] = [];
  for (const [policy, { slots }] of Object.entries(attacked)) {
    if (slots === undefined) continue;
    const leases = [...grants(history).entries()].filter(([, call]) => call.argument.policy === policy);
    for (const [key, ofKey] of Map.groupBy(leases, ([, { argument }]) => argument.key)) {
      const changes = ofKey
        .flatMap(([id, granted]) => certainlyHeld(id, granted, history))
        .flatMap(({ fromMs, untilMs, units }) => [
          { atMs: fromMs, units },
          { atMs: untilMs, units: -units },
        ])
        // At one instant releases come first.
        .toSorted((a, b) => a.atMs - b.atMs || a.units - b.units);
      let now = 0;
      for (const { atMs, units } of changes)
        if ((now += units) > slots && units > 0)
          wrong.push(`${now} of ${slots} units leased of ${policy}/${key} at ${atMs}`);
    }
  }
  return wrong;
}

/**
 * The rest of a budget is its untaken units: repeated calls count once, and each caller's calls are its
 * own.
 * @param looks a reading of each key, when all holds have ended
 */
export function budgetsAreRight(history: History, looks: readonly Made[], attacked: Attacked): string[] {
  return looks.flatMap((look) => {
    const { policy = "", key = "" } = look.argument;
    const budget = attacked[policy]?.budget ?? 0;
    const calls = history.made.filter((call) => isOn(call, look));
    const takes = calls.filter((call) => isTaking(call) && askedOf(call, policy, key, "requests") > 0);
    const refunds = calls.filter(({ kind, status }) => kind === "refund" && (status === 0 || status === 200));
    let [least, most] = [0, 0];
    // A check without a charge is not remembered, so another call may have its idempotency key.
    for (const same of repeated(takes, (call) => `${placesOf(call)} ${costsOf(call)}`)) {
      const [atLeast, atMost] = chargeOf(same, history, policy, key);
      least += atLeast;
      most += atMost;
    }
    for (const same of repeated(refunds))
      least -= Math.max(...same.map(({ argument }) => unitsOf(argument.units, "requests")));
    const left = Number(look.body["remaining"]);
    const isRight = budget - left >= Math.min(least, budget) && (left === 0 || budget - left <= most);
    const ends = calls.flatMap((call) => (isAdmitted(call) ? history.on(claimIn(call)?.id) : []));
    const evidence = [...calls, ...ends].map(shown).join("\n  ");
    return isRight
      ? []
      : [`${budget - left} taken of ${policy}/${key}, not ${least} to ${most}:\n  ${evidence}`];
  });
}

/** Repetitions by one caller on the same keys under one idempotency key. */
function repeated(calls: readonly Made[], placeOf: (call: Made) => string = () => ""): Made[][] {
  let alone = 0;
  const nameOf = (call: Made) =>
    call.argument.idempotencyKey === undefined
      ? `alone ${(alone += 1)}`
      : `${repetitionName(call)} ${placeOf(call)}`;
  return [...Map.groupBy(calls, nameOf).values()];
}

/** Whether a call takes units, if it is admitted. A call that takes none is not remembered. */
function isTaking({ kind, argument }: Made): boolean {
  if (kind !== "limit" && kind !== "limitAll" && kind !== "hold") return false;
  return [argument, ...(argument.checks ?? [])].some(({ policy, cost = argument.units ?? 1 }) =>
    policy === undefined
      ? false
      : typeof cost === "number"
        ? cost > 0
        : Object.values(cost).some((units) => units > 0),
  );
}

/** The kind of a call, with its policies and keys. */
function placesOf({ kind, argument }: Made): string {
  const places = (argument.checks ?? [argument]).map(({ policy, key }) => `${policy}/${key}`);
  return [kind, ...places.toSorted()].join(" ");
}

/** A call's costs, as idempotency compares them. */
function costsOf({ argument }: Made): string {
  const checks = argument.checks ?? [argument];
  return checks
    .map(({ policy, key, cost, units }) => `${policy}/${key} ${costText(cost ?? units ?? 1)}`)
    .toSorted()
    .join(" ");
}

/** Until when a claim surely lasts, if it is not ended. */
function surelyUntilMs(granted: Made): number {
  return granted.sentAtMs + (claimIn(granted)?.expiresAfterMs ?? 0) - ROUNDING_MS;
}

/** The least and the most that a call with its repetitions took of a key. A conflict took nothing. */
function chargeOf(same: readonly Made[], history: History, policy: string, key: string): [number, number] {
  const admitted = same.find(isAdmitted);
  const units = (call: Made) => askedOf(call, policy, key, "requests");
  if (admitted === undefined) return [0, Math.max(0, ...same.filter(isUnclear).map(units))];
  return admitted.kind === "hold"
    ? usedOf(admitted, history, "requests")
    : [units(admitted), units(admitted)];
}

/** The units of a key in all checks of a call. */
function askedOf({ kind, argument }: Made, policy: string, key: string, unit: string): number {
  if (kind !== "limitAll") return unitsOf(kind === "hold" ? argument.units : argument.cost, unit);
  const checks = (argument.checks ?? []).filter((check) => check.policy === policy && check.key === key);
  return checks.reduce((sum, { cost }) => sum + unitsOf(cost, unit), 0);
}

/** The least and the most that were used of a hold. Without a call that ends it, all of it is. */
function usedOf(hold: Made, history: History, unit: string): [least: number, most: number] {
  const held = unitsOf(hold.argument.units, unit);
  const id = claimIn(hold)?.id;
  const ends = history.on(id).filter(({ status }) => [0, 200, 204, 404].includes(status));
  const usedBy = ({ kind, argument: { used } }: Made) => {
    if (kind === "cancel") return 0;
    return typeof used === "object" && !Object.hasOwn(used, unit) ? held : unitsOf(used, unit);
  };
  const [first, ...others] = ends;
  const isCertain =
    first !== undefined &&
    first.status !== 0 &&
    first.receivedAtMs < surelyUntilMs(hold) &&
    others.every((other) => other.sentAtMs > first.receivedAtMs) &&
    history.isFirst(hold);
  if (isCertain) return [usedBy(first), usedBy(first)];
  const possible = [held, ...ends.map(usedBy)];
  return [Math.min(...possible), Math.max(...possible)];
}

/** The units that were certainly admitted of a policy's keys, once for each call. */
function takings(
  history: History,
  policy: string,
  unit: string,
): (AdmittedCall & { readonly key: string })[] {
  const takes = history.made.filter(isTaking);
  return repeated(takes, placesOf).flatMap((same) => {
    const admitted = same.filter(isAdmitted);
    const first = admitted[0];
    if (first === undefined) return [];
    const keys = new Set(
      [first.argument, ...(first.argument.checks ?? [])].map((each) =>
        each.policy === policy ? each.key : undefined,
      ),
    );
    const sentAtMs = Math.min(...same.map((call) => call.sentAtMs));
    const receivedAtMs = Math.min(...admitted.map((call) => call.receivedAtMs));
    return [...keys].flatMap((key) => {
      if (key === undefined) return [];
      const asked = askedOf(first, policy, key, unit);
      // Units used beyond a hold were not admitted.
      const units = first.kind === "hold" ? Math.min(asked, usedOf(first, history, unit)[0]) : asked;
      return units > 0 ? [{ key, sentAtMs, receivedAtMs, units }] : [];
    });
  });
}

/** The calls between one reset and the next, except those that overlap a reset. */
function withoutResets<Call extends AdmittedCall>(
  calls: readonly Call[],
  history: History,
  policy: string,
  key: string,
): Call[][] {
  const resets = history.resets.filter(({ argument }) => argument.policy === policy && argument.key === key);
  const clear = calls.filter((call) =>
    resets.every((reset) => call.receivedAtMs < reset.sentAtMs || call.sentAtMs > reset.receivedAtMs),
  );
  const after = (call: Call) => resets.filter((reset) => reset.receivedAtMs < call.sentAtMs).length;
  return [...Map.groupBy(clear, after).values()];
}

/** The first answer with each claim. */
function grants(history: History): Map<string, Made> {
  const first = new Map<string, Made>();
  for (const call of history.made) {
    const id =
      isAdmitted(call) && (call.kind === "hold" || call.kind === "acquire") ? claimIn(call)?.id : undefined;
    if (id !== undefined && !first.has(id)) first.set(id, call);
  }
  return first;
}

/** When a lease was certainly held: from its holder's answer until it may have ended. */
function certainlyHeld(id: string, granted: Made, history: History) {
  const { argument, receivedAtMs, body } = granted;
  // The object granted it after the call was sent and had waited, unless it was a repetition.
  const waitedMs = argument.idempotencyKey === undefined ? Number(body["waitedMs"] ?? 0) : 0;
  let untilMs = surelyUntilMs(granted) + waitedMs;
  const resets = history.resets.filter((reset) => isOn(reset, granted));
  for (const call of inOrder([...history.on(id), ...resets])) {
    if (call.receivedAtMs < granted.sentAtMs) continue;
    const isRenewed = call.kind === "renew" && call.status === 200 && call.sentAtMs < untilMs;
    if (isRenewed) untilMs = call.sentAtMs + Number(call.body["expiresAfterMs"]) - ROUNDING_MS;
    else if (call.kind !== "renew" || call.status === 0) untilMs = Math.min(untilMs, call.sentAtMs);
  }
  const units = unitsOf(argument.units, "concurrent-requests");
  return untilMs > receivedAtMs ? [{ fromMs: receivedAtMs, untilMs, units }] : [];
}
