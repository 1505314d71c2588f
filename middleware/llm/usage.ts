/** Tokens that a model used, and what they cost. */
import {
  describe,
  oneOfNames,
  requireGiven,
  requireInteger,
  requireKnownOptions,
} from "../../core/violations.ts";

/** Tokens of one request. The three kinds of input do not overlap. */
export interface Usage {
  readonly input: number;
  /** Input that the provider read from its cache. */
  readonly cachedInput: number;
  /** Input that the provider wrote into its cache. */
  readonly cacheWrite: number;
  /** Output, that of reasoning included. */
  readonly output: number;
}

/**
 * What a million tokens cost, as integers of a unit that you choose: with millionths of a dollar 2_500_000 is $2.50. A
 * policy counts up to 1,000,000,000 units, so that unit reaches $1,000; larger budgets take a larger unit.
 */
export interface Price {
  readonly input: number;
  /** Absent: the price of `input`. */
  readonly cachedInput?: number;
  /** Absent: the price of `input`. */
  readonly cacheWrite?: number;
  readonly output: number;
}

const PRICE_FIELDS = ["input", "cachedInput", "cacheWrite", "output"] as const;
const MAX_PRICE = 1_000_000_000;
const TOKENS_OF_PRICE = 1_000_000n;

/** @throws TypeError that names the model, the field, its value and what is allowed */
export function requirePrice(name: string, price: Price): void {
  if (typeof price !== "object" || price === null)
    throw new TypeError(
      `${name} is ${describe(price)}: must be { input, output }, prices of a million tokens`,
    );
  requireKnownOptions(price, PRICE_FIELDS);
  for (const field of PRICE_FIELDS) requireInteger(`${name}.${field}`, price[field], 0, MAX_PRICE);
  for (const field of ["input", "output"] as const)
    requireGiven(`${name}.${field}`, price[field], "the price of a million tokens");
}

/** The price of a model, or the sentence for whoever asked for it. */
export function priceOf(
  model: string,
  prices: Readonly<Record<string, Price>>,
  defaultPrice: Price | undefined,
): Price | string {
  const price = Object.hasOwn(prices, model) ? prices[model] : defaultPrice;
  return (
    price ??
    `model is ${describe(model)}, which has no price: must be ${oneOfNames(model, Object.keys(prices))}`
  );
}

/** The cost of a request, rounded up. Products of tokens and prices are larger than floating point is exact. */
export function costOf({ input, cachedInput, cacheWrite, output }: Usage, price: Price): number {
  const parts = [
    [input, price.input],
    [cachedInput, price.cachedInput ?? price.input],
    [cacheWrite, price.cacheWrite ?? price.input],
    [output, price.output],
  ] as const;
  const sum = parts.reduce((all, [tokens, each]) => all + BigInt(tokens) * BigInt(each), 0n);
  return Number((sum + TOKENS_OF_PRICE - 1n) / TOKENS_OF_PRICE);
}

/** The most that a request may cost that has so many tokens of input, cached or not. */
export function maxCostOf(input: number, output: number, price: Price): number {
  const dearest = Math.max(price.input, price.cachedInput ?? 0, price.cacheWrite ?? 0);
  return costOf({ input, cachedInput: 0, cacheWrite: 0, output }, { input: dearest, output: price.output });
}

/** Usage as a provider reports it, perhaps in parts. */
export type ReportedUsage = Partial<Usage>;

/** A number of tokens in a provider's answer; anything else is none. */
export function tokensIn(value: unknown): number | undefined {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

/** What a request has used so far: reported, or counted by the length of what was seen. */
export class Meter {
  readonly #estimate: { readonly input: number; readonly output: number };
  readonly #bytesPerToken: number;
  #seenBytes = 0;
  #reported: ReportedUsage = {};
  /** The output's usage was reported at its end. */
  #isFinal = false;

  constructor(estimate: { readonly input: number; readonly output: number }, bytesPerToken: number) {
    this.#estimate = estimate;
    this.#bytesPerToken = bytesPerToken;
  }

  get isFinal(): boolean {
    return this.#isFinal;
  }

  /** Output that passed, in bytes of its text. */
  see(bytes: number): void {
    this.#seenBytes += bytes;
  }

  /** Reports grow: one that is repeated, or lacks a field, lowers nothing. */
  report(usage: ReportedUsage, isFinal: boolean): void {
    const before = this.#reported;
    const max = (field: keyof Usage) => {
      const tokens = Math.max(before[field] ?? -1, usage[field] ?? -1);
      return tokens < 0 ? {} : { [field]: tokens };
    };
    this.#reported = { ...max("input"), ...max("cachedInput"), ...max("cacheWrite"), ...max("output") };
    if (isFinal && usage.output !== undefined) this.#isFinal = true;
  }

  usage(): Usage {
    const { input, cachedInput = 0, cacheWrite = 0, output = 0 } = this.#reported;
    // No more than the request allowed: bytes may be many for a token.
    const counted = Math.min(this.#estimate.output, Math.ceil(this.#seenBytes / this.#bytesPerToken));
    return {
      input: input ?? this.#estimate.input,
      cachedInput,
      cacheWrite,
      output: this.#isFinal ? output : Math.max(output, counted),
    };
  }
}
