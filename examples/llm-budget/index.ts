/**
 * A gateway to a language model, with a budget of tokens for each customer. The cost of a call is known only after the
 * answer. So the gateway holds an estimate before the call, passes the answer on, and settles with the real usage.
 */
import type { LimiterService } from "weir-limiter";

interface Env {
  readonly LIMITER: LimiterService;
  /** An endpoint that speaks OpenAI's chat completions. */
  readonly MODEL_URL: string;
  readonly MODEL_KEY?: string;
}

interface Prompt {
  readonly messages: readonly { readonly role: string; readonly content: string }[];
  readonly max_tokens?: number;
}

const POLICY = "llm";
const DEFAULT_MAX_TOKENS = 1_000;
/** Longer than any answer takes, in milliseconds: a hold that expires counts as used in full. */
const HOLD_MS = 5 * 60_000;

export default {
  async fetch(request, env, ctx): Promise<Response> {
    // A name stands for the key here. A real API key is a credential: take `hashedKey` of weir-limiter/fetch.
    const key = `customer:${request.headers.get("x-api-key") ?? "anonymous"}`;
    const prompt = await promptOf(request);
    if (prompt === undefined) return new Response(PROMPT_ALLOWED, { status: 400 });
    const maxTokens = prompt.max_tokens ?? DEFAULT_MAX_TOKENS;
    const units = { requests: 1, tokens: estimatedTokens(prompt) + maxTokens };
    const { success, retryAfterMs, hold } = await env.LIMITER.hold({
      policy: POLICY,
      key,
      units,
      ttlMs: HOLD_MS,
    });
    if (!success) return tooMany(retryAfterMs);

    // A success without a hold: Weir could not decide, and the policy has `onFailure = "open"`.
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

const PROMPT_ALLOWED =
  'the body must be JSON with "messages", a list of { "role", "content" } that are text, and may have "max_tokens", an ' +
  "integer of 1 or more\n";

/** The body; `undefined`: it is none that the model would understand, and nothing has been asked of anybody. */
async function promptOf(request: Request): Promise<Prompt | undefined> {
  const body: unknown = await request.json().catch(() => undefined);
  if (typeof body !== "object" || body === null) return undefined;
  const { messages, max_tokens: maxTokens = DEFAULT_MAX_TOKENS } = body as Record<string, unknown>;
  const isMessage = (each: unknown) => {
    const { role, content } = (each ?? {}) as Record<string, unknown>;
    return typeof role === "string" && typeof content === "string";
  };
  if (!Array.isArray(messages) || messages.length === 0 || !messages.every(isMessage)) return undefined;
  return Number.isInteger(maxTokens) && Number(maxTokens) >= 1 ? (body as Prompt) : undefined;
}

/** When this call fails, the hold expires later, and the estimate counts as used. */
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
    // With `include_usage` the last event of the stream says how many tokens were used.
    body: JSON.stringify({ ...prompt, stream: true, stream_options: { include_usage: true } }),
  }).catch((error: unknown) => new Response(String(error), { status: 502 }));
}

/**
 * Passes the model's events through, and calls `settle` once with the number of tokens used. The model says it at the
 * end. If the stream ends sooner (the client has gone), it is the prompt's estimate and one token for each event.
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

/** English has about four characters in a token. An estimate is enough, because the hold is settled later. */
function estimatedTokens({ messages }: Prompt): number {
  return messages.reduce((tokens, { content }) => tokens + Math.ceil(content.length / 4) + 4, 0);
}

function tooMany(retryAfterMs: number | null | undefined): Response {
  const headers =
    typeof retryAfterMs === "number" ? { "retry-after": String(Math.ceil(retryAfterMs / 1_000)) } : {};
  return new Response("the budget of tokens is used up", { status: 429, headers });
}
