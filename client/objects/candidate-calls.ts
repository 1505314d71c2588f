/**
 * Calls to a policy's candidate, which decides the same calls beside it. They are sent after the policy's own, and only
 * counted: a candidate that is slow, away or wrong costs the caller nothing.
 */
import { publicName } from "../../core/policies/policy.ts";
import type { ComparedCall } from "../../core/stats/counts.ts";

/** The most simultaneous calls of one caller to candidates. */
const MAX_AT_ONCE = 100;

export interface ComparisonCounter {
  compared(compared: ComparedCall): void;
}

/**
 * Sends one caller's calls to candidates without waiting. Their failures never reach the caller.
 * @param makeClient makes an unbounded client of the same caller: its bounds are for the call itself
 */
export function candidateCalls<Client>(
  {
    inBackground,
    counter,
  }: {
    readonly inBackground: (work: Promise<unknown>) => void;
    readonly counter?: ComparisonCounter | undefined;
  },
  makeClient: () => Client,
) {
  let client: Client | undefined;
  let underWay = 0;
  const untilAnswered = async (answer: Promise<unknown>) => {
    underWay += 1;
    await answer.catch(warn);
    underWay -= 1;
  };
  return {
    /** Makes a call unless too many are under way: then `false`. Without a counter no call is needed. */
    make(ask: (client: Client) => Promise<unknown> | void): boolean {
      if (counter === undefined) return true;
      if (underWay >= MAX_AT_ONCE) return false;
      client ??= makeClient();
      try {
        const answer = ask(client);
        if (answer instanceof Promise) inBackground(untilAnswered(answer));
      } catch (error) {
        warn(error);
      }
      return true;
    },
    compared: (compared: ComparedCall) =>
      counter?.compared({ ...compared, policy: publicName(compared.policy) }),
  };
}

function warn(error: unknown): void {
  console.warn(`a call to a candidate has failed: ${String(error)}`);
}
