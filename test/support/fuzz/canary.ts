/** Keys and policies of the canary alone: their values have to follow exactly from its own calls. */
import type { HttpClient } from "../http-client.ts";

const PATIENT = { deadlineMs: 30_000 };

/**
 * Few enough units that each decision is written, so nothing is presumed when a busy machine drops the
 * object. A unit comes back in 52 minutes, longer than any run.
 */
const QUOTA = 990;
const BUCKET = { algorithm: "token-bucket", limit: 830, burst: QUOTA, window: "30d", ...PATIENT };
const HOT = { algorithm: "token-bucket", limit: 1_000, burst: 20_000, window: "30d", ...PATIENT };
/** Checks per key, of two units each; the next ones have another key. */
const CHECKS_OF_KEY = 400;

export const CANARY_POLICIES = {
  "canary-bucket": { ...BUCKET, reservation: "off" },
  "canary-log": { algorithm: "sliding-log", limit: QUOTA, window: "30d", reservation: "off", ...PATIENT },
  "canary-hot": HOT,
  "canary-slots": { algorithm: "concurrency", limit: 2, ttl: "1h", maxTtl: "1h", ...PATIENT },
};
/** One check in this many reads the rest of a bucket whose units an isolate reserves. */
const LOOKED = 5;

export class Canary {
  readonly #client: HttpClient;
  #used = 0;
  #usedHot = 0;
  #calls = 0;
  #lastToken = 0;

  constructor(client: HttpClient) {
    this.#client = client;
  }

  /** The deviation, if any. Only one call at a time. */
  async check(): Promise<string | undefined> {
    const cost = 1 + (this.#calls % 3);
    const key = `canary-${Math.floor(this.#calls / CHECKS_OF_KEY)}`;
    if (this.#calls % CHECKS_OF_KEY === 0) this.#used = 0;
    this.#calls += 1;
    this.#used += cost;
    const left = QUOTA - this.#used;
    for (const policy of ["canary-bucket", "canary-log"]) {
      const { body } = await this.#client.limit(policy, key, { cost });
      if (body["success"] !== true || body["remaining"] !== left)
        return `${policy} should have ${left} left: ${JSON.stringify(body)}`;
    }
    this.#usedHot += cost;
    return (await this.#checkHot(cost, HOT.burst - this.#usedHot)) ?? (await this.#checkSlots());
  }

  /** An isolate decides some of these from units that it holds. Late returned units count as used. */
  async #checkHot(cost: number, most: number): Promise<string | undefined> {
    const taken = (await this.#client.limit("canary-hot", "canary", { cost })).body;
    if (taken["success"] !== true) return `canary-hot should admit: ${JSON.stringify(taken)}`;
    if (this.#calls % LOOKED !== 0) return undefined;
    const seen = (await this.#client.peek("canary-hot", "canary")).body;
    return Number(seen["remaining"]) <= most
      ? undefined
      : `canary-hot should have at most ${most} left: ${JSON.stringify(seen)}`;
  }

  async #checkSlots(): Promise<string | undefined> {
    const acquire = async () => {
      const { body } = await this.#client.call("POST", "/v1/leases", {
        policy: "canary-slots",
        key: "canary",
      });
      return body as { success?: boolean; lease?: { id: string; fencingToken: number } };
    };
    const granted = [await acquire(), await acquire(), await acquire()];
    const admitted = granted.map(({ success }) => success);
    const ids = granted.flatMap(({ lease }) => (lease === undefined ? [] : [lease.id]));
    for (const id of ids) await this.#client.call("DELETE", `/v1/leases/${id}`);
    const { body } = await this.#client.peek("canary-slots", "canary");
    const tokens = granted.flatMap(({ lease }) => lease?.fencingToken ?? []);
    const isExact =
      admitted.join() === "true,true,false" &&
      body["leases"] === 0 &&
      tokens.every((token, each) => token > (tokens[each - 1] ?? this.#lastToken));
    this.#lastToken = tokens.at(-1) ?? Infinity;
    return isExact ? undefined : `canary-slots: ${JSON.stringify({ granted, after: body })}`;
  }
}
