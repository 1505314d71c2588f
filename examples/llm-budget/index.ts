/**
 * A gateway to language models, with a budget for each user and each team. Clients of OpenAI and of Anthropic take its
 * address as their base URL. What a request may use is held before it is sent; what it has used is settled when its
 * answer ends.
 */
import { waitUntil } from "cloudflare:workers";
import type { LimiterService } from "weir-limiter";
import { createLimiter } from "weir-limiter/client";
import { budgetFetch, type Price } from "weir-limiter/llm";

interface Env {
  readonly LIMITER: LimiterService;
  readonly OPENAI_URL: string;
  readonly ANTHROPIC_URL: string;
  /** Secrets, sent to the providers. */
  readonly OPENAI_KEY?: string;
  readonly ANTHROPIC_KEY?: string;
  /** A secret: who has which key of this gateway, `{ "KEY": { "user": "ann", "team": "search" } }` as JSON. */
  readonly CALLERS?: string;
}

interface Caller {
  readonly user: string;
  readonly team: string;
}

/** Millionths of a dollar for a million tokens. Examples: take those of your contract. */
const PRICES: Readonly<Record<string, Price>> = {
  "gpt-4o-mini": { input: 150_000, cachedInput: 75_000, output: 600_000 },
  "claude-haiku-4-5": { input: 1_000_000, cachedInput: 100_000, cacheWrite: 1_250_000, output: 5_000_000 },
};
/** For requests that do not bound their answers. */
const MAX_OUTPUT_TOKENS = 1_000;
/** What is passed on of a request beside its body. */
const PASSED_HEADERS = ["content-type", "anthropic-version", "anthropic-beta"];

export default {
  async fetch(request, env): Promise<Response> {
    const provider = providerOf(new URL(request.url).pathname, env);
    if (request.method !== "POST" || provider === undefined)
      return problem(404, "not_found_error", "there are POST /v1/chat/completions and POST /v1/messages");
    const caller = callerOf(request.headers, env);
    if (caller === undefined) return problem(401, "authentication_error", "a key of this gateway is needed");
    const budgets = [
      { policy: "model-user", key: `user:${caller.user}` },
      { policy: "model-team", key: `team:${caller.team}`, units: ["cost"] },
    ] as const;
    // The same one for all requests of the isolate: it keeps the pauses that providers ask for.
    const limiter = createLimiter({ service: env.LIMITER });
    const context = { waitUntil };
    const send = budgetFetch({
      limiter,
      budgets,
      prices: PRICES,
      maxOutputTokens: MAX_OUTPUT_TOKENS,
      context,
    });
    const headers = new Headers(provider.headers);
    for (const [name, value] of request.headers) if (PASSED_HEADERS.includes(name)) headers.set(name, value);
    try {
      return await send(provider.url, { method: "POST", headers, body: await request.text() });
    } catch (error) {
      console.error(error);
      return problem(502, "api_error", "the provider did not answer");
    }
  },
} satisfies ExportedHandler<Env>;

/** Each provider gets its own key, and no other. */
function providerOf(path: string, env: Env) {
  if (path === "/v1/chat/completions")
    return { url: env.OPENAI_URL + path, headers: { authorization: `Bearer ${env.OPENAI_KEY ?? ""}` } };
  if (path === "/v1/messages")
    return { url: env.ANTHROPIC_URL + path, headers: { "x-api-key": env.ANTHROPIC_KEY ?? "" } };
  return undefined;
}

/** OpenAI's client sends its key as a bearer token, Anthropic's in a header of its own. */
function callerOf(headers: Headers, env: Env): Caller | undefined {
  const bearer = /^Bearer (.+)$/.exec(headers.get("authorization") ?? "")?.[1];
  const key = headers.get("x-api-key") ?? bearer ?? "";
  const callers = new Map(Object.entries(JSON.parse(env.CALLERS ?? "{}") as Record<string, Caller>));
  return callers.get(key);
}

/** An error as the clients of both providers read it. */
function problem(status: number, type: string, message: string): Response {
  return Response.json({ type: "error", error: { type, message } }, { status });
}
