import type {
  Algorithm,
  AlgorithmDecision,
  AnyAlgorithm,
  ConfigProblem,
  Denial,
  Fields,
  Forecast,
} from "./algorithm.ts";

/**
 * Penalty: whoever is denied is blocked for a while. It is not an algorithm of its own, but goes around one that counts
 * a rate. A denial begins a block of `blockForMs`, during which every cost is denied. Denials during a block change
 * nothing, so the wait that they name is exact. A denial that comes after a block, but within as long again, begins one
 * that is twice as long, up to `maxBlockMs`: so whoever keeps on is kept out for longer and longer. That is the growing ban
 * of fail2ban (`bantime.increment`).
 *
 * Example: 5 per minute, blocked for 15 min and at most a day. The sixth attempt is denied, and the key blocked for 15
 * min. An attempt in the 20th minute passes; ten more there are too many, and it is blocked for 30 min. Whoever stays
 * away for 30 min after that begins with 15 min again.
 *
 * What can never pass begins no block, nor does a denial for what is kept for more important calls. A reset ends it.
 *
 * The bound: that of the algorithm, since a block only denies more.
 */
export interface PenaltyConfig {
  readonly inner: object;
  /** How long the first block lasts. */
  readonly blockForMs: number;
  /** The longest block. */
  readonly maxBlockMs: number;
}

interface Block {
  readonly untilMs: number;
  /** How long it lasts, and for how long after its end it is remembered. */
  readonly forMs: number;
}

interface PenaltyState {
  readonly inner: unknown;
  readonly block: Block | undefined;
}

const GROWTH = 2;

/** The longest block, unless a rule says otherwise: a day. */
const DEFAULT_MAX_BLOCK_MS = 86_400_000;
/** 2^31 - 1 ms, about 24 days. */
const MAX_MS = 2_147_483_647;

/**
 * An algorithm and its configuration with penalties.
 *
 * @param blockFor how long the first block lasts, in milliseconds
 * @param maxBlock the longest block
 */
export function penalised(
  algorithm: AnyAlgorithm,
  config: object,
  { blockFor, maxBlock }: Pick<Fields, "blockFor" | "maxBlock">,
): { readonly algorithm: AnyAlgorithm; readonly config: object } | ConfigProblem {
  if (blockFor === undefined)
    return { problem: { field: "maxBlock", allowed: "left out, or with blockFor" } };
  const isRate = algorithm.leasing === undefined && algorithm.fields["limit"] !== undefined;
  // Waiting gives no credits, so there is nothing to keep out.
  if (!isRate || algorithm.isLasting === true)
    return { problem: { field: "blockFor", allowed: `left out with algorithm "${algorithm.name}"` } };
  const blockForMs = Number(blockFor);
  if (blockForMs > MAX_MS) return { problem: { field: "blockFor", allowed: `at most ${MAX_MS} ms` } };
  const maxBlockMs = Number(maxBlock ?? Math.max(blockForMs, DEFAULT_MAX_BLOCK_MS));
  if (maxBlockMs < blockForMs || maxBlockMs > MAX_MS) {
    const allowed = `at least the blockFor of ${blockForMs} ms and at most ${MAX_MS} ms`;
    return { problem: { field: "maxBlock", allowed } };
  }
  const penal: PenaltyConfig = { inner: config, blockForMs, maxBlockMs };
  return { algorithm: withPenalty(algorithm), config: penal };
}

/** The algorithm with penalties. Its states are stored so that the algorithm alone can read them: `withoutBlock`. */
export function withPenalty(algorithm: AnyAlgorithm): Algorithm<PenaltyConfig, PenaltyState> {
  // No function of it is taken over as it is: each has a configuration of its own.
  const { name, storedAs, fields, isLasting, isStateless } = algorithm;
  const innerOf = (state: PenaltyState | undefined) => state?.inner;
  return {
    name,
    fields,
    ...(storedAs !== undefined && { storedAs }),
    ...(isLasting && { isLasting }),
    ...(isStateless && { isStateless }),
    isPenal: true,
    configure: () => ({ problem: { field: "blockFor", allowed: "beside an algorithm" } }),
    capacity: ({ inner }) => algorithm.capacity(inner),
    quota: ({ inner }) => algorithm.quota(inner),
    // Each denial counts, so the object has to see it; and what it blocks no isolate may admit.
    localDecisions: () => ({ admits: false, denies: false }),
    wholeFromMs: ({ inner, maxBlockMs }, missing) =>
      Math.max(algorithm.wholeFromMs(inner, missing), 2 * maxBlockMs),
    scale: (config, part) => {
      const inner = algorithm.scale(config.inner, part);
      return inner && { ...config, inner };
    },
    decide(config, state, nowMs, cost, outstanding) {
      const decision = algorithm.decide(config.inner, innerOf(state), nowMs, cost, outstanding);
      const block = state?.block;
      return block !== undefined && nowMs < block.untilMs
        ? blocked(decision, state, block.untilMs - nowMs, cost)
        : unblocked(config, decision, state, nowMs);
    },
    noteHold: (config, state, nowMs) =>
      stateOf(algorithm.noteHold(config.inner, innerOf(state), nowMs), state?.block),
    debit: ({ inner }, state, nowMs, units) =>
      stateOf(algorithm.debit(inner, innerOf(state), nowMs, units), state?.block),
    ...(algorithm.mostDebit && {
      mostDebit: ({ inner }, state, nowMs) => algorithm.mostDebit?.(inner, innerOf(state), nowMs) ?? Infinity,
    }),
    credit: ({ inner }, state, nowMs, units) =>
      stateOf(algorithm.credit(inner, innerOf(state), nowMs, units), state?.block),
    uncharge: ({ inner }, state, nowMs, units, atMs) =>
      stateOf(algorithm.uncharge(inner, innerOf(state), nowMs, units, atMs), state?.block),
    wholeAtMs: ({ inner }, state, uses) =>
      Math.max(algorithm.wholeAtMs(inner, innerOf(state), uses), forgottenAtMs(state?.block)),
    forecast: ({ inner }, state) => forecastOf(algorithm.forecast(inner, innerOf(state)), state?.block),
    ...storing(algorithm),
    ...(algorithm.bytes && {
      bytes: ({ inner }) => (inner === undefined ? 0 : (algorithm.bytes?.(inner) ?? 0)),
    }),
  };
}

/** How its states are stored: as those of the algorithm, with the block beside them if there is one. */
function storing(
  algorithm: AnyAlgorithm,
): Pick<Algorithm<PenaltyConfig, PenaltyState>, "covers" | "pack" | "unpack" | "used"> {
  return {
    covers(config, stored, ahead, state, outstanding, nowMs) {
      const isKnown = blockIn(stored)?.untilMs === state?.block?.untilMs;
      const inner = withoutBlock(stored);
      return isKnown && algorithm.covers(config.inner, inner, ahead, state?.inner, outstanding, nowMs);
    },
    pack({ inner: config }, { inner, block }, nowMs, before) {
      if (inner === undefined) return { record: { block } };
      const packed = algorithm.pack(config, inner, nowMs, withoutBlock(before));
      return block === undefined ? packed : { ...packed, record: { inner: packed.record, block } };
    },
    unpack({ inner: config }, record, segments) {
      const inner = withoutBlock(record);
      return {
        inner: inner === undefined ? undefined : algorithm.unpack(config, inner, segments),
        block: blockIn(record),
      };
    },
    used: (record) => algorithm.used(withoutBlock(record) ?? null),
  };
}

/** The figures and words of a rule's configuration, those of its penalties included. */
export function figuresOf(config: object): object {
  const { inner, ...own } = config as Partial<PenaltyConfig>;
  return Object.fromEntries(
    Object.entries({ ...inner, ...own }).filter(([, value]) => FIGURES.includes(typeof value)),
  );
}

const FIGURES = ["number", "string", "boolean"];

/** The record of the algorithm alone, in a record that may have a block beside it. */
export function withoutBlock(record: unknown): unknown {
  return hasBlock(record) ? record.inner : record;
}

/** The block in a record; absent: it has none. */
export function blockIn(record: unknown): Block | undefined {
  return hasBlock(record) ? record.block : undefined;
}

function hasBlock(record: unknown): record is { readonly inner?: unknown; readonly block: Block } {
  return typeof record === "object" && record !== null && "block" in record;
}

function stateOf(inner: unknown, block: Block | undefined): PenaltyState | undefined {
  return inner === undefined && block === undefined ? undefined : { inner, block };
}

/** What was decided, during a block of which `leftMs` are left. */
function blocked(
  decision: AlgorithmDecision<unknown>,
  state: PenaltyState | undefined,
  leftMs: number,
  cost: number,
): AlgorithmDecision<PenaltyState> {
  const figures = { remaining: 0, resetAfterMs: Math.max(decision.resetAfterMs, leftMs) };
  if (cost === 0) return { allowed: true, state, ...figures };
  if (decision.allowed) return { allowed: false, reason: "blocked", retryAfterMs: leftMs, ...figures };
  const { reason, retryAfterMs } = decision;
  if (retryAfterMs === null && reason === "cost-over-limit")
    return { allowed: false, reason, retryAfterMs, ...figures };
  const waitMs = retryAfterMs === null ? null : Math.max(leftMs, retryAfterMs);
  return { allowed: false, reason: "blocked", retryAfterMs: waitMs, ...figures };
}

/** What was decided while there is no block; a denial begins one. */
function unblocked(
  { blockForMs, maxBlockMs }: PenaltyConfig,
  decision: AlgorithmDecision<unknown>,
  state: PenaltyState | undefined,
  nowMs: number,
): AlgorithmDecision<PenaltyState> {
  const before = state?.block;
  if (decision.allowed) {
    const block = forgottenAtMs(before) > nowMs ? before : undefined;
    return { ...decision, state: stateOf(decision.state, block) };
  }
  const { counted, ...denied } = decision;
  const isAgain = forgottenAtMs(before) > nowMs;
  const forMs = isAgain ? Math.min(maxBlockMs, GROWTH * (before?.forMs ?? 0)) : blockForMs;
  const block = { untilMs: nowMs + forMs, forMs };
  const { state: inner, ...after } = counted ?? { ...denied, state: state?.inner };
  const figures: Denial = {
    ...after,
    remaining: 0,
    resetAfterMs: Math.max(after.resetAfterMs, forMs),
    retryAfterMs: after.retryAfterMs === null ? null : Math.max(after.retryAfterMs, forMs),
  };
  return { ...denied, counted: { ...figures, state: { inner, block } } };
}

/** From when on a block is as if it had never been. */
function forgottenAtMs(block: Block | undefined): number {
  return block === undefined ? -Infinity : block.untilMs + block.forMs;
}

function forecastOf(inner: Forecast, block: Block | undefined): Forecast {
  if (block === undefined) return inner;
  const { untilMs } = block;
  return {
    debit: (uses, from, to) => inner.debit(uses, from, to),
    take: (atMs, units) => inner.take(atMs, units),
    // What passes at an instant also passes later, if nobody comes. So the later one of the two is exact.
    passesAtMs(atMs, cost, outstanding) {
      const passesAtMs = inner.passesAtMs(atMs, cost, outstanding);
      return cost === 0 ? passesAtMs : Math.max(passesAtMs, untilMs);
    },
    isCertain: (atMs, outstanding) => inner.isCertain(atMs, outstanding),
  };
}
