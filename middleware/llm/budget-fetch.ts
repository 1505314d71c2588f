/**
 * A `fetch` for providers that speak as OpenAI or Anthropic do, within budgets. It is the `fetch` option of their clients.
 */
import { SYSTEM_TIME } from "../../core/clock.ts";
import { clip, violation } from "../../core/violations.ts";
import { endedStream } from "../ended-stream.ts";
import type { Fetch } from "../fetch/limited-fetch.ts";
import { pause, pausedForMs } from "../fetch/pauses.ts";
import type { End } from "../verdict.ts";
import {
  type BudgetOptions,
  Charge,
  charge,
  DEFAULT_BYTES_PER_TOKEN,
  endCharge,
  inputOf,
  isSoon,
  type ModelRequest,
  type Refusal,
  requireBudgetOptions,
} from "./budget.ts";
import {
  boundedRequest,
  type Dialect,
  dialectOf,
  isUnfinished,
  type Json,
  objectIn,
  parsed,
} from "./dialects.ts";
import { EventReader } from "./event-reader.ts";
import { providerPauseMs } from "./provider-pauses.ts";
import { bytesOf, outputBytes } from "./text-length.ts";
import { Meter } from "./usage.ts";

export interface BudgetFetchOptions extends BudgetOptions {
  /** Absent: the runtime's own. */
  readonly fetch?: Fetch;
  /**
   * Whether a POST passes whose use is not known by its path, such as one for speech: no budget counts it then. Absent:
   * it is answered with 400.
   */
  readonly unbudgeted?: (url: URL) => boolean;
}

/**
 * A `fetch` that holds what a request may use, and settles what it has used when its answer has ended. A request that
 * its budgets do not admit is not sent: it is answered with 429, in the form that the providers' clients understand.
 */
export function budgetFetch(options: BudgetFetchOptions): Fetch {
  requireBudgetOptions(options, ["fetch", "unbudgeted"]);
  const { limiter, unbudgeted, time = SYSTEM_TIME } = options;
  if (unbudgeted !== undefined && typeof unbudgeted !== "function")
    throw new TypeError(violation(["unbudgeted"], unbudgeted, "a function of the URL"));
  return async (input, init) => {
    const send = options.fetch ?? fetch;
    const request = typeof input === "object" && "method" in input ? input : undefined;
    const url = new URL(typeof input === "string" ? input : "url" in input ? input.url : input.href);
    const isPost = (init?.method ?? request?.method ?? "GET").toUpperCase() === "POST";
    const dialect = isPost ? dialectOf(url.pathname) : "without-tokens";
    // A promise is not an answer: it would let everything pass.
    const isUnbudgeted = dialect === undefined && unbudgeted?.(url) === true;
    if (isUnbudgeted || dialect === "without-tokens") return await send(input, init);
    if (dialect === undefined) return refused(unknownUse(url));
    const signal = init?.signal === undefined ? request?.signal : init.signal;
    const headers = new Headers(init?.headers ?? request?.headers);
    const asked = readRequest(dialect, await bodyOf(request, init), headers, options);
    if (typeof asked === "string") return refused({ status: 400, detail: asked, retryAfterMs: null });
    const name = JSON.stringify(["model", url.origin, asked.model]);
    const pausedMs = pausedForMs(limiter, name, time.nowMs());
    if (pausedMs > 0) {
      const detail = `the provider asked for a pause: it ends in ${pausedMs} ms`;
      return refused({ status: 429, detail, retryAfterMs: pausedMs });
    }
    const charged = await charge(options, asked, signal);
    if (!(charged instanceof Charge)) return refused(charged);
    const answer = new Answer(charged, asked, dialect, options);
    // The text that is sent is longer than the caller's.
    headers.delete("content-length");
    const sent = { ...init, headers, body: asked.text };
    try {
      const response = await (request === undefined ? send(input, sent) : send(new Request(request, sent)));
      const pauseMs = providerPauseMs(response, time.nowMs());
      if (pauseMs > 0) pause(limiter, name, time.nowMs() + pauseMs);
      return answer.of(response);
    } catch (error) {
      answer.end("aborted");
      throw error;
    }
  };
}

function unknownUse({ pathname }: URL): Refusal {
  const detail = `POST ${clip(pathname)} was not sent: what it uses is not known, so no budget can count it. \
The option unbudgeted of budgetFetch lets it pass`;
  return { status: 400, detail, retryAfterMs: null };
}

/** The body's text. That of a `Request` can still be read afterwards. */
async function bodyOf(request: Request | undefined, init: RequestInit | undefined): Promise<string> {
  const body = init?.body ?? undefined;
  if (typeof body === "string") return body;
  if (body !== undefined) return await new Response(body).text();
  return (await request?.clone().text()) ?? "";
}

/** A request, and the text that is sent: what was read, so that a field that is written twice is one. */
type ReadRequest = ModelRequest & { readonly text: string };

/** A text is what is wrong with the request. */
function readRequest(
  dialect: Dialect,
  given: string,
  headers: Headers,
  options: BudgetOptions,
): ReadRequest | string {
  const bounded = boundedRequest(dialect, given, options.maxOutputTokens);
  if (typeof bounded === "string") return bounded;
  const { model, output, body } = bounded;
  try {
    const input = inputOf(options, body);
    return { model, input, output, headers, request: body, text: JSON.stringify(body) };
  } catch (error) {
    if (error instanceof RangeError) return "the body must not be nested so deeply";
    throw error;
  }
}

/** A longer text of an answer is counted by its length: no model answers so much in one. */
const MAX_ANSWER_CHARACTERS = 16_000_000;

/** The answer to a charged request: its usage is read as it passes. */
class Answer {
  readonly #charge: Charge;
  readonly #meter: Meter;
  readonly #dialect: Dialect;
  readonly #isCutInFull: boolean;
  /** It is made later, also if nobody reads it: what it uses is known only from its end. */
  #isMadeLater: boolean;

  constructor(
    charged: Charge,
    request: ModelRequest,
    dialect: Dialect,
    { bytesPerToken = DEFAULT_BYTES_PER_TOKEN, onCut }: BudgetOptions,
  ) {
    this.#charge = charged;
    this.#meter = new Meter(request, bytesPerToken);
    this.#dialect = dialect;
    this.#isCutInFull = onCut === "held";
    this.#isMadeLater = Boolean(objectIn(request.request)?.["background"]);
  }

  /** The response, whose charge ends with its body. */
  of(response: Response): Response {
    if (!response.ok || response.body === null) {
      // Without a body there is no output.
      if (response.ok) this.end("complete");
      else this.#charge.cancel();
      return response;
    }
    const isStream = response.headers.get("content-type")?.includes("text/event-stream") === true;
    const reader = isStream
      ? new EventReader((data) => void this.#see(data))
      : new TextReader((text) => this.#see(text) || this.#meter.see(bytesOf(text)));
    const passed = endedStream(
      response.body,
      (how) => {
        reader.end();
        this.end(how);
      },
      (chunk: Uint8Array) => reader.read(chunk),
    );
    const copy = new Response(passed, response);
    // The body was decoded on its way here.
    for (const name of ["content-encoding", "content-length"]) copy.headers.delete(name);
    return copy;
  }

  end(how: End): void {
    if (this.#isMadeLater && !this.#meter.isFinal) this.#charge.settleInFull();
    else endCharge(this.#charge, this.#meter, how, this.#isCutInFull);
  }

  /** Whether it is JSON. */
  #see(text: string): boolean {
    const answer = parsed(text);
    if (answer === undefined) return false;
    this.#report(answer);
    this.#meter.see(outputBytes(answer));
    if (isUnfinished(answer)) this.#isMadeLater = true;
    return true;
  }

  #report(answer: Json): void {
    const { usageIn, read } = this.#dialect;
    const found = usageIn(answer);
    if (found !== undefined) this.#meter.report(read(found.usage), found.isFinal);
  }
}

/** Reads a whole answer of JSON. */
class TextReader {
  readonly #onText: (text: string) => unknown;
  readonly #decoder = new TextDecoder();
  #text = "";

  constructor(onText: (text: string) => unknown) {
    this.#onText = onText;
  }

  read(chunk: Uint8Array): void {
    if (this.#text.length <= MAX_ANSWER_CHARACTERS)
      this.#text += this.#decoder.decode(chunk, { stream: true });
  }

  end(): void {
    this.#onText(this.#text + this.#decoder.decode());
  }
}

/** The answer to a request that was not sent. Its headers say when clients may repeat it, which do so by themselves. */
function refused({ status, detail, retryAfterMs }: Refusal): Response {
  const type = status === 400 ? "invalid_request_error" : status === 429 ? "rate_limit_error" : "api_error";
  const code = status === 429 ? "budget_exceeded" : null;
  const isWait = typeof retryAfterMs === "number";
  return Response.json(
    { type: "error", error: { type, code, param: null, message: detail } },
    {
      status,
      headers: {
        ...(isWait && {
          "retry-after": String(Math.ceil(retryAfterMs / 1_000)),
          "retry-after-ms": String(retryAfterMs),
        }),
        "x-should-retry": String(isSoon(retryAfterMs)),
      },
    },
  );
}
