/** Forecasts of small states, by the functions of their algorithm. */
import type { Algorithm, Forecast, Uses } from "./algorithm.ts";

/** The forecast of a rule that keeps no count, so neither uses nor time change it. */
export function constantForecast(passesAtMs: Forecast["passesAtMs"], isCertain = true): Forecast {
  return { debit: () => undefined, take: () => undefined, passesAtMs, isCertain: () => isCertain };
}

type Replay<Config extends object, State> = Pick<Algorithm<Config, State>, "debit" | "decide">;

/** A forecast by the functions of the algorithm, with one state for each use: for small states. */
export function replay<Config extends object, State>(
  algorithm: Replay<Config, State>,
  config: Config,
  initial: State | undefined,
  isCertain: (atMs: number, state: State | undefined, outstanding: number) => boolean,
): Forecast {
  let state = initial;
  return {
    debit(uses, from, to) {
      state = afterUses(algorithm, config, state, uses, from, to);
    },
    take(atMs, units) {
      state = algorithm.debit(config, state, atMs, units);
    },
    passesAtMs(atMs, cost, outstanding) {
      const decision = algorithm.decide(config, state, atMs, cost, outstanding);
      return decision.allowed ? atMs : atMs + (decision.retryAfterMs ?? Infinity);
    },
    isCertain: (atMs, outstanding) => isCertain(atMs, state, outstanding),
  };
}

/** The state after uses are debited, each at its instant. */
export function afterUses<Config extends object, State>(
  algorithm: Pick<Algorithm<Config, State>, "debit">,
  config: Config,
  state: State | undefined,
  uses: Uses | undefined,
  from = 0,
  to = uses?.endsMs.length ?? 0,
): State | undefined {
  let after = state;
  for (let index = from; index < to; index += 1)
    after = algorithm.debit(config, after, uses?.endsMs[index] ?? 0, uses?.units[index] ?? 0, uses?.capacity);
  return after;
}
