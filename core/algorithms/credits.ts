import { type Algorithm, configProblem } from "./algorithm.ts";
import { replay } from "./forecast.ts";

/**
 * Credits: units that are bought and used up, and that time does not return (prepaid balances, trials).
 *
 * A key begins with `initial` units and never has more than `limit`. Only a refund adds units, and only a debit takes
 * them. A cost passes when
 *
 *     spent + outstanding + cost  <=  initial
 *
 * Example: limit 10, initial 2. Two calls pass, and no wait is long enough for the third. After a refund of 5, 5 more
 * pass.
 *
 * The state is what has been *spent*, as in a token bucket, and below 0 when more was bought than used. So an
 * untouched key needs none, and when `initial` changes, what was spent stays spent. Times must be numbers, so the key
 * is untouched again at `END_MS`, in the far future: its record stays until it is reset. A key with fewer units than
 * `limit` is full only then, also an untouched one.
 *
 * The bound: units admitted in any interval, and not returned, are at most `limit` plus those added in it. There is no
 * worst boundary. What it is bad at: loss. Units lost by a crash or with an isolate would never return. So memory is
 * never ahead of storage, isolates reserve nothing, and the object writes each call.
 */
interface CreditsConfig {
  readonly limit: number;
  readonly initial: number;
}

interface CreditsState {
  /** Units used minus units added. Never 0: that is an untouched key. */
  readonly spent: number;
}

type Config = CreditsConfig;
type State = CreditsState;
/** What returns then never does: the year 144,683, in milliseconds since the Unix epoch. Sums with it are exact. */
export const END_MS = 2 ** 52;

export const credits: Algorithm<Config, State> = {
  name: "credits",
  fields: { limit: "units", initial: "count?" },
  neverRefills: true,

  configure(fields) {
    const limit = Number(fields["limit"]);
    const initial = Number(fields["initial"] ?? limit);
    if (initial > limit) return configProblem("initial", `at most the limit of ${limit}`);
    return { limit, initial };
  },

  capacity: (config) => config.limit,
  quota: (config) => ({ units: config.limit }),
  localDecisions: () => ({ admits: false, denies: true }),
  refillMs: () => END_MS,

  scale({ limit, initial }, part) {
    const scaled = Math.floor(limit * part);
    return scaled < 1 ? undefined : { limit: scaled, initial: Math.floor(initial * part) };
  },

  decide(config, state, nowMs, cost, outstanding) {
    const spent = spentAt(config, state, nowMs);
    const free = config.initial - spent - outstanding;
    if (cost === 0 || cost <= free) {
      const after = stateOf(spent + cost);
      const remaining = Math.max(0, free - cost);
      return { allowed: true, state: after, remaining, resetAfterMs: fullAfterMs(config, after, nowMs) };
    }
    return {
      allowed: false,
      reason: cost > config.limit ? "cost-over-limit" : "quota",
      retryAfterMs: null,
      remaining: Math.max(0, free),
      resetAfterMs: fullAfterMs(config, stateOf(spent), nowMs),
    };
  },

  debit: (config, state, nowMs, units) => stateOf(spentAt(config, state, nowMs) + units),
  maxDebit: (config, state, nowMs) => Number.MAX_SAFE_INTEGER - spentAt(config, state, nowMs),
  // Time returns nothing, so a charge of any age can be returned in full.
  credit: (config, state, nowMs, units) =>
    stateOf(Math.max(spentAt(config, state, nowMs) - units, config.initial - config.limit)),

  untouchedAtMs: (_, state, uses) =>
    state === undefined && (uses?.endsMs.length ?? 0) === 0 ? -Infinity : END_MS,
  fullAtMs: (config, state, nowMs, uses) =>
    (uses?.endsMs.length ?? 0) > 0 ? END_MS : nowMs + fullAfterMs(config, state, nowMs),

  forecast: (config, state) => replay(credits, config, state, () => true),

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const before = spentAt(config, stored as State | undefined, nowMs) + ahead;
    return before >= spentAt(config, state, nowMs) + outstanding;
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as State,
  used: (record) => Math.max(0, (record as State | null)?.spent ?? 0),
};

/** If the limit was lowered, a key with more units has that limit. */
function spentAt({ limit, initial }: Config, state: State | undefined, nowMs: number): number {
  return nowMs >= END_MS ? 0 : Math.max(state?.spent ?? 0, initial - limit);
}

function stateOf(spent: number): State | undefined {
  return spent === 0 ? undefined : { spent };
}

/** With fewer units than the limit a key is never full, also when it began so and is untouched. */
function fullAfterMs(config: Config, state: State | undefined, nowMs: number): number {
  const isFull = spentAt(config, state, nowMs) === config.initial - config.limit;
  return isFull ? 0 : Math.max(0, END_MS - nowMs);
}
