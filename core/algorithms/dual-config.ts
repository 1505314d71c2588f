import type { Algorithm, AlgorithmDecision, Allowed, AnyAlgorithm, Forecast, Leasing } from "./algorithm.ts";

/**
 * Both: one algorithm under two configurations at once. It is not an algorithm of its own, but decides while two versions
 * of a policy are in use (durable-objects/keys/versions.ts). A cost passes when it passes under both, and both count it. So the
 * bounds of both hold. One state would not do: a bucket that is refilled at one rate does not know what it would be at
 * another.
 *
 * Example: 100 and 60 per second. 60 units pass at once and 60 in each second after that, as under the second alone.
 *
 * Storage keeps the first of the two states. When it is read, both go on from it, as after a change of the policy.
 */
export interface DualConfig {
  readonly own: object;
  readonly other: object;
}

interface BothState {
  readonly own: unknown;
  readonly other: unknown;
}

/** The state of both for one that was counted under a single configuration. */
export function dualState(state: unknown): unknown {
  return state === undefined ? undefined : ({ own: state, other: state } satisfies BothState);
}

/** The first of the two states. */
export function singleState(state: unknown): unknown {
  return (state as BothState | undefined)?.own;
}

type DualAlgorithm = Algorithm<DualConfig, BothState>;

/** The algorithm under its own configuration, and another whose states it can read under another. */
export function dualConfig(own: AnyAlgorithm, other: AnyAlgorithm): DualAlgorithm {
  const { leasing: _, ...plain } = own as unknown as DualAlgorithm;
  const leasing = own.leasing && leasingOf(own.leasing, other.leasing ?? own.leasing);
  return {
    ...plain,
    ...(leasing && { leasing }),
    ...figuresOf(own, other),
    ...storingOf(own),
    scale: () => undefined,
    decide: (config, state, nowMs, cost, held) =>
      stricter(
        state,
        own.decide(config.own, state?.own, nowMs, cost, held),
        other.decide(config.other, state?.other, nowMs, cost, held),
      ),
    noteHold: (config, state, nowMs) =>
      stateOf(own.noteHold(config.own, state?.own, nowMs), other.noteHold(config.other, state?.other, nowMs)),
    debit: (config, state, nowMs, units) =>
      stateOf(
        own.debit(config.own, state?.own, nowMs, units),
        other.debit(config.other, state?.other, nowMs, units),
      ),
    mostDebit: (config, state, nowMs) =>
      Math.min(
        own.mostDebit?.(config.own, state?.own, nowMs) ?? Infinity,
        other.mostDebit?.(config.other, state?.other, nowMs) ?? Infinity,
      ),
    credit: (config, state, nowMs, units) =>
      stateOf(
        own.credit(config.own, state?.own, nowMs, units),
        other.credit(config.other, state?.other, nowMs, units),
      ),
    uncharge: (config, state, nowMs, units, atMs) =>
      stateOf(
        own.uncharge(config.own, state?.own, nowMs, units, atMs),
        other.uncharge(config.other, state?.other, nowMs, units, atMs),
      ),
    forecast: (config, state) =>
      together(own.forecast(config.own, state?.own), other.forecast(config.other, state?.other)),
  };
}

type Figures = "capacity" | "quota" | "localDecisions" | "wholeFromMs" | "limitNow" | "wholeAtMs";

/** The smaller capacity, and the longer time. The rest is told as it is known here. */
function figuresOf(own: AnyAlgorithm, other: AnyAlgorithm): Pick<DualAlgorithm, Figures> {
  return {
    capacity: (config) => Math.min(own.capacity(config.own), other.capacity(config.other)),
    quota: (config) => own.quota(config.own),
    localDecisions: (config) => own.localDecisions(config.own),
    wholeFromMs: (config, missing) =>
      Math.max(own.wholeFromMs(config.own, missing), other.wholeFromMs(config.other, missing)),
    ...(own.limitNow && {
      limitNow: (config, state, nowMs) =>
        Math.min(
          own.limitNow?.(config.own, state?.own, nowMs) ?? Infinity,
          other.limitNow?.(config.other, state?.other, nowMs) ?? Infinity,
        ),
    }),
    wholeAtMs: (config, state, uses) =>
      Math.max(
        own.wholeAtMs(config.own, state?.own, uses),
        other.wholeAtMs(config.other, state?.other, uses),
      ),
  };
}

/** Storage has the first of the two states. */
function storingOf(own: AnyAlgorithm): Pick<DualAlgorithm, "covers" | "pack" | "unpack" | "bytes"> {
  return {
    covers: (config, stored, ahead, state, outstanding, nowMs) =>
      own.covers(config.own, stored, ahead, state?.own, outstanding, nowMs),
    pack: (config, state, nowMs, before) =>
      state.own === undefined ? { record: undefined } : own.pack(config.own, state.own, nowMs, before),
    unpack(config, record, segments) {
      const state = own.unpack(config.own, record, segments);
      return { own: state, other: state };
    },
    ...(own.bytes && {
      bytes: (state) =>
        [state.own, state.other].reduce<number>(
          (sum, each) => sum + (each === undefined ? 0 : (own.bytes?.(each) ?? 0)),
          0,
        ),
    }),
  };
}

function stateOf(own: unknown, other: unknown): BothState | undefined {
  return own === undefined && other === undefined ? undefined : { own, other };
}

function leasingOf(
  own: Leasing<object, unknown>,
  other: Leasing<object, unknown>,
): Leasing<DualConfig, BothState> {
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

/** What both allow, with the smaller figures; or the denial that lasts longer. Each counts its own denial. */
function stricter(
  state: BothState | undefined,
  mine: AlgorithmDecision<unknown>,
  theirs: AlgorithmDecision<unknown>,
): AlgorithmDecision<BothState> {
  const figures = {
    remaining: Math.min(mine.remaining, theirs.remaining),
    resetAfterMs: Math.max(mine.resetAfterMs, theirs.resetAfterMs),
  };
  if (mine.allowed && theirs.allowed)
    return { ...mine, ...figures, ...delayOf(mine, theirs), state: stateOf(mine.state, theirs.state) };
  const lasting = [mine, theirs].filter((each) => !each.allowed);
  const [first, second = first] = lasting;
  if (first === undefined || second === undefined) throw new Error("neither denies");
  const isLonger = (first.retryAfterMs ?? Infinity) >= (second.retryAfterMs ?? Infinity);
  const { counted: _, ...denied } = isLonger ? first : second;
  const counts = lasting.some(({ counted }) => counted !== undefined);
  if (!counts) return { ...denied, ...figures };
  const [own, other] = [mine, theirs].map((each) => (each.allowed ? undefined : each.counted?.state));
  const after = { own: own ?? state?.own, other: other ?? state?.other };
  const waits = lasting.map(({ counted, retryAfterMs }) => (counted ? counted.retryAfterMs : retryAfterMs));
  const retryAfterMs = waits.includes(null) ? null : Math.max(...waits.map(Number));
  const resetAfterMs = Math.max(
    figures.resetAfterMs,
    ...lasting.map(({ counted }) => counted?.resetAfterMs ?? 0),
  );
  const counted = { ...denied, ...figures, retryAfterMs, resetAfterMs, state: after };
  return { ...denied, ...figures, counted };
}

function delayOf(mine: Allowed<unknown>, theirs: Allowed<unknown>): Pick<Allowed<unknown>, "delayMs"> {
  const delayMs = Math.max(mine.delayMs ?? 0, theirs.delayMs ?? 0);
  return delayMs === 0 ? {} : { delayMs };
}

/** What passes at an instant also passes later, if nobody comes. So the later one of the two is exact. */
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
