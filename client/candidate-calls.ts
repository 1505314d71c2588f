import type { Compared } from "../core/stats/compared.ts";
import type { Caller } from "./caller.ts";

/** So many calls of one caller are with candidates at a time. */
const MOST_AT_ONCE = 100;

/** Counts what candidates decide. */
export interface ComparisonCounter {
  compared(compared: Compared): void;
}

/** Puts calls to candidates, for one caller, who hears nothing of it and does not wait for it. */
export class CandidateCalls<Client> {
  readonly #inBackground: Caller["inBackground"];
  readonly #counter: ComparisonCounter | undefined;
  readonly #makeClient: () => Client;
  #client: Client | undefined;
  #underWay = 0;

  /** @param makeClient makes a client of the same caller without bounds: those were for the call itself */
  constructor(
    {
      inBackground,
      counter,
    }: Pick<Caller, "inBackground"> & { readonly counter?: ComparisonCounter | undefined },
    makeClient: () => Client,
  ) {
    this.#inBackground = inBackground;
    this.#counter = counter;
    this.#makeClient = makeClient;
  }

  /** Makes a call, unless too many are under way: `false`. Where nobody counts, none need be made. */
  make(ask: (client: Client) => Promise<unknown> | void): boolean {
    if (this.#counter === undefined) return true;
    if (this.#underWay >= MOST_AT_ONCE) return false;
    this.#client ??= this.#makeClient();
    try {
      const asked = ask(this.#client);
      if (asked instanceof Promise) this.#inBackground(this.#untilAnswered(asked));
    } catch (error) {
      warn(error);
    }
    return true;
  }

  async #untilAnswered(asked: Promise<unknown>): Promise<void> {
    this.#underWay += 1;
    await asked.catch(warn);
    this.#underWay -= 1;
  }

  /** Counts what a policy and its candidate decided of the same call. */
  compared(compared: Compared): void {
    this.#counter?.compared(compared);
  }
}

/** What goes wrong with a candidate is nobody's problem who called. */
function warn(error: unknown): void {
  console.warn(`a call to a candidate has failed: ${String(error)}`);
}
