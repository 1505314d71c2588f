/**
 * Finds the override of a key, in time that grows with the key and not with the number of overrides. The most specific one
 * wins: the key itself, then the longest text before the first wildcard, then the longest text after it; of ranges the
 * narrowest.
 *
 * A key is cut once for each length that a beginning has, and once for each that an end has. Then each beginning that fits
 * is looked up with each end that fits. So both lengths have a bound.
 */
import type { OverrideFields } from "./calls.ts";
import { addressOf, type GlobPattern, matchesParts, networkOf, type Pattern } from "./patterns.ts";

/** So many patterns of a policy may have more than one wildcard: those with the same beginning are tried one by one. */
export const MAX_MULTI_WILDCARD = 64;
/** How many lengths the texts before the first wildcard may have in the patterns of a policy, and those after the last. */
export const MAX_BEGINNING_LENGTHS = 128;
export const MAX_END_LENGTHS = 32;

interface Found<Value> {
  readonly pattern: GlobPattern;
  readonly value: Value;
}

/** The patterns with one beginning: those with one wildcard by what they end with, the others as a list. */
interface Beginning<Value> {
  readonly byEnd: Map<string, Found<Value>>;
  readonly manifold: Map<string, Found<Value>>;
}

/** Whether an override is there. */
type Counts<Value> = (value: Value) => boolean;
const everyOne = () => true;

/** The ranges of one length. */
interface Ranges<Value> {
  readonly bits: number;
  readonly networks: Map<bigint, Value>;
}

/** Texts by their lengths, the longest first: whoever looks for the longest that begins a key tries each length once. */
class ByLength<Value> {
  readonly texts = new Map<string, Value>();
  readonly #counts = new Map<number, number>();
  #lengths: readonly number[] = [];

  get lengths(): readonly number[] {
    return this.#lengths;
  }

  set(text: string, value: Value): void {
    if (!this.texts.has(text)) this.#count(text.length, 1);
    this.texts.set(text, value);
  }

  delete(text: string): void {
    if (this.texts.delete(text)) this.#count(text.length, -1);
  }

  #count(length: number, by: number): void {
    const count = (this.#counts.get(length) ?? 0) + by;
    if (count === 0) this.#counts.delete(length);
    else this.#counts.set(length, count);
    this.#lengths = [...this.#counts.keys()].toSorted((a, b) => b - a);
  }
}

/** The overrides of one policy. */
export class OverrideIndex<Value> {
  readonly #exact = new Map<string, Value>();
  readonly #beginnings = new ByLength<Beginning<Value>>();
  readonly #ends = new ByLength<number>();
  /** By the family of addresses: the ranges of each length by their bits, the narrowest first. */
  readonly #ranges: Record<4 | 6, Ranges<Value>[]> = { 4: [], 6: [] };
  #manifold = 0;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** How many patterns have more than one wildcard. */
  get multiWildcards(): number {
    return this.#manifold;
  }

  /** Adds an override, or replaces the one of the same pattern. */
  set(pattern: Pattern, value: Value): void {
    this.delete(pattern);
    this.#size += 1;
    if (pattern.kind === "exact") this.#exact.set(pattern.text, value);
    else if (pattern.kind === "glob") this.#addGlob(pattern, value);
    else
      this.#rangesOf(pattern.address.family, pattern.bits).set(
        networkOf(pattern.address, pattern.bits),
        value,
      );
  }

  /** Removes the override of a pattern, if there is one. */
  delete(pattern: Pattern): void {
    if (this.#remove(pattern)) this.#size -= 1;
  }

  /**
   * The override that applies to a key; `undefined`: none.
   *
   * @param counts says of an override whether it is there at all
   */
  find(key: string, counts: Counts<Value> = everyOne): Value | undefined {
    if (this.#size === 0) return undefined;
    const exact = this.#exact.get(key);
    if (exact !== undefined && counts(exact)) return exact;
    return this.#findGlob(key, counts) ?? this.#findRange(key, counts);
  }

  #findGlob(key: string, counts: Counts<Value>): Value | undefined {
    let ends: readonly string[] | undefined;
    for (const length of this.#beginnings.lengths) {
      const beginning = length > key.length ? undefined : this.#beginnings.texts.get(key.slice(0, length));
      if (beginning === undefined) continue;
      ends ??= this.#ends.lengths
        .filter((each) => each <= key.length)
        .map((each) => key.slice(key.length - each))
        .filter((end) => this.#ends.texts.has(end));
      const found = endingIn(beginning, key, key.length - length, ends, counts);
      if (found !== undefined) return found;
    }
    return undefined;
  }

  #findRange(key: string, counts: Counts<Value>): Value | undefined {
    if (this.#ranges[4].length + this.#ranges[6].length === 0) return undefined;
    const address = addressOf(key);
    if (address === undefined) return undefined;
    for (const { bits, networks } of this.#ranges[address.family]) {
      const found = networks.get(networkOf(address, bits));
      if (found !== undefined && counts(found)) return found;
    }
    return undefined;
  }

  #addGlob(pattern: GlobPattern, value: Value): void {
    const [first = "", last = ""] = [pattern.parts[0], pattern.parts.at(-1)];
    const beginning = this.#beginnings.texts.get(first) ?? { byEnd: new Map(), manifold: new Map() };
    this.#beginnings.set(first, beginning);
    if (pattern.parts.length > 2) {
      this.#manifold += 1;
      beginning.manifold.set(pattern.text, { pattern, value });
      return;
    }
    beginning.byEnd.set(last, { pattern, value });
    this.#ends.set(last, (this.#ends.texts.get(last) ?? 0) + 1);
  }

  #remove(pattern: Pattern): boolean {
    if (pattern.kind === "exact") return this.#exact.delete(pattern.text);
    if (pattern.kind === "range")
      return this.#rangesOf(pattern.address.family, pattern.bits).delete(
        networkOf(pattern.address, pattern.bits),
      );
    const [first = "", last = ""] = [pattern.parts[0], pattern.parts.at(-1)];
    const beginning = this.#beginnings.texts.get(first);
    if (beginning === undefined) return false;
    const isManifold = pattern.parts.length > 2;
    const isGone = isManifold ? beginning.manifold.delete(pattern.text) : beginning.byEnd.delete(last);
    if (!isGone) return false;
    if (isManifold) this.#manifold -= 1;
    else this.#letEndGo(last);
    if (beginning.byEnd.size + beginning.manifold.size === 0) this.#beginnings.delete(first);
    return true;
  }

  #letEndGo(last: string): void {
    const others = (this.#ends.texts.get(last) ?? 1) - 1;
    if (others === 0) this.#ends.delete(last);
    else this.#ends.set(last, others);
  }

  #rangesOf(family: 4 | 6, bits: number): Map<bigint, Value> {
    const all = this.#ranges[family];
    const known = all.find((each) => each.bits === bits);
    if (known !== undefined) return known.networks;
    const networks = new Map<bigint, Value>();
    this.#ranges[family] = [...all, { bits, networks }].toSorted((a, b) => b.bits - a.bits);
    return networks;
  }
}

/**
 * Of the patterns with this beginning the one with the longest end, or the most text.
 *
 * @param most the length of what is left of the key after the beginning
 * @param ends what the key ends with, of all ends that patterns have, the longest first
 */
function endingIn<Value>(
  { byEnd, manifold }: Beginning<Value>,
  key: string,
  most: number,
  ends: readonly string[],
  counts: Counts<Value>,
): Value | undefined {
  let best: Found<Value> | undefined;
  if (byEnd.size > 0)
    for (const end of ends) {
      const found = end.length > most ? undefined : byEnd.get(end);
      if (found === undefined || !counts(found.value)) continue;
      best = found;
      break;
    }
  for (const each of manifold.values())
    if (isMoreSpecific(each, best) && matchesParts(each.pattern.parts, key) && counts(each.value))
      best = each;
  return best?.value;
}

/** More text wins; of as much the one that comes first by its letters, so that the order of insertion does not matter. */
function isMoreSpecific<Value>(one: Found<Value>, other: Found<Value> | undefined): boolean {
  if (other === undefined) return true;
  const [mine, theirs] = [one.pattern.text, other.pattern.text];
  const lengths = mine.replaceAll("*", "").length - theirs.replaceAll("*", "").length;
  return lengths === 0 ? mine < theirs : lengths > 0;
}

/** An override, by its pattern. */
export interface Overriding {
  readonly pattern: string;
  readonly fields: OverrideFields;
}

/** What is in force for a key. */
interface FoundOverride {
  /** Absent: those that the key had have ended. */
  readonly override?: Overriding;
  /** When the last one of those ended. Absent: none has. */
  readonly sinceMs?: number;
}

interface ExpiringOverride extends FoundOverride {
  /** NaN: it does not end by itself. */
  readonly endsAtMs: number;
}

/**
 * The overrides of one policy. One that has ended is as if it were not there, from its instant on: the catalog writes so a
 * moment later, and isolates hear of that when they ask again.
 */
export class ExpiringOverrides {
  readonly #index = new OverrideIndex<ExpiringOverride>();

  get size(): number {
    return this.#index.size;
  }

  /** Adds an override, or replaces the one of the same pattern. */
  set(pattern: Pattern, override: Overriding): void {
    this.#index.set(pattern, { override, endsAtMs: Date.parse(String(override.fields["expiresAt"])) });
  }

  delete(pattern: Pattern): void {
    this.#index.delete(pattern);
  }

  /** What is in force for a key at this instant; `undefined`: no override is for it, and none has ended. */
  find(key: string, nowMs: number): FoundOverride | undefined {
    const first = this.#index.find(key);
    if (first === undefined || !hasEnded(first, nowMs)) return first;
    let sinceMs = first.endsAtMs;
    const next = this.#index.find(key, (each) => {
      if (!hasEnded(each, nowMs)) return true;
      sinceMs = Math.max(sinceMs, each.endsAtMs);
      return false;
    });
    return { ...(next?.override && { override: next.override }), sinceMs };
  }
}

function hasEnded({ endsAtMs }: ExpiringOverride, nowMs: number): boolean {
  return endsAtMs <= nowMs;
}
