/**
 * OpenAI's client within a limit that all processes share: its requests wait for their turn at Weir, and when the model
 * answers 429 with Retry-After all of them pause.
 */
import OpenAI from "openai";
import { createLimiter } from "weir-limiter/client";
import { FetchLimitedError, limitedFetch } from "weir-limiter/fetch";

const { WEIR_URL = "http://127.0.0.1:8787", WEIR_TOKEN = "", MODEL_URL, MODEL_KEY = "" } = process.env;
await using limiter = createLimiter({ url: WEIR_URL, token: WEIR_TOKEN });

const openai = new OpenAI({
  apiKey: MODEL_KEY,
  ...(MODEL_URL !== undefined && { baseURL: MODEL_URL }),
  // One place retries: limitedFetch knows when the next request may go.
  maxRetries: 0,
  fetch: limitedFetch({ limiter, policy: "model", key: "account-1", waitMs: 10_000 }),
});

async function answerTo(content: string): Promise<string> {
  try {
    const messages = [{ role: "user" as const, content }];
    const { choices } = await openai.chat.completions.create({ model: "gpt-4o-mini", messages });
    return choices[0]?.message.content ?? "";
  } catch (error) {
    // The client wraps what its fetch throws.
    const cause = error instanceof Error ? error.cause : undefined;
    if (cause instanceof FetchLimitedError) return `come again in ${cause.retryAfterMs} ms`;
    throw error;
  }
}

for (const question of process.argv.slice(2)) console.log(await answerTo(question));
