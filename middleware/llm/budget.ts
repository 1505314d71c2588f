/** Budgets of a request to a model: its estimate is held before, its use is settled after. */
import type { CallFields, Limiter, PeekRequest } from "../../client/limiter.ts";
import { MAX_UNITS } from "../../core/algorithms/algorithm.ts";
import type { Time } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import {
  oneOfNames,
  requireGiven,
  requireInteger,
  requireKnownOptions,
  requireMethods,
  requireTime,
  violation,
} from "../../core/violations.ts";
import { type Given, valueOf } from "../options.ts";
import { endHold, untilCalled } from "../settle-on-end.ts";
import type { End } from "../verdict.ts";
import { estimatedInput } from "./text-length.ts";
import { costOf, maxCostOf, type Meter, type Price, priceOf, requirePrice, type Usage } from "./usage.ts";

/** What a budget counts, named as the `unit` of the policy's rule. `cost` is that of `prices`. */
export type BudgetUnit = "tokens" | "input-tokens" | "output-tokens" | "cost";

/** A key whose budget pays. Rules with other units, such as `requests`, take 1 for each request. */
export type Budget = BudgetFields<CallFields<"takes", "plan" | "group" | "cost">> & { readonly key: string };

/** The fields of a call, with `units` in place of `cost`: absent `["tokens"]`. Each is the unit of a rule of the policy. */
type BudgetFields<Fields> = Fields extends unknown
  ? {
      [Field in keyof Fields as Field extends "cost" ? "units" : Field]: Field extends "cost"
        ? readonly UnitOf<Exclude<Fields[Field], number | undefined>>[]
        : Fields[Field];
    }
  : never;

/** What a budget can count of the units in a cost. */
type UnitOf<Cost> = [Cost] extends [never] ? never : Extract<BudgetUnit, keyof Cost>;

/** A request to a model, before it is sent. */
export interface ModelRequest {
  readonly model: string;
  /** Tokens of the input, estimated. */
  readonly input: number;
  /** The most tokens of output. */
  readonly output: number;
  /** The headers, or `undefined` where there are none. */
  readonly headers: Headers | undefined;
  /** The body as JSON, or the parameters of the AI SDK. */
  readonly request: unknown;
}

export interface BudgetOptions {
  /** `peek` is called for a denial with a long wait: calls in flight may end it sooner. */
  readonly limiter: Pick<Limiter, "hold" | "settle" | "cancel"> & Partial<Pick<Limiter, "peek">>;
  /** The budgets that all have to admit a request, up to 16; or a function of it. */
  readonly budgets: Given<[request: ModelRequest], readonly Budget[]>;
  /** The bound of output that is written into requests without one, in tokens. */
  readonly maxOutputTokens: number;
  /** Prices by model, for the unit `cost`. */
  readonly prices?: Readonly<Record<string, Price>>;
  /** The price of models that are not in `prices`. Absent: such a request is rejected. */
  readonly defaultPrice?: Price;
  /**
   * Bytes of text for a token, where tokens are not reported yet: an integer, absent 2. English has about four; with 1
   * no text has more tokens than are held.
   */
  readonly bytesPerToken?: number;
  /** Tokens of a request's input, in place of the estimate by `bytesPerToken`. */
  readonly inputTokens?: (request: unknown) => number;
  /** How much an answer has used that was cut: what was `"seen"` of it (absent), or all that was `"held"`. */
  readonly onCut?: "seen" | "held";
  /** How long an answer may take, in milliseconds, absent 600,000. A hold that expires counts as used in full. */
  readonly ttlMs?: number;
  /** What the runtime passes with a request: its `waitUntil` lets settlements outlive the answer. */
  readonly context?: object;
  /** For tests. Absent: the real clock and timers. */
  readonly time?: Time;
}

const OPTIONS = [
  "limiter",
  "budgets",
  "maxOutputTokens",
  "prices",
  "defaultPrice",
  "bytesPerToken",
  "inputTokens",
  "onCut",
  "ttlMs",
  "context",
  "time",
];
const BUDGET_FIELDS = ["policy", "key", "units", "plan", "group"];
const UNITS = ["tokens", "input-tokens", "output-tokens", "cost"] as const;
const MAX_BUDGETS = 16;
const MAX_TTL_MS = 86_400_000;
const DEFAULT_TTL_MS = 600_000;
export const DEFAULT_BYTES_PER_TOKEN = 2;

/** @throws TypeError that names the option, its value and what is allowed */
export function requireBudgetOptions(options: BudgetOptions, others: readonly string[] = []): void {
  requireKnownOptions(options, [...OPTIONS, ...others]);
  const limiter = "a limiter, as createLimiter makes one";
  requireGiven("limiter", options.limiter, limiter);
  requireMethods("limiter", options.limiter, ["hold", "settle", "cancel"], limiter);
  requireGiven("budgets", options.budgets, "a list of { policy, key }, or a function that finds it");
  requireGiven("maxOutputTokens", options.maxOutputTokens, `an integer, from 1 to ${MAX_UNITS}`);
  requireInteger("maxOutputTokens", options.maxOutputTokens, 1, MAX_UNITS);
  requireInteger("bytesPerToken", options.bytesPerToken, 1);
  requireInteger("ttlMs", options.ttlMs, 1, MAX_TTL_MS);
  requireTime("time", options.time);
  if (options.inputTokens !== undefined && typeof options.inputTokens !== "function")
    throw new TypeError(violation(["inputTokens"], options.inputTokens, "a function of the request"));
  const { onCut, prices = {}, defaultPrice } = options;
  if (onCut !== undefined && onCut !== "seen" && onCut !== "held")
    throw new TypeError(violation(["onCut"], onCut, '"seen" or "held"'));
  for (const [model, price] of Object.entries(prices)) requirePrice(`prices.${model}`, price);
  if (defaultPrice !== undefined) requirePrice("defaultPrice", defaultPrice);
  if (typeof options.budgets !== "function") requireBudgets(options.budgets, options);
}

function requireBudgets(budgets: readonly Budget[], { prices, defaultPrice }: BudgetOptions): void {
  if (!Array.isArray(budgets) || budgets.length === 0 || budgets.length > MAX_BUDGETS)
    throw new TypeError(violation(["budgets"], budgets, `a list of 1 to ${MAX_BUDGETS} of { policy, key }`));
  for (const budget of budgets as readonly Budget[]) {
    requireKnownOptions(budget, BUDGET_FIELDS);
    requireGiven("key of a budget", budget.key, "a text");
    const { units = [] } = budget;
    const unknown = units.find((unit) => !UNITS.includes(unit));
    if (unknown !== undefined) throw new TypeError(violation(["units"], unknown, oneOfNames(unknown, UNITS)));
    if (units.includes("cost") && prices === undefined && defaultPrice === undefined)
      throw new TypeError("prices is missing: must be given where a budget has the unit cost");
  }
}

/** Tokens of a request's input. @throws TypeError if the caller's function returns no number of tokens */
export function inputOf(
  { inputTokens, bytesPerToken = DEFAULT_BYTES_PER_TOKEN }: BudgetOptions,
  request: unknown,
): number {
  const counted = inputTokens?.(request);
  requireInteger("inputTokens of a request", counted, 0);
  return counted ?? estimatedInput(request, bytesPerToken);
}

/** A request that is not sent. */
export interface Refusal {
  readonly status: 400 | 429 | 503;
  /** For whoever made the request: it names no key. */
  readonly detail: string;
  /** Milliseconds until it would pass; `null`: never; `undefined`: unknown, also while calls in flight may end a long wait. */
  readonly retryAfterMs: number | null | undefined;
}

/** A signal of whoever makes a request. */
export type CallerSignal = { throwIfAborted(): void } | null | undefined;

/** A longer wait, in milliseconds, is not one that a client should sleep through. */
const MAX_RETRY_MS = 60_000;

/** Whether a client should repeat a refused request by itself. */
export function isSoon(retryAfterMs: Refusal["retryAfterMs"]): boolean {
  return retryAfterMs === undefined || (retryAfterMs !== null && retryAfterMs <= MAX_RETRY_MS);
}

/**
 * Holds the estimate of a request in each of its budgets, or in none. A caller that has left by then holds nothing.
 * @throws LimiterError if the limiter rejects a call, or the signal's reason
 */
export async function charge(
  options: BudgetOptions,
  request: ModelRequest,
  signal: CallerSignal,
): Promise<Charge | Refusal> {
  const budgets = await valueOf(options.budgets, [request]);
  if (typeof options.budgets === "function") requireBudgets(budgets, options);
  const isPriced = budgets.some(({ units = [] }) => units.includes("cost"));
  const price = isPriced ? priceOf(request.model, options.prices ?? {}, options.defaultPrice) : FREE;
  if (typeof price === "string") return { status: 400, detail: price, retryAfterMs: null };
  const usage = { ...NOTHING, input: request.input, output: request.output };
  const estimate = { usage, cost: maxCostOf(request.input, request.output, price) };
  const held: Held[] = [];
  const result = new Charge(options, price, held);
  try {
    for (const budget of budgets) {
      signal?.throwIfAborted();
      const refusal = await hold(options, budget, unitsOf(budget, estimate), held);
      if (refusal === undefined) continue;
      result.cancel();
      return refusal;
    }
    signal?.throwIfAborted();
  } catch (error) {
    result.cancel();
    throw error;
  }
  return result;
}

const FREE: Price = { input: 0, output: 0 };
const NOTHING: Usage = { input: 0, cachedInput: 0, cacheWrite: 0, output: 0 };

interface Held {
  readonly id: string;
  readonly budget: Budget;
  readonly units: Units;
}

type Units = Readonly<Record<string, number>>;

function unitsOf(
  { units = ["tokens"] }: Budget,
  use: { readonly usage: Usage; readonly cost: number },
): Units {
  const { input, cachedInput, cacheWrite, output } = use.usage;
  const allInput = input + cachedInput + cacheWrite;
  const amounts = {
    tokens: allInput + output,
    "input-tokens": allInput,
    "output-tokens": output,
    cost: use.cost,
  };
  return Object.fromEntries(units.map((unit) => [unit, amounts[unit]]));
}

async function hold(
  { limiter, ttlMs = DEFAULT_TTL_MS }: BudgetOptions,
  budget: Budget,
  units: Units,
  held: Held[],
): Promise<Refusal | undefined> {
  const { units: _, ...target } = budget;
  const [unit, most] = Object.entries(units).find(([, amount]) => amount > MAX_UNITS) ?? [];
  if (unit !== undefined) {
    const detail = `the request may use ${most} of the unit ${unit}, more than any budget has`;
    return { status: 429, detail, retryAfterMs: null };
  }
  const decision = await limiter.hold({ ...target, units, ttlMs });
  if (!decision.success) return refusalOf(decision, await flightsBefore(limiter, target, decision));
  // Without a hold the policy's `onFailure` admitted, or it is in shadow: nothing was taken.
  if (decision.hold !== undefined) held.push({ id: decision.hold.id, budget, units });
  return undefined;
}

/** How many calls hold units of a budget that would not admit for long otherwise: a settlement gives back what is not used. */
async function flightsBefore(
  limiter: BudgetOptions["limiter"],
  target: Omit<Budget, "units">,
  { reason, retryAfterMs }: Decision,
): Promise<number> {
  if (reason !== "quota" || isSoon(retryAfterMs) || limiter.peek === undefined) return 0;
  const report = await limiter.peek(target as PeekRequest).catch(() => undefined);
  return report?.holds ?? 0;
}

function refusalOf(
  { policy, reason, retryAfterMs, violated = [], source }: Decision,
  flights: number,
): Refusal {
  if (source === "fallback" && reason === "degraded")
    return { status: 503, detail: `the budget ${policy} cannot be read now`, retryAfterMs: undefined };
  const rules = violated.length === 0 ? "" : ` (${violated.join(", ")})`;
  const wait =
    typeof retryAfterMs === "number" ? `it would pass in ${retryAfterMs} ms` : "it would never pass";
  const sooner = flights === 0 ? "" : `, or sooner, as ${flights} in flight give back what they do not use`;
  return {
    status: 429,
    detail: `the budget ${policy}${rules} does not admit the request: ${wait}${sooner}`,
    retryAfterMs: flights === 0 ? retryAfterMs : undefined,
  };
}

/** What a request holds, until it is ended by one of these methods. Only the first call counts. */
export class Charge {
  readonly #options: BudgetOptions;
  readonly #price: Price;
  readonly #held: readonly Held[];
  #usedOf: ((held: Held) => Units) | undefined;
  readonly #begin: () => void;
  #isOver = false;

  constructor(options: BudgetOptions, price: Price, held: readonly Held[]) {
    this.#options = options;
    this.#price = price;
    this.#held = held;
    this.#begin = untilCalled(options.context, async () => {
      await Promise.all(this.#held.map((each) => this.#endOne(each)));
    });
  }

  /** The request used so much. */
  settle(usage: Usage): void {
    const cost = costOf(usage, this.#price);
    this.#end(({ budget }) => unitsOf(budget, { usage, cost }));
  }

  /** It is not known how much the request used: as much as was held. */
  settleInFull(): void {
    this.#end(({ units }) => units);
  }

  /** The request used nothing. */
  cancel(): void {
    this.#end(undefined);
  }

  #end(usedOf: ((held: Held) => Units) | undefined): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#usedOf = usedOf;
    this.#begin();
  }

  async #endOne(held: Held): Promise<void> {
    const { limiter, time } = this.#options;
    const { id } = held;
    const used = this.#usedOf?.(held);
    await endHold(() => (used === undefined ? limiter.cancel({ id }) : limiter.settle({ id, used })), time);
  }
}

/** Settles what an answer has used. @param isCutInFull what was cut before its usage came counts as all that was held */
export function endCharge(charged: Charge, meter: Meter, how: End, isCutInFull: boolean): void {
  if (how === "aborted" && isCutInFull && !meter.isFinal) charged.settleInFull();
  else charged.settle(meter.usage());
}
