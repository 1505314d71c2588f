import type { Algorithm, AlgorithmDecision, Allowed, AnyAlgorithm, Forecast, Leasing } from "./algorithm.ts";

/**
 * Dual configuration: one algorithm under two configurations at once. It is not an algorithm of its own, but decides
 * while two versions of a policy are in use (durable-objects/keys/versions.ts). A cost passes when it passes under
 * both, and both count it, so the bounds of both hold. One state is not enough: a bucket that is refilled at one rate
 * does not determine its level at another.
 *
 * Example: 100 and 60 per second. 60 units pass at once and 60 in each second after that, as under the second alone.
 *
 * The bound, the worst boundary and the weakness are those of the stricter configuration.
 *
 * Storage keeps the first of the two states. When it is read, both start from it, as after a change of the policy.
 */
export interface DualConfig {
  readonly own: object;
  readonly other: object;
}

interface DualState {
  readonly own: unknown;
  readonly other: unknown;
}

/** Both states from one that was counted under a single configuration. */
export function dualState(state: unknown): unknown {
  return state === undefined ? undefined : ({ own: state, other: state } satisfies DualState);
}

export function singleState(state: unknown): unknown {
  return (state as DualState | undefined)?.own;
}

type DualAlgorithm = Algorithm<DualConfig, DualState>;

/** `own` under its own configuration, and `other`, which can read its states, under another. */
export function dualConfig(own: AnyAlgorithm, other: AnyAlgorithm): DualAlgorithm {
  const { leasing: _, ...plain } = own as unknown as DualAlgorithm;
  const leasing = own.leasing && leasingOf(own.leasing, other.leasing ?? own.leasing);
  const both = <Result>(
    config: DualConfig,
    state: DualState | undefined,
    call: (algorithm: AnyAlgorithm, config: object, state: unknown) => Result,
  ) => [call(own, config.own, state?.own), call(other, config.other, state?.other)] as const;
  return {
    ...plain,
    ...(leasing && { leasing }),
    ...storageOf(own, other),
    bytes: (state) => bytesOf(own, state.own) + bytesOf(other, state.other),
    capacity: (config) => Math.min(own.capacity(config.own), other.capacity(config.other)),
    quota: (config) => own.quota(config.own),
    localDecisions: (config) => own.localDecisions(config.own),
    refillMs: (config, missing) =>
      Math.max(own.refillMs(config.own, missing), other.refillMs(config.other, missing)),
    ...(own.limitNow && {
      limitNow: (config, state, nowMs) =>
        Math.min(...both(config, state, (each, ...its) => each.limitNow?.(...its, nowMs) ?? Infinity)),
    }),
    scale: () => undefined,
    ...(own.isCutByWindow && { isCutByWindow: true }),
    ...(own.lessRate &&
      other.lessRate &&
      own.isCutByWindow === other.isCutByWindow && {
        lessRate(config, rate) {
          // What is held for a window of one is not enough for a longer window of the other.
          const isSameWindow = own.quota(config.own).windowMs === other.quota(config.other).windowMs;
          if (own.isCutByWindow && !isSameWindow) return undefined;
          const less = [own.lessRate?.(config.own, rate), other.lessRate?.(config.other, rate)] as const;
          return less[0] && less[1] && { own: less[0], other: less[1] };
        },
        withoutRate: (config) => ({
          own: own.withoutRate?.(config.own) ?? config.own,
          other: other.withoutRate?.(config.other) ?? config.other,
        }),
      }),
    decide: (config, state, nowMs, cost, held) =>
      stricter(state, cost, ...both(config, state, (each, ...its) => each.decide(...its, nowMs, cost, held))),
    ...(own.noteHold && {
      noteHold: (config, state, nowMs) =>
        stateOf(...both(config, state, (each, ...its) => each.noteHold?.(...its, nowMs) ?? its[1])),
    }),
    debit: (config, state, ...taking) =>
      stateOf(...both(config, state, (each, ...its) => each.debit(...its, ...taking))),
    maxDebit: (config, state, nowMs) =>
      Math.min(...both(config, state, (each, ...its) => each.maxDebit?.(...its, nowMs) ?? Infinity)),
    credit: (config, state, ...charge) =>
      stateOf(...both(config, state, (each, ...its) => each.credit(...its, ...charge))),
    refilled: (config, state, nowMs) => own.refilled?.(config.own, state?.own, nowMs),
    outlastsMs: (config, state) =>
      (state.own === undefined ? undefined : own.outlastsMs?.(config.own, state.own)) ?? -Infinity,
    untouchedAtMs: (config, state, uses) =>
      Math.max(...both(config, state, (each, ...its) => each.untouchedAtMs(...its, uses))),
    forecast: (config, state) => together(...both(config, state, (each, ...its) => each.forecast(...its))),
  };
}

function bytesOf(algorithm: AnyAlgorithm, state: unknown): number {
  return state === undefined ? 0 : (algorithm.bytes?.(state) ?? 0);
}

function storageOf(
  own: AnyAlgorithm,
  other: AnyAlgorithm,
): Pick<DualAlgorithm, "covers" | "pack" | "unpack"> {
  return {
    covers: (config, stored, ahead, state, outstanding, nowMs) =>
      own.covers(config.own, stored, ahead, state?.own, outstanding, nowMs),
    pack: (config, state, nowMs, before) =>
      state.own === undefined ? { record: undefined } : own.pack(config.own, state.own, nowMs, before),
    unpack: (config, record, segments) => ({
      own: own.unpack(config.own, record, segments),
      other: other.unpack(config.other, record, segments),
    }),
  };
}

function stateOf(own: unknown, other: unknown): DualState | undefined {
  return own === undefined && other === undefined ? undefined : { own, other };
}

function leasingOf(
  own: Leasing<object, unknown>,
  other: Leasing<object, unknown>,
): Leasing<DualConfig, DualState> {
  return {
    terms: (config) => own.terms(config.own),
    fencingToken: (state) => (state.own === undefined ? 0 : own.fencingToken(state.own)),
    reclaimed: (state) => (state.own === undefined ? 0 : own.reclaimed(state.own)),
    resumed: (token) => ({ own: own.resumed(token), other: other.resumed(token) }),
    ...(own.released && {
      released: (config, state, nowMs, ended) =>
        stateOf(
          own.released?.(config.own, state?.own, nowMs, ended),
          other.released?.(config.other, state?.other, nowMs, ended) ?? state?.other,
        ),
    }),
  };
}

/** Admits what both admit, with the smaller estimate; otherwise the denial with the longer wait. */
function stricter(
  state: DualState | undefined,
  cost: number,
  mine: AlgorithmDecision<unknown>,
  theirs: AlgorithmDecision<unknown>,
): AlgorithmDecision<DualState> {
  // What one admits is not taken if the other denies.
  const isAllowed = mine.allowed && theirs.allowed;
  const left = ({ allowed, remaining }: AlgorithmDecision<unknown>) =>
    remaining + (allowed && !isAllowed ? cost : 0);
  const estimate = {
    remaining: Math.min(left(mine), left(theirs)),
    resetAfterMs: Math.max(mine.resetAfterMs, theirs.resetAfterMs),
  };
  if (mine.allowed && theirs.allowed)
    return { ...mine, ...estimate, ...delayOf(mine, theirs), state: stateOf(mine.state, theirs.state) };
  const denials = [mine, theirs].filter((each) => !each.allowed);
  const [first, second = first] = denials;
  if (first === undefined || second === undefined) throw new Error("neither denies");
  const isLonger = (first.retryAfterMs ?? Infinity) >= (second.retryAfterMs ?? Infinity);
  const { counted: _, ...denied } = isLonger ? first : second;
  if (denials.every(({ counted }) => counted === undefined)) return { ...denied, ...estimate };
  const [own, other] = [mine, theirs].map((each) => (each.allowed ? undefined : each.counted?.state));
  const after = { own: own ?? state?.own, other: other ?? state?.other };
  const waits = denials.map(({ counted, retryAfterMs }) => (counted ?? { retryAfterMs }).retryAfterMs);
  const retryAfterMs = waits.includes(null) ? null : Math.max(...waits.map(Number));
  const resets = denials.map(({ counted }) => counted?.resetAfterMs ?? 0);
  const resetAfterMs = Math.max(estimate.resetAfterMs, ...resets);
  const counted = { ...denied, ...estimate, retryAfterMs, resetAfterMs, state: after };
  return { ...denied, ...estimate, counted };
}

function delayOf(mine: Allowed<unknown>, theirs: Allowed<unknown>): Pick<Allowed<unknown>, "delayMs"> {
  const delayMs = Math.max(mine.delayMs ?? 0, theirs.delayMs ?? 0);
  return delayMs === 0 ? {} : { delayMs };
}

/** What passes at an instant also passes later if no call comes, so the later of the two instants is exact. */
function together(mine: Forecast, theirs: Forecast): Forecast {
  return {
    debit(uses, from, to) {
      mine.debit(uses, from, to);
      theirs.debit(uses, from, to);
    },
    take(atMs, units) {
      mine.take(atMs, units);
      theirs.take(atMs, units);
    },
    passesAtMs: (atMs, cost, outstanding) =>
      Math.max(mine.passesAtMs(atMs, cost, outstanding), theirs.passesAtMs(atMs, cost, outstanding)),
    isCertain: (atMs, outstanding) =>
      mine.isCertain(atMs, outstanding) && theirs.isCertain(atMs, outstanding),
  };
}
