/** A holder's uses of a grant, including wrong ones. */
import { pick } from "../../random.ts";
import { oddValue, valueOf } from "../json-text.ts";
import { faultInError } from "./binding-laws.ts";

interface Grant extends Disposable {
  readonly slot: unknown;
  readonly lease: { readonly id: string };
  readonly renew: (call?: unknown) => Promise<unknown>;
  readonly release: () => Promise<unknown>;
}

export function isGrant(answer: unknown): answer is Grant {
  return typeof answer === "object" && answer !== null && "slot" in answer && "renew" in answer;
}

/** Ends a grant in some way. Returns the fault in the outcome, if any. */
export function misuse(random: () => number, grant: Grant): Promise<string | undefined> {
  return pick(random, ENDINGS)(grant, random);
}

type Ending = (grant: Grant, random: () => number) => Promise<string | undefined>;

const ENDINGS: readonly Ending[] = [
  disposed,
  async (grant) => (await disposed(grant)) ?? (await disposed(grant)),
  releasedTwice,
  async (grant) => {
    using held = grant;
    return await faultOf(() => held.renew({ ttlMs: 1_000 }));
  },
  async (grant, random) => {
    using held = grant;
    return await faultOf(() => held.renew(valueOf(oddValue(random))));
  },
  async (grant) => {
    await disposed(grant);
    return (await throws(() => grant.renew())) ? undefined : "a grant that was disposed of is renewed";
  },
  // The runtime disposes of it when the request ends.
  () => Promise.resolve(undefined),
];

function disposed(grant: Grant): Promise<undefined> {
  grant[Symbol.dispose]();
  return Promise.resolve(undefined);
}

async function releasedTwice(grant: Grant): Promise<string | undefined> {
  using held = grant;
  const first = await faultOf(() => held.release());
  return first ?? (await faultOf(() => held.release()));
}

async function faultOf(call: () => Promise<unknown>): Promise<string | undefined> {
  try {
    await call();
    return undefined;
  } catch (error) {
    const wrong = faultInError({ method: "renew", args: [], isMethod: true }, error);
    return wrong && `${wrong}, thrown by a grant: ${String(error)}`;
  }
}

async function throws(call: () => Promise<unknown>): Promise<boolean> {
  try {
    await call();
    return false;
  } catch {
    return true;
  }
}
