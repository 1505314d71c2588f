/** Patterns: which keys an override is for. Always by the key as it is counted, so an address by its canonical form. */
import type { Policy } from "../policies/policy.ts";

/** Stands for any run of characters, also for none. */
export const WILDCARD = "*";
/** The longest pattern, in bytes of UTF-8: that of a key. */
const MAX_PATTERN_BYTES = 512;

/** What errors say is allowed. */
export const PATTERN_ALLOWED = `1 to ${MAX_PATTERN_BYTES} bytes of text: a key, or one with ${WILDCARD} for any run of characters`;
export const RANGE_ALLOWED =
  'an address, or a range such as 192.0.2.0/24 or 2001:db8::/32 (this policy has keyKind "ip"; an IPv6 address counts with its whole /64)';

/** A pattern, read. */
export type Pattern = ExactPattern | GlobPattern | RangePattern;

/** One key. */
interface ExactPattern {
  readonly kind: "exact";
  readonly text: string;
}

/** The literal parts between the wildcards: the first begins a key, and the last ends it. */
export interface GlobPattern {
  readonly kind: "glob";
  readonly text: string;
  readonly parts: readonly string[];
}

/** All addresses that begin with these bits: of the 32 of IPv4, or of the 64 of an IPv6 network. */
interface RangePattern {
  readonly kind: "range";
  readonly text: string;
  readonly address: Address;
  readonly bits: number;
}

/** An address as a number, and which kind it is. */
interface Address {
  readonly family: 4 | 6;
  readonly value: bigint;
}

/** Bits of an address that are counted. */
const FAMILY_BITS = { 4: 32, 6: 64 } as const;

/**
 * Reads a pattern. Those of one meaning get one text: `2001:db8::1` is the /64 that is counted for it.
 *
 * @returns `undefined`: it is none
 */
export function parsePattern(policy: Pick<Policy, "keyKind">, given: string): Pattern | undefined {
  if (policy.keyKind === "ip") return parseAddresses(policy, given);
  if (given === "" || !given.isWellFormed() || bytesOf(given) > MAX_PATTERN_BYTES) return undefined;
  if (!given.includes(WILDCARD)) return { kind: "exact", text: given };
  // Two wildcards side by side are one.
  const text = given.replaceAll(/\*+/g, WILDCARD);
  return { kind: "glob", text, parts: text.split(WILDCARD) };
}

/**
 * Whether all keys that a pattern is for begin with `keyPrefix`. What is stored is the pattern as it is read, and not as it
 * was typed: `10.1.0.0/0` is `0.0.0.0/0`. Whoever asks may not know of which kind the policy's keys are, so this holds for
 * each kind by which the pattern can be read.
 */
export function isWithinPrefix(given: string, keyPrefix: string): boolean {
  const readings = (["text", "ip"] as const).flatMap((keyKind) => parsePattern({ keyKind }, given) ?? []);
  return readings.length > 0 && readings.every((pattern) => beginningOf(pattern).startsWith(keyPrefix));
}

/** The text with which all keys of a pattern begin. */
function beginningOf(pattern: Pattern): string {
  if (pattern.kind === "exact") return pattern.text;
  if (pattern.kind === "glob") return pattern.parts[0] ?? "";
  const { address, bits } = pattern;
  const [partBits, mark, radix] = address.family === 4 ? [8, ".", 10] : [16, ":", 16];
  const whole = Array.from({ length: Math.floor(bits / partBits) }, (_, index) =>
    Number(networkOf(address, (index + 1) * partBits) & ((1n << BigInt(partBits)) - 1n)),
  );
  // An IPv6 address may be written without its zeros.
  const zero = address.family === 6 ? whole.indexOf(0) : -1;
  const parts = zero < 0 ? whole : whole.slice(0, zero);
  return parts.map((part) => `${part.toString(radix)}${mark}`).join("");
}

/** Whether a key is one of those that the pattern is for. It takes time that grows with the key, and no more. */
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

/** A canonical address as a number; `undefined`: it is none. */
export function addressOf(key: string): Address | undefined {
  const network = key.endsWith("/64") ? key.slice(0, -3) : undefined;
  if (network === undefined) {
    const bytes = key.split(".");
    if (bytes.length !== 4) return undefined;
    return { family: 4, value: bytes.reduce((sum, byte) => sum * 256n + BigInt(byte), 0n) };
  }
  const [before = ""] = network.split("::");
  const parts = before === "" ? [] : before.split(":");
  const [a = "0", b = "0", c = "0", d = "0"] = parts;
  const value = [a, b, c, d].reduce((sum, part) => sum * 65_536n + BigInt(`0x${part}`), 0n);
  return { family: 6, value };
}

/** The first bits of an address, as a key of a map. */
export function networkOf({ family, value }: Address, bits: number): bigint {
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

function bytesOf(text: string): number {
  return new TextEncoder().encode(text).length;
}

/** What errors say is allowed, when a policy's keys are addresses. */
export const ADDRESS_ALLOWED = 'an IPv4 or IPv6 address (this policy has keyKind "ip")';

/** One IPv6 host has 2^64 addresses, so only the prefix of its network can be limited. */
const PREFIX_BITS = 64;
const PARTS = 8;

const IPV4 = /^(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}$/;
/** What an IPv6 address may consist of. It may have no zone (%eth0), which means nothing on another host. */
const IPV6 = /^[\da-f:.]+$/i;

/**
 * The key that is counted. A text stays as it is. An IPv4 address stays as it is, and is taken out of an IPv6 address
 * that contains it (`::ffff:192.0.2.1`). Any other IPv6 address becomes its /64 (`2001:db8:1:2::/64`). A normalised
 * key is normalised to itself.
 *
 * @returns `undefined`: the policy wants an address, and this is none
 */
export function normaliseKey(policy: Pick<Policy, "keyKind">, key: string): string | undefined {
  if (policy.keyKind === "text" || IPV4.test(key)) return key;
  const suffix = `/${PREFIX_BITS}`;
  const address = key.endsWith(suffix) ? key.slice(0, -suffix.length) : key;
  const parts = partsOf(address);
  if (parts === undefined) return undefined;
  const [high = 0, low = 0] = parts.slice(-2);
  const isMapped = parts[5] === 0xffff && parts.slice(0, 5).every((part) => part === 0);
  if (isMapped) return address === key ? `${high >> 8}.${high & 255}.${low >> 8}.${low & 255}` : undefined;
  const network = parts.slice(0, PREFIX_BITS / 16).map((part) => part.toString(16));
  return `${hostOf(`${network.join(":")}::`) ?? ""}${suffix}`;
}

/** The eight parts of an IPv6 address; `undefined`: it is none. */
function partsOf(address: string): readonly number[] | undefined {
  const host = IPV6.test(address) ? hostOf(address) : undefined;
  if (host === undefined) return undefined;
  const [before = [], after = []] = host
    .split("::")
    .map((side) => (side === "" ? [] : side.split(":").map((part) => Number.parseInt(part, 16))));
  const missing = PARTS - before.length - after.length;
  return [...before, ...Array.from({ length: missing }, () => 0), ...after];
}

/** The address as RFC 5952 writes it. Every runtime can parse addresses: they are hosts of URLs. */
function hostOf(address: string): string | undefined {
  try {
    return new URL(`http://[${address}]/`).hostname.slice(1, -1);
  } catch {
    return undefined;
  }
}
