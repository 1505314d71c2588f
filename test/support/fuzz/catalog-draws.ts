/** Bodies of calls on the catalog and on the statistics: valid values, and odd ones. */
import { pick, whole } from "../random.ts";
import { oddValue, spoiled, Table, type Json } from "./json-text.ts";
import { ODD_TEXTS } from "./odd-values.ts";

type Random = () => number;

const BUCKET = { algorithm: "token-bucket", limit: 100, window: "1m", deadlineMs: 30_000 };
/** The policies of the file, whose names are the only ones that calls change. */
export const CATALOG_POLICIES = {
  api: BUCKET,
  several: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 50, window: "1m" },
      tokens: { algorithm: "sliding-log", limit: 1_000, window: "1m", unit: "tokens" },
    },
    objects: 2,
    deadlineMs: 30_000,
  },
  address: { ...BUCKET, keyKind: "ip", objects: 2 },
  slots: { algorithm: "concurrency", limit: 3, deadlineMs: 30_000 },
  constructor: { ...BUCKET, limit: 7 },
};
const NAMES = [...Object.keys(CATALOG_POLICIES), "made", "toString", "valueOf"];

const PATTERNS = [
  "a",
  "b",
  "trial:*",
  "*:free",
  "a*b*c",
  "*",
  "**",
  "*a*b*",
  "192.0.2.7",
  "2001:db8::1",
  "192.0.2.0/24",
  "192.0.2.9/24",
  "2001:db8::/32",
  "2001:db8::/129",
  "__proto__",
  "constructor",
  "toString",
  "0",
  "1",
];

const OVERRIDES: readonly object[] = [
  { limit: 5, burst: 5 },
  { limit: 0 },
  { limit: 7 },
  { multiply: 10 },
  { multiply: 0.5, note: "half" },
  { multiply: 1e-6 },
  { multiply: 1e6 },
  { blocked: true },
  { unlimited: true, note: "friend" },
  { limit: 9, expiresAt: "2999-01-31T12:00:00Z" },
  { blocked: true, expiresAt: "2000-01-31T12:00:00Z" },
  { rules: { tokens: { limit: 5 } } },
  { rules: { tokens: { limit: 5 }, requests: { limit: 2, burst: 2 } } },
  { window: "2m" },
  { algorithm: "sliding-log" },
  {},
];
const POLICIES: readonly object[] = [
  ...Object.values(CATALOG_POLICIES),
  { ...BUCKET, limit: 3 },
  { algorithm: "sliding-log", limit: 3, window: "1m" },
  { algorithm: "concurrency", limit: 1 },
  { ...BUCKET, objects: 3 },
  { ...BUCKET, pool: "redis" },
  { ...BUCKET, limit: 2 ** 53 },
];
const TOKENS: readonly object[] = [
  { name: "one", scopes: ["limit"] },
  { name: "two", scopes: ["admin", "metrics"], policies: ["api"], keyPrefix: "a" },
  { name: "full", scopes: ["limit"] },
  { name: "constructor", scopes: ["refund"], maxCallsAtOnce: 5 },
  { name: "three", scopes: [] },
];

export const drawName = (random: Random): string => pick(random, random() < 0.93 ? NAMES : ODD_TEXTS);
/** Mostly of one that fits such a candidate. */
export const drawTriedName = (random: Random): string => (random() < 0.6 ? "api" : drawName(random));
export const drawPattern = (random: Random): string => pick(random, random() < 0.8 ? PATTERNS : ODD_TEXTS);
export const drawTokenName = (random: Random): string =>
  pick(random, random() < 0.8 ? ["one", "two", "full", "constructor"] : ODD_TEXTS);
export const drawCursor = (random: Random): string =>
  pick(random, random() < 0.6 ? ["a", "1", "2", "9007199254740993", "1e3", "-1"] : ODD_TEXTS);

/** A body, mostly valid. `document`: the base for a write of the complete catalog. */
export function drawBody(
  random: Random,
  kind: "override" | "policy" | "candidate" | "token" | "catalog",
  document: unknown,
): Json {
  const valid = {
    override: () => pick(random, OVERRIDES),
    policy: () => pick(random, POLICIES),
    candidate: () => ({ ...BUCKET, limit: 1 + whole(random, 200) }),
    token: () => pick(random, TOKENS),
    catalog: () => (random() < 0.2 ? { policies: {}, overrides: {}, tokens: {} } : document),
  }[kind]();
  const odd = random();
  if (odd < 0.55) return treeOf(valid);
  if (odd < 0.92) {
    let json = treeOf(valid);
    for (let times = 1 + whole(random, 3); times > 0; times -= 1) json = spoiled(random, json);
    return json;
  }
  return oddValue(random);
}

function treeOf(value: unknown): Json {
  if (Array.isArray(value)) return value.map(treeOf);
  if (typeof value === "object" && value !== null)
    return new Table(Object.entries(value).map(([name, inner]) => [name, treeOf(inner)]));
  return value as string | number | boolean | null;
}
