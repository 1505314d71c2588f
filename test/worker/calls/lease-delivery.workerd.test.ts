/** A client that goes at the worst moments, injected: between the object's grant and the worker's answer. */
import { createExecutionContext, waitOnExecutionContext } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { LimiterNamespace, LimiterStub } from "../../../client/transports/objects.ts";
import type { Batch } from "../../../core/protocol/messages.ts";
import type { Env } from "../../../worker/bindings/env.ts";
import { app } from "../../../worker/http/app.ts";
import { TEST_TOKENS, TOKENS } from "../../support/fixtures.ts";
import { acquire, freshKey, idIn, release, report } from "../../support/limiter.ts";

const real = env as unknown as { OBJECTS: LimiterNamespace };

/** Sends an acquire through the worker with the object's answers passing through `between`. */
async function acquireWith(
  key: string,
  fields: object,
  signal: AbortSignal,
  between: <Answered>(answer: Promise<Answered>) => Promise<Answered>,
): Promise<Response> {
  const OBJECTS: LimiterNamespace = {
    getByName: (name) => {
      const stub = real.OBJECTS.getByName(name);
      return {
        fetch: (url: string, init: RequestInit) => between(stub.fetch(url, init)),
        reserve: (batch: Batch) => between(stub.reserve(batch)),
      } as unknown as LimiterStub;
    },
  };
  const ctx = createExecutionContext();
  const request = new Request("https://weir.test/v1/leases", {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    body: JSON.stringify({ policy: "export", key, ...fields }),
    signal,
  });
  const bindings: Env = { OBJECTS, API_TOKENS: JSON.stringify(TEST_TOKENS) };
  const response = await app.fetch(request, bindings, ctx);
  await waitOnExecutionContext(ctx);
  return response;
}

test("a grant whose client has gone meanwhile is taken back, and the next gets the slot", async () => {
  const key = freshKey();
  const held = await acquire("export", key, { units: 2 });
  const client = new AbortController();
  const gone = acquireWith(key, { units: 2, waitMs: 20_000 }, client.signal, async (answer) => {
    const answered = await answer;
    client.abort();
    return answered;
  });
  while ((await report("export", key)).body["queueLength"] !== 1);
  const next = acquire("export", key, { waitMs: 20_000 });
  while ((await report("export", key)).body["queueLength"] !== 2);
  await release(idIn(held));
  await gone;
  expect((await next).body["success"]).toBe(true);
  expect((await report("export", key)).body).toMatchObject({ leases: 1, outstanding: 1, reclaimed: 0 });
});

test("so is one that did not wait", async () => {
  const key = freshKey();
  const client = new AbortController();
  await acquireWith(key, {}, client.signal, async (answer) => {
    const answered = await answer;
    expect((await report("export", key)).body).toMatchObject({ leases: client.signal.aborted ? 0 : 1 });
    client.abort();
    return answered;
  });
  expect((await report("export", key)).body).toMatchObject({ leases: 0, outstanding: 0, reclaimed: 0 });
});

test("a client that had gone before it was asked for is granted nothing", async () => {
  const key = freshKey();
  const client = new AbortController();
  client.abort();
  await acquireWith(key, {}, client.signal, (answer) => answer).catch(() => undefined);
  expect((await report("export", key)).body).toMatchObject({ leases: 0 });
});

test("a client that stays has its lease, also with a signal", async () => {
  const key = freshKey();
  const response = await acquireWith(key, {}, new AbortController().signal, (answer) => answer);
  expect(await response.json()).toMatchObject({ success: true });
  expect((await report("export", key)).body).toMatchObject({ leases: 1 });
});
