/** Budgets around a model of the AI SDK, by what its middleware of versions 5 to 7 has in common. */
import { endedStream } from "../ended-stream.ts";
import type { End } from "../verdict.ts";
import {
  type BudgetOptions,
  Charge,
  charge,
  DEFAULT_BYTES_PER_TOKEN,
  endCharge,
  inputOf,
  isSoon,
  type CallerSignal,
  type Refusal,
  requireBudgetOptions,
} from "./budget.ts";
import { type Json, objectIn } from "./dialects.ts";
import { bytesOf, outputBytes } from "./text-length.ts";
import { Meter, type ReportedUsage, tokensIn } from "./usage.ts";

interface CallParams {
  readonly maxOutputTokens?: number | undefined;
  readonly abortSignal?: CallerSignal;
}

interface Model {
  readonly modelId: string;
}

/** The part of the AI SDK's middleware that is used, with the types of whichever version. */
export interface BudgetMiddleware {
  readonly specificationVersion: "v3";
  transformParams<Params extends CallParams>(call: { readonly params: Params }): Promise<Params>;
  wrapGenerate<Result>(call: {
    readonly doGenerate: () => PromiseLike<Result>;
    readonly params: CallParams;
    readonly model: Model;
  }): Promise<Result>;
  wrapStream<Result extends { readonly stream: ReadableStream }>(call: {
    readonly doStream: () => PromiseLike<Result>;
    readonly params: CallParams;
    readonly model: Model;
  }): Promise<Result>;
}

/**
 * Thrown in place of a call that the budgets do not admit. The AI SDK repeats it after `retry-after-ms` as it repeats a
 * provider's 429, since it has the marks and fields of its `APICallError`.
 */
export class BudgetExceededError extends Error {
  override readonly name = "BudgetExceededError";
  readonly statusCode: number;
  /** Milliseconds until the call would pass; `null`: never; `undefined`: unknown. */
  readonly retryAfterMs: number | null | undefined;
  readonly isRetryable: boolean;
  readonly responseHeaders: Readonly<Record<string, string>>;

  constructor({ status, detail, retryAfterMs }: Refusal) {
    super(detail);
    this.statusCode = status;
    this.retryAfterMs = retryAfterMs;
    this.isRetryable = isSoon(retryAfterMs);
    // Whoever has the AI SDK knows its errors by these.
    Object.assign(this, {
      [Symbol.for("vercel.ai.error")]: true,
      [Symbol.for("vercel.ai.error.AI_APICallError")]: true,
    });
    this.responseHeaders = typeof retryAfterMs === "number" ? { "retry-after-ms": String(retryAfterMs) } : {};
  }
}

/**
 * Middleware for `wrapLanguageModel` of the package `ai`: holds what a call may use, and settles what it has used. A call
 * that is not admitted throws a `BudgetExceededError`.
 */
export function budgetMiddleware(options: BudgetOptions): BudgetMiddleware {
  requireBudgetOptions(options);
  const bound = ({ maxOutputTokens }: CallParams) => maxOutputTokens ?? options.maxOutputTokens;
  return {
    specificationVersion: "v3",
    transformParams({ params }) {
      return Promise.resolve({ ...params, maxOutputTokens: bound(params) });
    },
    async wrapGenerate({ doGenerate, params, model }) {
      const call = await begin(options, params, model, bound(params));
      const result = await call.run(doGenerate);
      call.seeResult(result as Json);
      call.end("complete");
      return result;
    },
    async wrapStream({ doStream, params, model }) {
      const call = await begin(options, params, model, bound(params));
      const result = await call.run(doStream);
      const stream = endedStream(
        result.stream,
        (how) => call.end(how),
        (part: unknown) => call.seePart(part as Json),
      );
      return { ...result, stream };
    },
  };
}

/** @throws BudgetExceededError if the budgets do not admit the call */
async function begin(
  options: BudgetOptions,
  params: CallParams,
  { modelId }: Model,
  output: number,
): Promise<Call> {
  const { bytesPerToken = DEFAULT_BYTES_PER_TOKEN, onCut } = options;
  const input = inputOf(options, params);
  const request = { model: modelId, input, output, headers: undefined, request: params };
  const charged = await charge(options, request, params.abortSignal);
  if (!(charged instanceof Charge)) throw new BudgetExceededError(charged);
  return new Call(charged, new Meter({ input, output }, bytesPerToken), onCut === "held");
}

/** A charged call, whose usage is read from its result or the parts of its stream. */
class Call {
  readonly #charge: Charge;
  readonly #meter: Meter;
  readonly #isCutInFull: boolean;

  constructor(charged: Charge, meter: Meter, isCutInFull: boolean) {
    this.#charge = charged;
    this.#meter = meter;
    this.#isCutInFull = isCutInFull;
  }

  async run<Result>(work: () => PromiseLike<Result>): Promise<Result> {
    try {
      return await work();
    } catch (error) {
      const status = (error as { readonly statusCode?: unknown } | null)?.statusCode;
      // The provider refused it; without a status it may have used something.
      if (typeof status === "number") this.#charge.cancel();
      else this.end("aborted");
      throw error;
    }
  }

  seeResult(result: Json): void {
    this.#report(result["usage"]);
    this.#meter.see(outputBytes(result));
  }

  seePart(part: Json): void {
    if (part["type"] === "finish") this.#report(part["usage"]);
    else if (typeof part["delta"] === "string") this.#meter.see(bytesOf(part["delta"]));
  }

  end(how: End): void {
    endCharge(this.#charge, this.#meter, how, this.#isCutInFull);
  }

  #report(usage: unknown): void {
    this.#meter.report(reportedBy(objectIn(usage) ?? {}), true);
  }
}

/** Usage of version 5, in numbers, or of later ones, in parts. */
function reportedBy({ inputTokens, outputTokens, cachedInputTokens }: Json): ReportedUsage {
  const input = objectIn(inputTokens) ?? { total: inputTokens, cacheRead: cachedInputTokens };
  const cachedInput = tokensIn(input["cacheRead"]) ?? 0;
  const cacheWrite = tokensIn(input["cacheWrite"]) ?? 0;
  const total = tokensIn(input["total"]);
  const output = tokensIn(objectIn(outputTokens)?.["total"] ?? outputTokens);
  return {
    ...(total !== undefined && { input: Math.max(0, total - cachedInput - cacheWrite) }),
    ...(total !== undefined && { cachedInput, cacheWrite }),
    ...(output !== undefined && { output }),
  };
}
