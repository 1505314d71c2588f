/** Patterns: the keys of an override, and the override of a key. Addresses are compared in canonical form. */
import type { Policy } from "../policies/policy.ts";
import { normaliseKey } from "./keys.ts";

/** Matches any characters, or none. */
export const WILDCARD = "*";
/** As for a key, in bytes of UTF-8. */
const MAX_PATTERN_BYTES = 512;

export const PATTERN_ALLOWED = `1 to ${MAX_PATTERN_BYTES} bytes of text: a key, or one with ${WILDCARD} for any run of characters`;
export const RANGE_ALLOWED =
  'an address, or a range such as 192.0.2.0/24 or 2001:db8::/32 (this policy has keyKind "ip"; an IPv6 address counts with its whole /64)';

export type Pattern =
  | { readonly kind: "exact"; readonly text: string }
  | GlobPattern
  /** All addresses with these first bits: of 32 in IPv4, of 64 in an IPv6 network. */
  | { readonly kind: "range"; readonly text: string; readonly address: Address; readonly bits: number };

/** The literal parts between the wildcards: the first begins a key, and the last ends it. */
interface GlobPattern {
  readonly kind: "glob";
  readonly text: string;
  readonly parts: readonly string[];
}

interface Address {
  readonly family: 4 | 6;
  readonly value: bigint;
}

/** Bits of an address that are counted. */
const FAMILY_BITS = { 4: 32, 6: 64 } as const;

/** Parses a pattern. Equal patterns get equal text: `2001:db8::1` becomes its /64. @returns `undefined`: invalid */
export function parsePattern(policy: Pick<Policy, "keyKind">, given: string): Pattern | undefined {
  if (policy.keyKind === "ip") return parseAddresses(policy, given);
  if (given === "" || !given.isWellFormed() || new TextEncoder().encode(given).length > MAX_PATTERN_BYTES)
    return undefined;
  if (!given.includes(WILDCARD)) return { kind: "exact", text: given };
  // Adjacent wildcards are one.
  const text = given.replaceAll(/\*+/g, WILDCARD);
  return { kind: "glob", text, parts: text.split(WILDCARD) };
}

/**
 * Whether all keys of a pattern begin with `keyPrefix`, read as text and as addresses: `10.1.0.0/0` is `0.0.0.0/0`,
 * and the caller may not know the policy's `keyKind`.
 */
export function isWithinPrefix(given: string, keyPrefix: string): boolean {
  const readings = (["text", "ip"] as const).flatMap((keyKind) => parsePattern({ keyKind }, given) ?? []);
  return readings.length > 0 && readings.every((pattern) => beginningOf(pattern).startsWith(keyPrefix));
}

function beginningOf(pattern: Pattern): string {
  if (pattern.kind === "exact") return pattern.text;
  if (pattern.kind === "glob") return pattern.parts[0] ?? "";
  const { address, bits } = pattern;
  const [partBits, mark, radix] = address.family === 4 ? [8, ".", 10] : [16, ":", 16];
  const parts = Array.from({ length: Math.floor(bits / partBits) }, (_, index) =>
    Number(networkOf(address, (index + 1) * partBits) & ((1n << BigInt(partBits)) - 1n)),
  );
  // An IPv6 address may omit its zeros.
  const zero = address.family === 6 ? parts.indexOf(0) : -1;
  return parts
    .slice(0, zero < 0 ? undefined : zero)
    .map((part) => `${part.toString(radix)}${mark}`)
    .join("");
}

/** Whether a key matches these parts, in time linear in the key. */
export function matchesParts(parts: readonly string[], key: string): boolean {
  const [first = "", last = ""] = [parts[0], parts.at(-1)];
  if (key.length < first.length + last.length || !key.startsWith(first) || !key.endsWith(last)) return false;
  let from = first.length;
  const end = key.length - last.length;
  for (const part of parts.slice(1, -1)) {
    const at = key.indexOf(part, from);
    if (at < 0 || at + part.length > end) return false;
    from = at + part.length;
  }
  return true;
}

export function addressOf(key: string): Address | undefined {
  if (!key.endsWith("/64")) {
    const bytes = key.split(".");
    if (bytes.length !== 4) return undefined;
    return { family: 4, value: bytes.reduce((sum, byte) => sum * 256n + BigInt(byte), 0n) };
  }
  const [before = ""] = key.slice(0, -"/64".length).split("::");
  const [a = "0", b = "0", c = "0", d = "0"] = before === "" ? [] : before.split(":");
  const value = [a, b, c, d].reduce((sum, part) => sum * 65_536n + BigInt(`0x${part}`), 0n);
  return { family: 6, value };
}

function networkOf({ family, value }: Address, bits: number): bigint {
  return value >> BigInt(FAMILY_BITS[family] - bits);
}

function parseAddresses(policy: Pick<Policy, "keyKind">, given: string): Pattern | undefined {
  const key = normaliseKey(policy, given);
  if (key !== undefined) return { kind: "exact", text: key };
  const { start = "", length = "" } = /^(?<start>[^/]+)\/(?<length>\d{1,3})$/.exec(given)?.groups ?? {};
  const first = normaliseKey(policy, start);
  const address = first === undefined ? undefined : addressOf(first);
  const bits = Number(length);
  if (first === undefined || address === undefined || length === "") return undefined;
  const { family } = address;
  if (bits > FAMILY_BITS[family]) return undefined;
  if (bits === FAMILY_BITS[family]) return { kind: "exact", text: first };
  const shift = BigInt(FAMILY_BITS[family] - bits);
  const network = { family, value: (address.value >> shift) << shift };
  return { kind: "range", text: `${textOf(network)}/${bits}`, address: network, bits };
}

function textOf({ family, value }: Address): string {
  if (family === 4) return [24n, 16n, 8n, 0n].map((shift) => String((value >> shift) & 255n)).join(".");
  const parts = [48n, 32n, 16n, 0n].map((shift) => ((value >> shift) & 65_535n).toString(16));
  return (normaliseKey({ keyKind: "ip" }, `${parts.join(":")}::`) ?? "").replace(/\/64$/, "");
}

/** A policy's patterns with several wildcards: those with the same beginning are tried one by one. */
export const MAX_MULTI_WILDCARD = 64;
/** How many lengths the texts before the first wildcard may have in a policy's patterns, and those after the last. */
export const MAX_BEGINNING_LENGTHS = 128;
export const MAX_END_LENGTHS = 32;

interface Found<Value> {
  readonly pattern: GlobPattern;
  readonly value: Value;
}

/** The patterns with one beginning: those with one wildcard by their end, the others by their text. */
interface Beginning<Value> {
  readonly byEnd: Map<string, Found<Value>>;
  readonly multiWildcards: Map<string, Found<Value>>;
}

type IsThere<Value> = (value: Value) => boolean;

class Lengths {
  readonly #counts = new Map<number, number>();
  all: readonly number[] = [];

  add({ length }: string, by: 1 | -1): void {
    const count = (this.#counts.get(length) ?? 0) + by;
    if (count === 0) this.#counts.delete(length);
    else this.#counts.set(length, count);
    if (count === 0 || count === by) this.all = [...this.#counts.keys()].toSorted((a, b) => b - a);
  }
}

/**
 * The overrides of one policy. The most specific one wins: the key itself, then the longest text before the first
 * wildcard, then the longest text after it; of ranges the narrowest.
 *
 * The search takes time that depends on the key, not on the number of overrides: a key is cut once for each length of
 * a beginning and each length of an end, and each end is searched under each matching beginning. So both lengths have
 * a bound.
 */
export class OverrideIndex<Value> {
  readonly #exact = new Map<string, Value>();
  readonly #beginnings = new Map<string, Beginning<Value>>();
  readonly #beginningLengths = new Lengths();
  readonly #endLengths = new Lengths();
  /** By the family of addresses: the ranges of each length by their bits, the narrowest first. */
  readonly #ranges: Record<4 | 6, { readonly bits: number; readonly networks: Map<bigint, Value> }[]> = {
    4: [],
    6: [],
  };
  #multiWildcards = 0;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get multiWildcards(): number {
    return this.#multiWildcards;
  }

  set(pattern: Pattern, value: Value): void {
    this.delete(pattern);
    this.#size += 1;
    if (pattern.kind === "exact") this.#exact.set(pattern.text, value);
    else if (pattern.kind === "glob") this.#addGlob(pattern, value);
    else this.#networksOf(pattern).set(networkOf(pattern.address, pattern.bits), value);
  }

  delete(pattern: Pattern): void {
    if (this.#remove(pattern)) this.#size -= 1;
  }

  /** The override that applies to a key, of those for which `isThere` is true. */
  find(key: string, isThere: IsThere<Value> = () => true): Value | undefined {
    if (this.#size === 0) return undefined;
    const exact = this.#exact.get(key);
    if (exact !== undefined && isThere(exact)) return exact;
    return this.#findGlob(key, isThere) ?? this.#findRange(key, isThere);
  }

  #findGlob(key: string, isThere: IsThere<Value>): Value | undefined {
    let ends: readonly string[] | undefined;
    for (const length of this.#beginningLengths.all) {
      const beginning = length > key.length ? undefined : this.#beginnings.get(key.slice(0, length));
      if (beginning === undefined) continue;
      ends ??= this.#endLengths.all
        .filter((each) => each <= key.length)
        .map((each) => key.slice(key.length - each));
      const found = endingIn(beginning, key, key.length - length, ends, isThere);
      if (found !== undefined) return found;
    }
    return undefined;
  }

  #findRange(key: string, isThere: IsThere<Value>): Value | undefined {
    if (this.#ranges[4].length + this.#ranges[6].length === 0) return undefined;
    const address = addressOf(key);
    if (address === undefined) return undefined;
    for (const { bits, networks } of this.#ranges[address.family]) {
      const found = networks.get(networkOf(address, bits));
      if (found !== undefined && isThere(found)) return found;
    }
    return undefined;
  }

  #addGlob(pattern: GlobPattern, value: Value): void {
    const [first = "", last = ""] = [pattern.parts[0], pattern.parts.at(-1)];
    let beginning = this.#beginnings.get(first);
    if (beginning === undefined) {
      beginning = { byEnd: new Map(), multiWildcards: new Map() };
      this.#beginnings.set(first, beginning);
      this.#beginningLengths.add(first, 1);
    }
    if (pattern.parts.length > 2) {
      this.#multiWildcards += 1;
      beginning.multiWildcards.set(pattern.text, { pattern, value });
    } else {
      this.#endLengths.add(last, 1);
      beginning.byEnd.set(last, { pattern, value });
    }
  }

  #remove(pattern: Pattern): boolean {
    if (pattern.kind === "exact") return this.#exact.delete(pattern.text);
    if (pattern.kind === "range")
      return this.#networksOf(pattern).delete(networkOf(pattern.address, pattern.bits));
    const [first = "", last = ""] = [pattern.parts[0], pattern.parts.at(-1)];
    const beginning = this.#beginnings.get(first);
    if (beginning === undefined) return false;
    if (pattern.parts.length > 2) {
      if (!beginning.multiWildcards.delete(pattern.text)) return false;
      this.#multiWildcards -= 1;
    } else {
      if (!beginning.byEnd.delete(last)) return false;
      this.#endLengths.add(last, -1);
    }
    if (beginning.byEnd.size + beginning.multiWildcards.size === 0) {
      this.#beginnings.delete(first);
      this.#beginningLengths.add(first, -1);
    }
    return true;
  }

  #networksOf({ address, bits }: Extract<Pattern, { kind: "range" }>): Map<bigint, Value> {
    const all = this.#ranges[address.family];
    const known = all.find((each) => each.bits === bits);
    if (known !== undefined) return known.networks;
    const networks = new Map<bigint, Value>();
    this.#ranges[address.family] = [...all, { bits, networks }].toSorted((a, b) => b.bits - a.bits);
    return networks;
  }
}

/** The pattern with the longest end, or the most text. `ends`: the ends of the key, the longest first. */
function endingIn<Value>(
  { byEnd, multiWildcards }: Beginning<Value>,
  key: string,
  maxEnd: number,
  ends: readonly string[],
  isThere: IsThere<Value>,
): Value | undefined {
  let best: Found<Value> | undefined;
  if (byEnd.size > 0)
    for (const end of ends) {
      const found = end.length > maxEnd ? undefined : byEnd.get(end);
      if (found === undefined || !isThere(found.value)) continue;
      best = found;
      break;
    }
  for (const each of multiWildcards.values())
    if (isMoreSpecific(each, best) && matchesParts(each.pattern.parts, key) && isThere(each.value))
      best = each;
  return best?.value;
}

/** More text wins, then alphabetical order, which makes the result independent of insertion order. */
function isMoreSpecific<Value>(one: Found<Value>, other: Found<Value> | undefined): boolean {
  if (other === undefined) return true;
  const [mine, theirs] = [one.pattern.text, other.pattern.text];
  const lengths = mine.replaceAll("*", "").length - theirs.replaceAll("*", "").length;
  return lengths === 0 ? mine < theirs : lengths > 0;
}
