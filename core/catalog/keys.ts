import type { Policy } from "../policies/policy.ts";

export const ADDRESS_ALLOWED = 'an IPv4 or IPv6 address (this policy has keyKind "ip")';

/** One IPv6 host has 2^64 addresses, so only the prefix of its network can be limited. */
const PREFIX_BITS = 64;
const PARTS = 8;

const IPV4 = /^(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}$/;
/** No zone (%eth0): it has no meaning on another host. */
const IPV6 = /^[\da-f:.]+$/i;

/**
 * Text and IPv4 addresses are not changed; an IPv4-mapped address (`::ffff:192.0.2.1`) becomes IPv4, and any other
 * IPv6 address its /64 (`2001:db8:1:2::/64`). Idempotent. `undefined`: the policy requires an address, and this is
 * none.
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

function partsOf(address: string): readonly number[] | undefined {
  const host = IPV6.test(address) ? hostOf(address) : undefined;
  if (host === undefined) return undefined;
  const [before = [], after = []] = host
    .split("::")
    .map((side) => (side === "" ? [] : side.split(":").map((part) => Number.parseInt(part, 16))));
  const missing = PARTS - before.length - after.length;
  return [...before, ...Array.from({ length: missing }, () => 0), ...after];
}

/** The address as in RFC 5952. Every runtime can parse addresses: they are hosts of URLs. */
function hostOf(address: string): string | undefined {
  try {
    return new URL(`http://[${address}]/`).hostname.slice(1, -1);
  } catch {
    return undefined;
  }
}
