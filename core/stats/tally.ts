/**
 * What one isolate has counted and not sent yet. A decision is counted in an array at a place that its words give: no
 * text is made before it is sent.
 */
import type { Decision } from "../protocol/decision.ts";
import {
  type ComparisonCounts,
  comparedSeries,
  type Counts,
  keysOfCandidate,
  MAX_POLICIES,
  OTHER_POLICIES,
  seriesOf,
} from "./counts.ts";
import { bucketOf, SUM, type Metric } from "./families.ts";
import type { Content, PolicyKeys } from "./messages.ts";
import { TopKeys } from "./top-keys.ts";

/** So many policies of one message have their top keys in it: of 64 keys each, twice, some 10,000 keys. */
export const MAX_WITH_KEYS = 100;

/** A word that is not here counts as the last. They are not stored in this order: it may change. */
const REASONS = [
  "ok",
  "quota",
  "min-interval",
  "cost-over-limit",
  "shed",
  "blocked",
  "wait-timeout",
  "queue-full",
  "shadow",
  "degraded",
  "refused",
  "other",
] as const;
const SOURCES = ["isolate", "object", "pool", "fallback", "other"] as const;
const OUTCOMES = ["admitted", "denied"] as const;
const CELLS = REASONS.length * SOURCES.length * OUTCOMES.length;

/** What is counted of a decision. */
export type CountedDecision = Pick<Decision, "policy" | "key" | "success" | "reason" | "source" | "waitedMs">;

/** Takes what has to be counted. */
export interface Counter {
  /** Counts a decision that a caller is told. */
  decided(told: CountedDecision): void;
  /** Counts something else, by the values of its labels. */
  add(metric: Metric, labels: readonly string[], count?: number): void;
  /** Counts a duration. */
  lasted(metric: Metric, labels: readonly string[], durationMs: number): void;
}

/** The counts of one policy. */
interface Slot {
  readonly policy: string;
  readonly cells: Uint32Array;
  readonly denied: TopKeys | undefined;
  readonly active: TopKeys | undefined;
}

/** Counts for one isolate. */
export class Tally implements Counter {
  readonly #slots = new Map<string, Slot>();
  #last: Slot | undefined;
  readonly #others = new Map<string, number>();
  readonly #mayHaveKeys: (policy: string) => boolean;

  /** @param mayHaveKeys whether keys of a policy may be sent: those of a jurisdiction must not leave it */
  constructor(mayHaveKeys: (policy: string) => boolean = () => true) {
    this.#mayHaveKeys = mayHaveKeys;
  }

  decided(told: CountedDecision): void {
    const last = this.#last;
    const slot = last !== undefined && last.policy === told.policy ? last : this.#slotOf(told.policy);
    const place = placeOf(told);
    slot.cells[place] = (slot.cells[place] ?? 0) + 1;
    slot.active?.count(told.key);
    if (!told.success) slot.denied?.count(told.key);
    if (told.waitedMs !== undefined) this.lasted("waited_seconds", [slot.policy], told.waitedMs);
  }

  /** Counts what a candidate decided beside its policy. */
  compared({ policy, version, key, deniedBy }: ComparisonCounts): void {
    const series = comparedSeries(policy, version, deniedBy);
    this.#others.set(series, (this.#others.get(series) ?? 0) + 1);
    if (deniedBy === "candidate") this.#slotOf(keysOfCandidate(policy, version)).denied?.count(key);
  }

  add(metric: Metric, labels: readonly string[], count = 1): void {
    const series = seriesOf(metric, labels);
    this.#others.set(series, (this.#others.get(series) ?? 0) + count);
  }

  lasted(metric: Metric, labels: readonly string[], durationMs: number): void {
    // A clock may be put back meanwhile.
    const ms = Math.max(0, durationMs);
    this.add(metric, [...labels, bucketOf(ms)]);
    this.add(metric, [...labels, SUM], ms);
  }

  /** Takes all that has been counted; `undefined`: there is nothing. */
  take(): Content | undefined {
    if (this.#slots.size + this.#others.size === 0) return undefined;
    const counts: Record<string, number> = Object.fromEntries(this.#others);
    const keys: PolicyKeys[] = [];
    for (const { policy, cells, denied, active } of this.#slots.values()) {
      for (const [place, count] of cells.entries())
        if (count > 0) counts[seriesOf("decisions", [policy, ...wordsOf(place)])] = count;
      if (active !== undefined && denied !== undefined)
        keys.push({ policy, active: active.summary, denied: denied.summary });
    }
    this.#slots.clear();
    this.#others.clear();
    this.#last = undefined;
    return { counts: counts satisfies Counts, keys };
  }

  /** The policy's slot. Of very many policies the later ones share one, in which no keys are counted. */
  #slotOf(policy: string): Slot {
    const isFull = !this.#slots.has(policy) && this.#slots.size >= MAX_POLICIES;
    const name = isFull ? OTHER_POLICIES : policy;
    const slot = this.#slots.get(name) ?? this.#begin(name);
    this.#last = slot;
    return slot;
  }

  #begin(policy: string): Slot {
    const hasRoom = policy !== OTHER_POLICIES && this.#slots.size < MAX_WITH_KEYS;
    const hasKeys = hasRoom && this.#mayHaveKeys(policy);
    const top = () => (hasKeys ? new TopKeys() : undefined);
    const slot = { policy, cells: new Uint32Array(CELLS), denied: top(), active: top() };
    this.#slots.set(policy, slot);
    return slot;
  }
}

const REASON_PLACES = new Map<string, number>(REASONS.map((word, place) => [word, place]));
const SOURCE_PLACES = new Map<string, number>(SOURCES.map((word, place) => [word, place]));

function placeOf({ success, reason, source }: CountedDecision): number {
  // Nearly all decisions are one of these, and comparing costs less than looking up.
  const why =
    reason === "ok" ? 0 : reason === "quota" ? 1 : (REASON_PLACES.get(reason) ?? REASONS.length - 1);
  const who = source === "isolate" ? 0 : (SOURCE_PLACES.get(source) ?? SOURCES.length - 1);
  return (why * SOURCES.length + who) * OUTCOMES.length + (success ? 0 : 1);
}

/** The outcome, the reason and the source of a place. */
function wordsOf(place: number): string[] {
  const rest = Math.floor(place / OUTCOMES.length);
  const [outcome, source] = [OUTCOMES[place % OUTCOMES.length], SOURCES[rest % SOURCES.length]];
  return [outcome ?? "", REASONS[Math.floor(rest / SOURCES.length)] ?? "", source ?? ""];
}
