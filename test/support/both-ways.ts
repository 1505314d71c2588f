/** Calls by both ways of the worker, past its router and through it, while time stands still. */
import { abortAllDurableObjects, createExecutionContext } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { afterAll, beforeAll, expect, vi } from "vitest";
import type { LimiterStub } from "../../client/transports/send-batch.ts";
import type { Env } from "../../worker/bindings/env.ts";
import { app } from "../../worker/http/app.ts";
import worker from "../../worker/index.ts";
import { KNOWN, look, requestOf, type Call } from "./limit-calls.ts";

/** How many calls of objects are on their way. */
let underWay = 0;

/** An object whose calls are counted while they are on their way. */
const counting = (stub: LimiterStub): LimiterStub =>
  new Proxy(stub, {
    get:
      (target, name) =>
      async (...args: readonly unknown[]) => {
        underWay += 1;
        try {
          return await (target[name as keyof LimiterStub] as (...args: readonly unknown[]) => unknown)(
            ...args,
          );
        } finally {
          underWay -= 1;
        }
      },
  });

/** Without a catalog: a call that has to wait for that goes the long way, so there would be nothing to compare. */
const { CATALOG: catalog, ...others } = env as unknown as Env;
void catalog;
export const real: Env = {
  ...others,
  OBJECTS: { getByName: (...args) => counting(others.OBJECTS.getByName(...args)) },
};

export type Fetch = (request: Request, env: Env, ctx: ExecutionContext) => Response | Promise<Response>;
export const LONG: Fetch = (request, bindings, ctx) => app.fetch(request, bindings, ctx);
export const WHOLE: Fetch = (request, bindings, ctx) => worker.fetch(request, bindings, ctx);

export async function answerBy(fetch: Fetch, call: Call) {
  const ctx = createExecutionContext();
  const response = await withoutTime(fetch(requestOf(call), call.env ?? real, ctx));
  const { status, headers } = response;
  return { status, headers: Object.fromEntries(headers), body: await response.text() };
}

/** Waits for an answer while time stands still: only timers of no time end. */
export async function withoutTime<Answer>(answer: Answer | Promise<Answer>): Promise<Answer> {
  let isThere = false;
  const noted = Promise.resolve(answer).finally(() => (isThere = true));
  while (!isThere) {
    vi.advanceTimersByTime(0);
    await scheduler.wait(0);
  }
  return await noted;
}

/** Asks both ways, in either order; the answer. */
export async function expectAlike(call: Call) {
  const answers = [];
  for (const fetch of [WHOLE, LONG, WHOLE]) answers.push(await answerBy(fetch, call));
  expect(answers[1]).toEqual(answers[0]);
  expect(answers[2]).toEqual(answers[0]);
  return answers[0];
}

/** Waits until nothing is asked of objects any more, beside what was answered. */
export async function untilIdle(): Promise<void> {
  for (let idle = 0; idle < 3; idle = underWay > 0 ? 0 : idle + 1) await withoutTime(scheduler.wait(1));
}

/** Nothing happens by itself: figures that count down stand still. A token is known once it has been seen. */
export function standStill(): void {
  beforeAll(async () => {
    vi.useFakeTimers({ toFake: ["Date", "setTimeout", "clearTimeout"] });
    for (const token of KNOWN) await answerBy(LONG, { token, body: look() });
  });
  // An object whose timer never comes would stay busy for the tests of other files.
  afterAll(async () => {
    vi.useRealTimers();
    await abortAllDurableObjects();
  });
}
