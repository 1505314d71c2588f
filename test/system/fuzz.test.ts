import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { TEST_POLICIES } from "../support/fixtures.ts";
import { fuzzedRequest } from "../support/fuzz.ts";
import { HttpClient } from "../support/http-client.ts";
import { announcedSeed, seededRandom } from "../support/random.ts";
import { RawConnection, type RawAnswer } from "../support/raw-connection.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

// 20,000 reach every status, the rarest (403) some 17 times. A million take five minutes.
const REQUESTS = depth(20_000, 1_000_000);
const CONNECTIONS = 32;
const CANARY_EVERY = 500;
/** Refilled once in 43 minutes, which is longer than any run. */
const CANARY = { algorithm: "token-bucket", limit: 1_000, burst: 10_000, window: "30d", deadlineMs: 30_000 };

const state = makeState();
let serving: Serving;
beforeAll(async () => {
  const patient = Object.entries(TEST_POLICIES).map(([name, fields]) => [
    name,
    { ...fields, deadlineMs: 30_000 },
  ]);
  serving = await serveBundle(state, { ...Object.fromEntries(patient), canary: CANARY });
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

/** What is wrong with an answer; `undefined`: nothing. */
function fault({ status, contentType, body }: RawAnswer, isHead: boolean): string | undefined {
  if (status >= 500) return "a status of 5xx";
  if (isHead || status === 204) return undefined;
  const answer = JSON.parse(body) as Record<string, unknown>;
  if (status >= 400) {
    if (contentType !== "application/problem+json") return "an error that is no problem document";
    const { type, title, status: told, detail } = answer;
    const isWhole = [type, title, detail].every((text) => typeof text === "string" && text !== "");
    return isWhole && told === status ? undefined : "a problem document that lacks something";
  }
  if (Array.isArray(answer["decisions"])) {
    const decisions = answer["decisions"] as Record<string, unknown>[];
    return decisions.map(faultInDecision).find((wrong) => wrong !== undefined);
  }
  return "success" in answer ? faultInDecision(answer) : undefined;
}

function faultInDecision(answer: Record<string, unknown>): string | undefined {
  const { success, limit, remaining, resetAfterMs, rules, reason } = answer;
  const isWhole =
    typeof success === "boolean" && Array.isArray(rules) && rules.length > 0 && reason !== "degraded";
  const figures = [limit, remaining, resetAfterMs];
  return isWhole && figures.every((figure) => Number.isSafeInteger(figure) && Number(figure) >= 0)
    ? undefined
    : "a decision that lacks something";
}

test(
  `${REQUESTS} requests with anything in them: no 5xx, no hang, every error explained, state unharmed`,
  { timeout: 900_000 },
  async () => {
    const random = seededRandom(announcedSeed("fuzz"));
    const port = Number(new URL(serving.url).port);
    const canary = new HttpClient(serving.url, 1);
    const statuses = new Map<number, number>();
    let [made, canaryCalls] = [0, 0];
    const worker = async () => {
      const connection = new RawConnection(port);
      while (made < REQUESTS) {
        made += 1;
        if (made % CANARY_EVERY === 0) {
          canaryCalls += 1;
          expect((await canary.limit("canary", "canary")).body).toMatchObject({ success: true });
        }
        const { bytes, isHead, isBrokenOff } = fuzzedRequest(random);
        if (isBrokenOff) {
          await connection.breakOff(bytes);
          continue;
        }
        const answer = await connection.exchange(bytes, { isHead });
        const wrong = fault(answer, isHead);
        if (wrong !== undefined)
          throw new Error(`${wrong}: ${JSON.stringify(answer)} to ${bytes.toString("latin1").slice(0, 600)}`);
        statuses.set(answer.status, (statuses.get(answer.status) ?? 0) + 1);
      }
      connection.close();
    };
    await Promise.all(Array.from({ length: CONNECTIONS }, worker));
    console.log(
      `answers by status: ${JSON.stringify(Object.fromEntries([...statuses].toSorted(([a], [b]) => a - b)))}`,
    );
    // Every kind of answer came up, so the fuzzing reached every check.
    for (const status of [200, 400, 401, 403, 404, 405, 413, 415, 422, 429])
      expect([...statuses.keys()]).toContain(status);
    expect((await canary.peek("canary", "canary")).body).toMatchObject({
      remaining: CANARY.burst - canaryCalls,
    });
    canary.close();
  },
);
