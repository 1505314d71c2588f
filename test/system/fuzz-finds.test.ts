/** Mistakes that the fuzzing is meant to find are put into the worker on purpose, and have to be found. */
import { expect, test } from "vitest";
import { inDeepRuns } from "../support/depth.ts";
import { fuzzedOverBinding, fuzzedOverHttp } from "../support/fuzz/fuzzed-limiter.ts";
import { announcedSeed } from "../support/random.ts";

/** Each of these mistakes is met within some hundred requests; a run goes on for a while where it is not. */
const LENGTH = { count: 6_000, isEnough: () => false };

/** The built bundle, with a mistake in what it answers over HTTP or over the binding. */
function mistaken({
  onFetch = "",
  limiter = "",
}: {
  readonly onFetch?: string;
  readonly limiter?: string;
}): string {
  return `
    import * as weir from "weir.js";
    export const { LimiterObject } = weir;
    export class Limiter extends weir.Limiter { ${limiter} }
    export default {
      async fetch(request, env, ctx) {
        const { url, method } = request;
        const text = async () => await request.clone().text();
        const answer = () => weir.default.fetch(request, env, ctx);
        ${onFetch}
        return await answer();
      },
    };`;
}

const overHttp = (onFetch: string, concurrency = 8) =>
  fuzzedOverHttp({
    seed: announcedSeed("a mistake over HTTP"),
    ...LENGTH,
    concurrency,
    main: mistaken({ onFetch }),
  });

const overBinding = (limiter: string) =>
  fuzzedOverBinding({
    seed: announcedSeed("a mistake over the binding"),
    ...LENGTH,
    concurrency: 8,
    main: mistaken({ limiter }),
  });

const SEEN = String.raw`^SEED=\d+: request \d+: `;
const A_POST = `if (method !== "POST" || !(await text().catch(() => "")).includes("constructor")) return await answer();`;

inDeepRuns.each([
  ["an exception", `${A_POST} throw new Error("planted");`, `${SEEN}a status of 5xx: .* to "POST `],
  [
    "an error without a problem document",
    `${A_POST} return new Response("no", { status: 422 });`,
    // At an odd address the status is wrong already.
    `${SEEN}.*(no JSON|does not have in the document)`,
  ],
  [
    "a status that the document does not have",
    `${A_POST} return new Response("{}", { status: 418 });`,
    "418",
  ],
  [
    "a small request with a large answer",
    `${A_POST} return Response.json({ detail: "x".repeat(70_000) }, { status: 422 });`,
    `${SEEN}an answer of over 64 KiB`,
  ],
  [
    "a body that is not of the document's schema",
    `if (url === "http://weir.test/v1/policies" && method === "GET") return Response.json({ policies: 1 });`,
    `${SEEN}not what the document says: `,
  ],
  [
    "one caller's units taken from another's quota",
    `if (url.includes("%")) await weir.default.fetch(new Request("http://weir.test/v1/limit", { method: "POST",
       headers: { authorization: "Bearer weir_test_full", "content-type": "application/json", "content-length": "42" },
       body: JSON.stringify({ policy: "canary-log", key: "canary-0" }) }), env, ctx);`,
    "canary-log should have",
  ],
  [
    "an exception that nobody awaits, and that only the log has",
    `if (url.includes("deny=430")) void Promise.reject(new Error("planted"));`,
    "the log has: .*planted",
  ],
])("%s is found over HTTP", async (_, onFetch, found) => {
  await expect(overHttp(onFetch)).rejects.toThrow(new RegExp(found));
});

inDeepRuns.each([
  [
    "an exception that is no LimiterError",
    `limit(asked) { if (typeof asked?.key === "object") throw new TypeError("planted"); return super.limit(asked); }`,
    String.raw`^SEED=\d+: call \d+: an error that is no LimiterError: TypeError: planted: limit\(`,
  ],
  [
    "a figure below zero",
    `async peek(asked) { const seen = await super.peek(asked); return { ...seen, remaining: -1 }; }`,
    String.raw`^SEED=\d+: call \d+: a decision with a figure that is none: .*: peek\(`,
  ],
  ["a method that should not be there", `nowhere() { return 1; }`, "an answer of what is no method"],
])("%s is found over the service binding", async (_, limiter, found) => {
  await expect(overBinding(limiter)).rejects.toThrow(new RegExp(found));
});

test("what a seed has found it finds again, in the same request", async () => {
  const failure = async () => {
    const fuzzing = { seed: 4711, ...LENGTH, concurrency: 1 };
    const main = mistaken({ onFetch: `${A_POST} throw new Error("planted");` });
    const error: unknown = await fuzzedOverHttp({ ...fuzzing, main }).catch((thrown: unknown) => thrown);
    return error instanceof Error ? error.message : "it found nothing";
  };
  const found = await failure();
  expect(found).toMatch(/^SEED=4711: request \d+: a status of 5xx/);
  expect(await failure()).toBe(found);
});
