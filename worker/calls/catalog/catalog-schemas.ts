/** The catalog's requests and answers, for the OpenAPI document. Its fields are checked like the file's. */
import * as v from "valibot";
import { described } from "../../../core/validation.ts";
import { SCOPE_LIST } from "../../auth/tokens.ts";
import { optional } from "../schemas/request-schemas.ts";

const version = described(
  v.pipe(v.number(), v.integer()),
  "Rises with each change. It is the entity tag, too.",
);
const instant = described(v.string(), "An instant, as RFC 3339 writes it.");
const fields = v.record(v.string(), v.any());
const units = v.pipe(v.number(), v.integer());

export const PolicyFields = described(
  v.looseObject({
    algorithm: v.optional(v.string()),
    limit: v.optional(units),
    window: v.optional(v.string()),
    carry: optional(units, "Of a fixed window: so many units that are left of it are added to the next."),
    rules: v.optional(v.record(v.string(), fields)),
    plans: optional(v.record(v.string(), fields), "What each plan has instead, by its name."),
    limitInCall: optional(v.object({ max: units }), "Calls may bring limits of their own, up to this."),
    fair: optional(v.literal(true), "Groups share the limit: each call that is decided names its group."),
    weights: optional(
      v.record(v.string(), v.number()),
      "The weights of groups, by group or by a beginning with * at its end; of others 1.",
    ),
    notify: optional(v.array(v.number()), "The fractions of the limit at which a notice is sent."),
    onFailure: optional(
      v.union([v.picklist(["closed", "open", "local"]), v.object({ limit: units, window: v.string() })]),
      "What decides while the object or the pool does not answer.",
    ),
  }),
  "The fields that a policy has in wrangler.toml. There are more, which the page on policies lists.",
);

export const PolicyInForce = v.looseObject({
  ...PolicyFields.entries,
  policy: v.string(),
  version,
  source: described(v.picklist(["file", "catalog"]), "Where it comes from."),
  overrides: described(v.pipe(v.number(), v.integer()), "How many overrides its keys have."),
});

const candidate = {
  policy: v.string(),
  version,
  candidate: PolicyFields,
  since: described(v.string(), "When it was set, as RFC 3339 writes it."),
};
const calls = v.pipe(v.number(), v.integer());

export const Candidate = v.object(candidate);

export const ComparedCandidate = v.object({
  ...candidate,
  compared: optional(
    v.object({
      calls: described(calls, "Calls of which both have decided."),
      admittedByBoth: calls,
      deniedByBoth: calls,
      deniedByPolicyAlone: calls,
      deniedByCandidateAlone: calls,
      undecided: described(calls, "Calls of which one of them could not decide."),
    }),
    "Absent: this deployment counts nothing.",
  ),
  keys: optional(
    v.array(v.object({ key: v.string(), count: calls, error: calls })),
    "The keys that the candidate alone has denied most, in this hour and the last one. For the scope `admin`.",
  ),
});

const override = {
  multiply: optional(v.number(), "All limits times so much."),
  blocked: optional(v.literal(true), "Every call is denied."),
  unlimited: optional(v.literal(true), "Every call is admitted, and none is counted."),
  startsAt: optional(v.string(), "An instant, as RFC 3339 writes it: the override applies from then on."),
  expiresAt: v.optional(instant),
  note: v.optional(v.string()),
};

export const OverrideRequest = described(
  v.looseObject(override),
  "Figures of the policy, or one of `multiply`, `blocked` and `unlimited`.",
);

export const Override = v.looseObject({ policy: v.string(), pattern: v.string(), version, ...override });

const cursor = optional(v.string(), "Where the next page begins. Absent: this is the last.");
export const OverrideList = v.object({ overrides: v.array(Override), cursor });

const token = {
  name: v.string(),
  scopes: SCOPE_LIST,
  policies: v.optional(v.array(v.string())),
  keyPrefix: v.optional(v.string()),
  maxCallsAtOnce: v.optional(v.pipe(v.number(), v.integer())),
  maxNewKeysPerSecond: v.optional(v.pipe(v.number(), v.integer())),
};
export const OwnToken = described(
  v.object({ name: token.name, scopes: token.scopes, policies: token.policies, keyPrefix: token.keyPrefix }),
  "What a token may do. Without `policies` or `keyPrefix` it may use all of them.",
);
export const TokenRequest = v.object(token);
export const IssuedToken = v.object({ ...token, token: described(v.string(), "Shown this once.") });
export const TokenList = v.object({ tokens: v.array(v.object(token)) });

export const Catalog = v.object({
  policies: v.record(v.string(), fields),
  overrides: described(v.record(v.string(), v.record(v.string(), fields)), "By policy and pattern."),
  tokens: described(v.record(v.string(), fields), "By name, with their SHA-256."),
  candidates: optional(v.record(v.string(), fields), "By policy."),
});

const entry = v.object({
  id: v.pipe(v.number(), v.integer()),
  at: instant,
  by: v.string(),
  target: described(v.string(), "Such as `override api customer:7`."),
  before: v.nullable(fields),
  after: v.nullable(fields),
});
export const AuditLog = v.object({ entries: v.array(entry), cursor });
