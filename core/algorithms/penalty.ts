import {
  type Algorithm,
  type AlgorithmDecision,
  type AnyAlgorithm,
  configProblem,
  type ConfigProblem,
  type Fields,
  type Denial,
  type Forecast,
} from "./algorithm.ts";

/**
 * Penalty: a denial blocks the key for a while. It is not an algorithm of its own, but wraps one that counts a rate. A
 * denial begins a block of `blockForMs`, during which every cost is denied. Denials during a block change nothing, so
 * their wait is exact. A denial after a block, but within as long again, begins one twice as long, up to `maxBlockMs`:
 * like the growing ban of fail2ban (`bantime.increment`).
 *
 * Example: 5 per minute, blocked for 15 min, and for a day at most. The sixth attempt is denied, and the key blocked
 * for 15 min. An attempt in the 20th minute passes; ten more are too many, and the key is blocked for 30 min. If no
 * denial follows within 30 min after that, the next block is 15 min again.
 *
 * A cost above the limit begins no block, nor does a denial of units kept for more important calls. A reset ends it.
 *
 * The bound and its worst boundary are those of the algorithm, since a block only denies more. What it is bad at: keys
 * that several callers share, since one of them blocks all.
 */
interface PenaltyConfig {
  readonly inner: object;
  readonly blockForMs: number;
  readonly maxBlockMs: number;
}

interface Block {
  readonly untilMs: number;
  /** The length of the block, and of the time after it in which it is remembered. */
  readonly forMs: number;
}

interface State {
  readonly inner: unknown;
  readonly block: Block | undefined;
}

type Config = PenaltyConfig;
type Decision = AlgorithmDecision<State>;
const GROWTH = 2;

const DEFAULT_MAX_BLOCK_MS = 86_400_000;
/** 2^31 - 1 ms, about 24 days. */
const MAX_MS = 2_147_483_647;

/** Whether the algorithm may have penalties. A block has no use where the wait returns no units. */
export function canBlock({ leasing, fields, neverRefills }: AnyAlgorithm): boolean {
  return leasing === undefined && fields["limit"] !== undefined && neverRefills !== true;
}

/** An algorithm and its configuration with penalties. @param blockFor the length of the first block */
export function penalised(
  algorithm: AnyAlgorithm,
  config: object,
  { blockFor, maxBlock }: Pick<Fields, "blockFor" | "maxBlock">,
): { readonly algorithm: AnyAlgorithm; readonly config: object } | ConfigProblem {
  if (blockFor === undefined) return configProblem("maxBlock", "left out, or with blockFor");
  if (!canBlock(algorithm)) return configProblem("blockFor", `left out with algorithm "${algorithm.name}"`);
  const blockForMs = Number(blockFor);
  if (blockForMs > MAX_MS) return configProblem("blockFor", `at most ${MAX_MS} ms`);
  const maxBlockMs = Number(maxBlock ?? Math.max(blockForMs, DEFAULT_MAX_BLOCK_MS));
  if (maxBlockMs < blockForMs || maxBlockMs > MAX_MS)
    return configProblem("maxBlock", `at least the blockFor of ${blockForMs} ms and at most ${MAX_MS} ms`);
  return { algorithm: withPenalty(algorithm), config: { inner: config, blockForMs, maxBlockMs } };
}

/** The algorithm with penalties. The algorithm alone can read its stored states: `withoutBlock`. */
function withPenalty(algorithm: AnyAlgorithm): Algorithm<Config, State> {
  // No function is copied: each takes the configuration of the algorithm.
  const { name, storedAs, fields, isStateless, isClosed } = algorithm;
  return {
    name,
    fields,
    ...(storedAs !== undefined && { storedAs }),
    ...(isStateless && { isStateless }),
    ...(isClosed && { isClosed }),
    hasPenalty: true,
    configure: () => configProblem("blockFor", "beside an algorithm"),
    capacity: ({ inner }) => algorithm.capacity(inner),
    quota: ({ inner }) => algorithm.quota(inner),
    // Each denial counts, so the object decides it; and no isolate may admit what is blocked.
    localDecisions: () => ({ admits: false, denies: false }),
    refillMs: ({ inner, maxBlockMs }, missing) =>
      Math.max(algorithm.refillMs(inner, missing), 2 * maxBlockMs),
    scale: (config, part) => {
      const inner = algorithm.scale(config.inner, part);
      return inner && { ...config, inner };
    },
    decide(config, state, nowMs, cost, outstanding) {
      const decision = algorithm.decide(config.inner, state?.inner, nowMs, cost, outstanding);
      const block = state?.block;
      if (block === undefined || nowMs >= block.untilMs) return unblocked(config, decision, state, nowMs);
      // A call that would pass takes nothing during the block.
      const { resetAfterMs } = algorithm.decide(config.inner, state?.inner, nowMs, 0, outstanding);
      return blocked({ ...decision, resetAfterMs }, state, block.untilMs - nowMs, cost);
    },
    ...(algorithm.noteHold && {
      noteHold: ({ inner }, state, nowMs) =>
        stateOf(algorithm.noteHold?.(inner, state?.inner, nowMs), state?.block),
    }),
    debit: ({ inner }, state, ...taking) =>
      stateOf(algorithm.debit(inner, state?.inner, ...taking), state?.block),
    ...(algorithm.maxDebit && {
      maxDebit: ({ inner }, state, nowMs) => algorithm.maxDebit?.(inner, state?.inner, nowMs) ?? Infinity,
    }),
    credit: ({ inner }, state, ...charge) =>
      stateOf(algorithm.credit(inner, state?.inner, ...charge), state?.block),
    untouchedAtMs: ({ inner }, state, uses) =>
      Math.max(algorithm.untouchedAtMs(inner, state?.inner, uses), forgottenAtMs(state?.block)),
    // A block that is over takes nothing, while it is remembered.
    fullAtMs({ inner }, state, nowMs, uses) {
      const innerMs = algorithm.fullAtMs?.(inner, state?.inner, nowMs, uses);
      return Math.max(
        innerMs ?? algorithm.untouchedAtMs(inner, state?.inner, uses),
        state?.block?.untilMs ?? -Infinity,
      );
    },
    refilled: ({ inner }, state, nowMs) => algorithm.refilled?.(inner, state?.inner, nowMs),
    outlastsMs: (config, { inner }) =>
      (inner === undefined ? undefined : algorithm.outlastsMs?.(config.inner, inner)) ?? -Infinity,
    forecast: ({ inner }, state) => forecastOf(algorithm.forecast(inner, state?.inner), state?.block),
    ...storageOf(algorithm),
    ...(algorithm.bytes && {
      bytes: ({ inner }) => (inner === undefined ? 0 : (algorithm.bytes?.(inner) ?? 0)),
    }),
  };
}

/** States are stored as those of the algorithm, with the block next to them if there is one. */
function storageOf(
  algorithm: AnyAlgorithm,
): Pick<Algorithm<Config, State>, "covers" | "pack" | "unpack" | "used"> {
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

/** The plain values of a rule's configuration, with those of its penalties. */
export function plainValuesOf(config: object): object {
  const { inner, ...own } = config as Partial<Config>;
  return Object.fromEntries(
    Object.entries({ ...inner, ...own }).filter(([, value]) =>
      ["number", "string", "boolean"].includes(typeof value),
    ),
  );
}

/** The algorithm's own record in a record that may have a block. */
export function withoutBlock(record: unknown): unknown {
  return hasBlock(record) ? record.inner : record;
}

export function blockIn(record: unknown): Block | undefined {
  return hasBlock(record) ? record.block : undefined;
}

function hasBlock(record: unknown): record is { readonly inner?: unknown; readonly block: Block } {
  return typeof record === "object" && record !== null && "block" in record;
}

function stateOf(inner: unknown, block: Block | undefined): State | undefined {
  return inner === undefined && block === undefined ? undefined : { inner, block };
}

function blocked(
  decision: AlgorithmDecision<unknown>,
  state: State | undefined,
  leftMs: number,
  cost: number,
): Decision {
  const estimate = { remaining: 0, resetAfterMs: Math.max(decision.resetAfterMs, leftMs) };
  if (cost === 0) return { allowed: true, state, ...estimate };
  if (decision.allowed) return { allowed: false, reason: "blocked", retryAfterMs: leftMs, ...estimate };
  const { reason, retryAfterMs } = decision;
  if (retryAfterMs === null && reason === "cost-over-limit")
    return { allowed: false, reason, retryAfterMs, ...estimate };
  const waitMs = retryAfterMs === null ? null : Math.max(leftMs, retryAfterMs);
  return { allowed: false, reason: "blocked", retryAfterMs: waitMs, ...estimate };
}

function unblocked(
  { blockForMs, maxBlockMs }: Config,
  decision: AlgorithmDecision<unknown>,
  state: State | undefined,
  nowMs: number,
): Decision {
  const before = state?.block;
  const isRemembered = forgottenAtMs(before) > nowMs;
  if (decision.allowed)
    return { ...decision, state: stateOf(decision.state, isRemembered ? before : undefined) };
  const { counted, ...denied } = decision;
  const forMs = isRemembered ? Math.min(maxBlockMs, GROWTH * (before?.forMs ?? 0)) : blockForMs;
  const block = { untilMs: nowMs + forMs, forMs };
  const { state: inner, ...after } = counted ?? { ...denied, state: state?.inner };
  const estimate: Denial = {
    ...after,
    remaining: 0,
    resetAfterMs: Math.max(after.resetAfterMs, forMs),
    retryAfterMs: after.retryAfterMs === null ? null : Math.max(after.retryAfterMs, forMs),
  };
  return { ...denied, counted: { ...estimate, state: { inner, block } } };
}

function forgottenAtMs(block: Block | undefined): number {
  return block === undefined ? -Infinity : block.untilMs + block.forMs;
}

function forecastOf(inner: Forecast, block: Block | undefined): Forecast {
  if (block === undefined) return inner;
  const { untilMs } = block;
  return {
    ...inner,
    // What passes at an instant also passes later if no call comes, so the later of the two instants is exact.
    passesAtMs(atMs, cost, outstanding) {
      const passesAtMs = inner.passesAtMs(atMs, cost, outstanding);
      return cost === 0 ? passesAtMs : Math.max(passesAtMs, untilMs);
    },
  };
}
