/** Where notices go: `NOTICES`, a Queue of Cloudflare or a webhook, and the secret that signs what goes there. */
import { clip, meant, violation } from "../violations.ts";
import { isTable, type Table } from "./changed-tables.ts";
import type { Policies } from "./policy.ts";

/** A Queue, as far as it is used. */
export interface NoticeQueue {
  send(body: object): Promise<unknown>;
}

/** Where notices go. */
export type NoticeTarget =
  | { readonly queue: NoticeQueue }
  | { readonly webhook: string; readonly secret: string };

interface NoticeVars {
  readonly NOTICES?: unknown;
  readonly NOTICES_SECRET?: unknown;
}

const TARGET_ALLOWED =
  'the binding of a Queue, or a table of one field, { webhook = "https://..." }, which may be JSON text';
const URL_ALLOWED =
  "an https address of a public host, without user, password or fragment, of at most 2,048 characters";
const LOCAL_ALLOWED = `${URL_ALLOWED}, or an http or https address of this machine (localhost, 127.0.0.1 or [::1])`;
const MAX_URL_LENGTH = 2_048;

/**
 * @param isHere whether the limiter is served on its owner's machine: then a webhook may be there too
 * @returns `undefined`: nobody is told. @throws Error with the allowed values
 */
export function parseNotices(
  { NOTICES, NOTICES_SECRET }: NoticeVars,
  isHere: boolean,
  policies: Policies = new Map(),
): NoticeTarget | undefined {
  const target = requireNotices(NOTICES, isHere, policies);
  return target === undefined || "queue" in target
    ? target
    : { ...target, secret: parseSecret(NOTICES_SECRET) };
}

/** The same without the secret, which only the deployed worker knows. */
export function requireNotices(
  given: unknown,
  isHere: boolean,
  policies: Policies,
): { readonly queue: NoticeQueue } | { readonly webhook: string } | undefined {
  if (given !== undefined)
    return isQueue(given) ? { queue: given } : { webhook: parseWebhook(given, isHere) };
  const silent = [...policies.values()].find(({ notify }) => notify !== undefined);
  if (silent === undefined) return undefined;
  return refuse(`policy ${JSON.stringify(silent.name)}: ${unsaidNotices(silent.notify)}`);
}

/** A policy has thresholds, and there is nobody to tell. */
export function unsaidNotices(notify: unknown): string {
  return violation(["notify"], notify, "left out, or with NOTICES, which says where notices go");
}

/** @throws Error with the allowed addresses */
export function parseWebhook(given: unknown, isHere: boolean): string {
  const { webhook, ...others } = tableIn(given) ?? {};
  const [stray] = Object.keys(others);
  if (stray !== undefined)
    return refuse(
      `NOTICES.${clip(stray)} is not a field${meant(stray, ["webhook"])}: NOTICES must be ${TARGET_ALLOWED}`,
    );
  if (webhook === undefined) return refuse(violation(["NOTICES"], given, TARGET_ALLOWED));
  if (typeof webhook === "string" && isAllowed(webhook, isHere)) return webhook;
  return refuse(violation(["NOTICES", "webhook"], webhook, isHere ? LOCAL_ALLOWED : URL_ALLOWED));
}

const SECRET = /^whsec_([A-Za-z0-9+/]{32,88}={0,2})$/;
const MIN_SECRET_BYTES = 24;
const MAX_SECRET_BYTES = 64;
const SECRET_ALLOWED = `"whsec_" and ${MIN_SECRET_BYTES} to ${MAX_SECRET_BYTES} random bytes as base64; make one with: echo "whsec_$(openssl rand -base64 32)"`;

/** The error never shows the secret. */
function parseSecret(given: unknown): string {
  const [, text = ""] = typeof given === "string" ? (SECRET.exec(given.trim()) ?? []) : [];
  const bytes = Math.floor((text.replaceAll("=", "").length * 3) / 4);
  if (bytes >= MIN_SECRET_BYTES && bytes <= MAX_SECRET_BYTES && text.length % 4 === 0) return `whsec_${text}`;
  const how =
    given === undefined
      ? "missing: npx wrangler secret put NOTICES_SECRET, or locally a line in .dev.vars"
      : "not one";
  return refuse(`NOTICES_SECRET is ${how}: with a webhook it must be ${SECRET_ALLOWED}`);
}

function refuse(problem: string): never {
  throw new Error(`bad configuration, not serving:\n${problem}`);
}

function isQueue(value: unknown): value is NoticeQueue {
  return typeof value === "object" && value !== null && typeof (value as NoticeQueue).send === "function";
}

function tableIn(given: unknown): Table | undefined {
  try {
    const value: unknown = typeof given === "string" ? JSON.parse(given) : given;
    return isTable(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Whether a webhook is on the machine that serves the limiter. */
export function isOwnMachine(webhook: string): boolean {
  const { hostname } = new URL(webhook);
  return /^(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname);
}

/** The runtime resolves names. On Cloudflare none leads to a private address; plain workerd refuses those. */
function isAllowed(text: string, isHere: boolean): boolean {
  const url = text.length <= MAX_URL_LENGTH ? URL.parse(text) : null;
  if (url === null || url.username !== "" || url.password !== "" || url.hash !== "") return false;
  if (isHere && isOwnMachine(text)) return url.protocol === "http:" || url.protocol === "https:";
  return url.protocol === "https:" && isPublic(url.hostname);
}

const PRIVATE_NAMES = ["localhost", "local", "internal", "home.arpa", "lan", "intranet", "private"];

/** `hostname` as `URL` writes it: an IPv4 address in four decimal numbers, an IPv6 address in brackets. */
function isPublic(hostname: string): boolean {
  if (hostname.startsWith("[")) return isPublicIpv6(hostname);
  const octets = /^(\d+)\.(\d+)\.\d+\.\d+$/.exec(hostname);
  if (octets !== null) return isPublicIpv4(Number(octets[1]), Number(octets[2]));
  const name = hostname.replace(/\.$/, "");
  const isPrivate = PRIVATE_NAMES.some((each) => name === each || name.endsWith(`.${each}`));
  return name.includes(".") && !isPrivate;
}

/** https://www.iana.org/assignments/iana-ipv4-special-registry, by two octets: some public ones are refused too. */
function isPublicIpv4(first: number, second: number): boolean {
  if ([0, 10, 127].includes(first) || first >= 224) return false;
  if (first === 100) return second < 64 || second > 127;
  if (first === 169) return second !== 254;
  if (first === 172) return second < 16 || second > 31;
  if (first === 192) return second !== 168 && second !== 0;
  if (first === 198) return second !== 18 && second !== 19 && second !== 51;
  return first !== 203 || second !== 0;
}

/** Global unicast, without what is for documents, and without addresses with an IPv4 address in them. */
function isPublicIpv6(hostname: string): boolean {
  const [, first = "", second = ""] = /^\[([0-9a-f]{4}):([0-9a-f]{0,4})/.exec(hostname) ?? [];
  if (!/^[23]/.test(first) || first === "2002") return false;
  return first !== "2001" || !["", "0", "db8"].includes(second);
}
