import type { LimiterStub } from "../client/transports/objects.ts";
import { sendTogether } from "../client/transports/send-batch.ts";
import { parsePolicies } from "../core/policies/parse-policies.ts";
import { sharedObjectName } from "../core/protocol/names.ts";

/** Of limits that are large enough that a key's first call writes nothing. */
const BUCKET = { algorithm: "token-bucket", limit: 1_000, window: "1m" };
const OPTIONS = { deadlineMs: 10_000, objects: 1 };
/** The policies that are compared, as `[vars.POLICIES]` has them. */
export const COMPARED = {
  one: { ...BUCKET, ...OPTIONS },
  two: { rules: { requests: BUCKET, tokens: { ...BUCKET, limit: 100_000, unit: "tokens" } }, ...OPTIONS },
};

const ROUNDS = 100;
const CALLS = 200;

/** What one policy's calls took with its terms and without them. */
export interface Compared {
  readonly policy: string;
  /** The length of the terms, in characters. */
  readonly length: number;
  readonly withoutUs: number;
  readonly withUs: number;
  /** The median over the rounds, and the quartiles. */
  readonly ratios: readonly [middle: number, first: number, third: number];
}

/**
 * Makes first calls of keys, alone in their messages, with the terms of their policy and without them, in turn. A call
 * without terms goes as arguments, one with terms in a message: so it went before there were terms, and so it goes now.
 */
export async function compare(stubOf: (name: string) => LimiterStub, policy: string): Promise<Compared> {
  const { terms = "" } = parsePolicies(COMPARED).get(policy) ?? {};
  const object = stubOf(sharedObjectName({ name: policy }, 0));
  let keys = 0;
  const measure = async (said?: string) => {
    const sinceMs = performance.now();
    for (let call = 0; call < CALLS; call += 1) {
      const asked = { limit: { policy, key: `key ${(keys += 1)}`, cost: 1 } };
      await sendTogether(object, [{ call: asked, text: JSON.stringify(asked) }], said);
    }
    return ((performance.now() - sinceMs) / CALLS) * 1_000;
  };
  const rounds: { readonly withoutUs: number; readonly withUs: number }[] = [];
  for (let round = 0; round <= ROUNDS; round += 1) {
    // Each is first as often as the other.
    const withFirst = round % 2 === 0 ? await measure(terms) : undefined;
    const withoutUs = await measure();
    const withUs = withFirst ?? (await measure(terms));
    if (round > 0) rounds.push({ withoutUs, withUs });
  }
  const at = (values: readonly number[], share: number) =>
    values.toSorted((a, b) => a - b)[Math.floor(values.length * share)] ?? 0;
  const ratios = rounds.map(({ withoutUs, withUs }) => withUs / withoutUs);
  return {
    policy,
    length: terms.length,
    withoutUs: at(
      rounds.map(({ withoutUs }) => withoutUs),
      0.5,
    ),
    withUs: at(
      rounds.map(({ withUs }) => withUs),
      0.5,
    ),
    ratios: [at(ratios, 0.5), at(ratios, 0.25), at(ratios, 0.75)],
  };
}
