/** A worker that asks Weir over HTTP before it answers. It also shows what to do when Weir does not answer. */

interface Env {
  readonly WEIR_URL: string;
  readonly WEIR_TOKEN: string;
}

/** The fields of a decision that this worker reads. */
interface Decision {
  readonly success: boolean;
  readonly remaining?: number;
  readonly retryAfterMs?: number | null;
}

/** How long this worker waits for Weir, in milliseconds. The deadline of the policy `payments` is 2,000 ms. */
const PATIENCE_MS = 2_500;

export default {
  async fetch(request, env): Promise<Response> {
    // A name stands for the key here. A real API key is a credential: take `hashedKey` of weir-limiter/fetch.
    const key = `customer:${request.headers.get("x-api-key") ?? "anonymous"}`;
    const decision = await limit(env, { policy: "payments", key });
    // The payment was not counted, so it is refused. A worker that only shows a page would go on here.
    if (decision === undefined) return new Response("try again later", { status: 503 });
    if (decision.success)
      return new Response("paid", { headers: { "x-remaining": String(decision.remaining) } });
    const waitMs = decision.retryAfterMs;
    const headers = typeof waitMs === "number" ? { "retry-after": String(Math.ceil(waitMs / 1_000)) } : {};
    return new Response("too many payments", { status: 429, headers });
  },
} satisfies ExportedHandler<Env>;

/** Asks once; `undefined`: there is no decision, for whatever reason. */
async function limit(env: Env, call: { policy: string; key: string }): Promise<Decision | undefined> {
  try {
    const response = await fetch(`${env.WEIR_URL}/v1/limit`, {
      method: "POST",
      headers: { authorization: `Bearer ${env.WEIR_TOKEN}`, "content-type": "application/json" },
      body: JSON.stringify(call),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    // A decision comes with 200, also a denial. Anything else is a problem that we have to mend, not our caller.
    if (response.ok) return await response.json<Decision>();
    console.error(`Weir answered ${response.status}: ${await response.text()}`);
  } catch (error) {
    console.error(`Weir did not answer: ${String(error)}`);
  }
  return undefined;
}
