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

export function ipAddressIn(key: string): Address | undefined {
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
  const address = first === undefined ? undefined : ipAddressIn(first);
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

type IsThere<Value> = (value: Value) => boolean;

/** The lengths of some texts, or of some ranges in bits, the longest first. */
class Lengths {
  readonly #counts = new Map<number, number>();
  all: readonly number[] = [];

  add(length: number, by: 1 | -1): void {
    const count = (this.#counts.get(length) ?? 0) + by;
    if (count === 0) this.#counts.delete(length);
    else this.#counts.set(length, count);
    if (count === 0 || count === by) this.all = [...this.#counts.keys()].toSorted((a, b) => b - a);
  }
}

/**
 * The overrides of one policy. The most specific one wins: the key itself, then the longest text before the first
 * wildcard, then the most text in all; of ranges the narrowest.
 *
 * The search takes time that depends on the key, not on the number of overrides: a key is cut once for each length of
 * a beginning and each length of an end, and each end is searched under each matching beginning. So both lengths have
 * a bound.
 */
export class OverrideIndex<Value> {
  readonly #exact = new Map<string, Value>();
  /** By beginning, by end, and by text. */
  readonly #globs = new Map<string, Map<string, Map<string, Found<Value>>>>();
  readonly #beginningLengths = new Lengths();
  readonly #endLengths = new Lengths();
  /** By `rangeName`. */
  readonly #ranges = new Map<string, Value>();
  readonly #rangeBits = { 4: new Lengths(), 6: new Lengths() };
  #size = 0;

  get size(): number {
    return this.#size;
  }

  set(pattern: Pattern, value: Value): void {
    this.delete(pattern);
    this.#size += 1;
    if (pattern.kind === "exact") this.#exact.set(pattern.text, value);
    else if (pattern.kind === "glob") {
      const [first = "", last = ""] = [pattern.parts[0], pattern.parts.at(-1)];
      const byEnd = this.#globs.get(first) ?? new Map<string, Map<string, Found<Value>>>();
      const byText = byEnd.get(last) ?? new Map<string, Found<Value>>();
      this.#globs.set(first, byEnd.set(last, byText.set(pattern.text, { pattern, value })));
      this.#countLengths(first, last, 1);
    } else {
      this.#ranges.set(rangeName(pattern.address, pattern.bits), value);
      this.#rangeBits[pattern.address.family].add(pattern.bits, 1);
    }
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
      const byEnd = length > key.length ? undefined : this.#globs.get(key.slice(0, length));
      if (byEnd === undefined) continue;
      ends ??= this.#endLengths.all
        .filter((each) => each <= key.length)
        .map((each) => key.slice(key.length - each));
      let best: Found<Value> | undefined;
      for (const end of ends)
        for (const each of byEnd.get(end)?.values() ?? [])
          if (isMoreSpecific(each, best) && matchesParts(each.pattern.parts, key) && isThere(each.value))
            best = each;
      if (best !== undefined) return best.value;
    }
    return undefined;
  }

  #findRange(key: string, isThere: IsThere<Value>): Value | undefined {
    const address = this.#ranges.size === 0 ? undefined : ipAddressIn(key);
    if (address === undefined) return undefined;
    for (const bits of this.#rangeBits[address.family].all) {
      const found = this.#ranges.get(rangeName(address, bits));
      if (found !== undefined && isThere(found)) return found;
    }
    return undefined;
  }

  #remove(pattern: Pattern): boolean {
    if (pattern.kind === "exact") return this.#exact.delete(pattern.text);
    if (pattern.kind === "range") {
      const { address, bits } = pattern;
      if (!this.#ranges.delete(rangeName(address, bits))) return false;
      this.#rangeBits[address.family].add(bits, -1);
      return true;
    }
    const [first = "", last = ""] = [pattern.parts[0], pattern.parts.at(-1)];
    const byEnd = this.#globs.get(first);
    const byText = byEnd?.get(last);
    if (byText?.delete(pattern.text) !== true) return false;
    this.#countLengths(first, last, -1);
    if (byText.size === 0) byEnd?.delete(last);
    if (byEnd?.size === 0) this.#globs.delete(first);
    return true;
  }

  #countLengths(first: string, last: string, by: 1 | -1): void {
    this.#beginningLengths.add(first.length, by);
    this.#endLengths.add(last.length, by);
  }
}

function rangeName(address: Address, bits: number): string {
  return `${address.family}/${bits}/${networkOf(address, bits)}`;
}

/** More text wins, then alphabetical order, which makes the result independent of insertion order. */
function isMoreSpecific<Value>(one: Found<Value>, other: Found<Value> | undefined): boolean {
  if (other === undefined) return true;
  const [mine, theirs] = [one.pattern.text, other.pattern.text];
  const lengths = mine.replaceAll("*", "").length - theirs.replaceAll("*", "").length;
  return lengths === 0 ? mine < theirs : lengths > 0;
}
