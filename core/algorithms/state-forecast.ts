import type { Algorithm } from "./algorithm.ts";
import type { Forecast, Uses } from "./forecast.ts";

type Parts<Config extends object, State> = Pick<Algorithm<Config, State>, "debit" | "decide">;

/**
 * A state that is played forward by the functions of its algorithm. It makes a state for each unit that is used on the
 * way, so it is for algorithms whose states are a few numbers.
 */
export class StateForecast<Config extends object, State> implements Forecast {
  readonly #algorithm: Parts<Config, State>;
  readonly #config: Config;
  readonly #isSteady: boolean;
  #state: State | undefined;
  #atMs = -Infinity;

  /**
   * @param isSteady the instant at which a cost passes stays what it is when units that are outstanding are used
   * meanwhile
   */
  constructor(algorithm: Parts<Config, State>, config: Config, state: State | undefined, isSteady: boolean) {
    this.#algorithm = algorithm;
    this.#config = config;
    this.#state = state;
    this.#isSteady = isSteady;
  }

  /** The state as far as it was played. */
  get state(): State | undefined {
    return this.#state;
  }

  debit({ endsMs, units }: Uses, from = 0, to = endsMs.length): void {
    for (let index = from; index < to; index += 1) this.take(endsMs[index] ?? 0, units[index] ?? 0);
  }

  take(atMs: number, units: number): void {
    this.#atMs = Math.max(this.#atMs, atMs);
    this.#state = this.#algorithm.debit(this.#config, this.#state, this.#atMs, units);
  }

  passesAtMs(atMs: number, cost: number, outstanding: number): number {
    const decision = this.#algorithm.decide(this.#config, this.#state, atMs, cost, outstanding);
    return decision.allowed ? atMs : atMs + (decision.retryAfterMs ?? Infinity);
  }

  isCertain(): boolean {
    return this.#isSteady;
  }
}
