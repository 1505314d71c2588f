/**
 * A gateway to a language model with a budget of tokens for each customer. What a call costs is known only when it has
 * been answered, so an estimate is held before and settled with the real usage after, while the answer streams through.
 */
import type { Limiter } from "../../worker/rpc/limiter.ts";

interface Env {
  readonly LIMITER: Service<typeof Limiter>;
  /** Anything that speaks OpenAI's chat completions. */
  readonly MODEL_URL: string;
  readonly MODEL_KEY?: string;
}

interface Prompt {
  readonly messages: readonly { readonly role: string; readonly content: string }[];
  readonly max_tokens?: number;
}

const POLICY = "llm";
const DEFAULT_MAX_TOKENS = 1_000;
/** Longer than any answer takes: a hold that expires counts as used, all of it. */
const HOLD_MS = 5 * 60_000;

export default {
  async fetch(request, env, ctx): Promise<Response> {
    const key = `customer:${request.headers.get("x-api-key") ?? "anonymous"}`;
    const prompt = await request.json<Prompt>();
    const maxTokens = prompt.max_tokens ?? DEFAULT_MAX_TOKENS;
    const units = { requests: 1, tokens: estimatedTokens(prompt) + maxTokens };
    const { success, retryAfterMs, hold } = await env.LIMITER.hold({
      policy: POLICY,
      key,
      units,
      ttlMs: HOLD_MS,
    });
    if (!success) return tooMany(retryAfterMs);

    // Without a hold nobody could decide, and the policy is open.
    const settle = (tokens: number) => {
      if (hold !== undefined) ctx.waitUntil(settleHold(env, hold.id, tokens));
    };
    const answer = await askModel(env, { ...prompt, max_tokens: maxTokens });
    if (!answer.ok || answer.body === null) {
      settle(0);
      return new Response(answer.body, { status: 502 });
    }
    const headers = { "content-type": "text/event-stream" };
    return new Response(answer.body.pipeThrough(countingTokens(estimatedTokens(prompt), settle)), {
      headers,
    });
  },
} satisfies ExportedHandler<Env>;

/** If this does not come through, the hold expires: the estimate counts. */
async function settleHold(env: Env, id: string, tokens: number): Promise<void> {
  try {
    await env.LIMITER.settle({ id, used: { tokens } });
  } catch (error) {
    console.error(error);
  }
}

function askModel(env: Env, prompt: Prompt): Promise<Response> {
  return fetch(env.MODEL_URL, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${env.MODEL_KEY ?? ""}` },
    // The last event of the stream then says what was used.
    body: JSON.stringify({ ...prompt, stream: true, stream_options: { include_usage: true } }),
  }).catch((error: unknown) => new Response(String(error), { status: 502 }));
}

/**
 * Passes the model's events through and says, once, how many tokens were used: what the model says at the end or, if
 * the stream ends sooner (the client has gone), the prompt and one for each event, as far as it got.
 */
function countingTokens(
  promptTokens: number,
  settle: (tokens: number) => void,
): TransformStream<Uint8Array, Uint8Array> {
  const decoder = new TextDecoder();
  let [rest, events, used] = ["", 0, undefined as number | undefined];
  const end = () => settle(used ?? promptTokens + events);
  return new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      controller.enqueue(chunk);
      const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (!line.startsWith("data: {")) continue;
        events += 1;
        used =
          (JSON.parse(line.slice("data: ".length)) as { usage?: { total_tokens?: number } | null }).usage
            ?.total_tokens ?? used;
      }
    },
    flush: end,
    cancel: end,
  });
}

/** About four characters a token in English: an estimate is all that is needed, the rest is settled. */
function estimatedTokens({ messages }: Prompt): number {
  return messages.reduce((tokens, { content }) => tokens + Math.ceil(content.length / 4) + 4, 0);
}

function tooMany(retryAfterMs: number | null | undefined): Response {
  const headers =
    typeof retryAfterMs === "number" ? { "retry-after": String(Math.ceil(retryAfterMs / 1_000)) } : {};
  return new Response("the budget of tokens is used up", { status: 429, headers });
}
