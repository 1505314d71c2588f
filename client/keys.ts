import * as ipaddr from "ipaddr.js";
import type { Policy } from "../core/policies/policy.ts";

/** What errors say is allowed, when a policy's keys are addresses. */
export const ADDRESS_ALLOWED = 'an IPv4 or IPv6 address (this policy has keyKind "ip")';

/** One IPv6 host has 2^64 addresses, so only the prefix of its network can be limited. */
const PREFIX_BITS = 64;

/** An "IPv4-compatible" address: RFC 4291, section 2.5.5.1. */
const OLD_IPV4 = /^::\d+\.\d+\.\d+\.\d+$/;

/**
 * The key that is counted. A text stays as it is. An IPv4 address stays as it is, and is taken out of an IPv6 address
 * that contains it (`::ffff:192.0.2.1`). Any other IPv6 address becomes its /64 (`2001:db8:1:2::/64`). A normalised
 * key is normalised to itself.
 *
 * @returns `undefined`: the policy wants an address, and this is none
 */
export function normaliseKey(policy: Pick<Policy, "keyKind">, key: string): string | undefined {
  if (policy.keyKind === "text") return key;
  if (ipaddr.IPv4.isValidFourPartDecimal(key)) return key;
  const suffix = `/${PREFIX_BITS}`;
  const address = key.endsWith(suffix) ? key.slice(0, -suffix.length) : key;
  // ipaddr.js accepts a zone (%eth0), but it has no meaning on another host.
  if (address.includes("%") || !ipaddr.IPv6.isValid(address)) return undefined;
  // The old form ::192.0.2.1 is no mapped address, though ipaddr.js reads it as one: it is ::c000:201 in other words.
  const parsed = ipaddr.IPv6.parse(OLD_IPV4.test(address) ? "::" : address);
  if (parsed.isIPv4MappedAddress()) return address === key ? parsed.toIPv4Address().toString() : undefined;
  const network = new ipaddr.IPv6([...parsed.parts.slice(0, PREFIX_BITS / 16), 0, 0, 0, 0]);
  return `${network.toRFC5952String()}${suffix}`;
}
