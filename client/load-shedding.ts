import { orTimeout } from "../core/clock.ts";
import type { Policy } from "../core/policies/policy.ts";
import type { Level, Shed } from "../core/protocol/answers.ts";
import { PROTOCOL } from "../core/protocol/messages.ts";
import { chanceOf, restoredInMs } from "../core/shedding/load-shedder.ts";
import { through } from "./call-gate.ts";
import type { Caller } from "./caller.ts";
import { readAnswer } from "./read-answer.ts";

/** What a call is told that is shed; `undefined`: it is not. */
export type Rolled = Shed | undefined;

/** A client asks so often how much is shed while there are calls, in milliseconds. */
export const REFRESH_MS = 1_000;
/** For so long what is known decides, in milliseconds; then a call waits until it is known anew. */
export const USABLE_MS = 10_000;
/** The most keys of which a client knows what is shed; the one that was used least lately goes. */
const MOST_KEYS = 1_000;

/** What a client knows of one key. */
interface Known {
  level: Level;
  /** When the object was asked that said so, and when it was asked last, in milliseconds. */
  ofMs: number;
  askedAtMs: number;
  /** The question under way; each request that waits for its answer has a timer of its own. */
  answer?: Promise<void>;
  /** The last question was not answered, so nobody waits for the next. */
  hasFailed: boolean;
  /** Reports since the last question. */
  sum: number;
  count: number;
}

/**
 * What is shed of the calls of each key. A client keeps the chance that the key's object said last, and rolls for each
 * call by itself, so that no call waits for an object. Once a second, while there are calls, it asks anew, and tells what
 * its callers have reported.
 */
export class LoadShedding {
  /** In order of their last use. */
  readonly #known = new Map<string, Known>();
  readonly #random: () => number;

  /** @param random draws a number from 0, included, to 1, not included */
  constructor(random: () => number) {
    this.#random = random;
  }

  /** Takes how busy a caller's machine is, from 0 to 1. */
  report(caller: Caller, policy: Policy, key: string, utilization: number): void {
    const known = this.#open(policy, key);
    known.sum += utilization;
    known.count += 1;
    this.#refresh(caller, policy, key, known);
  }

  /** Whether a call of this priority is shed; a promise where nothing is known of its key that is recent enough. */
  roll(caller: Caller, policy: Policy, key: string, priority?: string): Rolled | Promise<Rolled> {
    if (policy.shedding === undefined) return undefined;
    const known = this.#open(policy, key);
    this.#refresh(caller, policy, key, known);
    const isUsable = caller.time.nowMs() < known.ofMs + USABLE_MS;
    if (isUsable || known.hasFailed || known.answer === undefined)
      return this.#rolled(policy, known, priority, isUsable);
    return this.#whenKnown(caller, policy, known, priority);
  }

  /** The key is as new: nothing is shed of its calls, as far as this client knows. */
  forget(policy: Policy, key: string): void {
    this.#known.delete(nameOf(policy, key));
  }

  async #whenKnown(caller: Caller, policy: Policy, known: Known, priority?: string): Promise<Rolled> {
    // At most half the deadline goes on waiting, so that there is time to decide.
    await orTimeout(known.answer, caller.time, policy.deadlineMs / 2);
    return this.#rolled(policy, known, priority, caller.time.nowMs() < known.ofMs + USABLE_MS);
  }

  /** Nothing is shed by what is not known. */
  #rolled({ shedding, priorities }: Policy, known: Known, priority: string | undefined, isUsable: boolean) {
    if (shedding === undefined || !isUsable) return undefined;
    const { level } = known.level;
    if (level === 0 || this.#random() >= chanceOf(priorities, level, priority)) return undefined;
    return { restoredInMs: restoredInMs(shedding, priorities, level, priority) };
  }

  #open(policy: Policy, key: string): Known {
    const name = nameOf(policy, key);
    const known = this.#known.get(name) ?? unknown();
    this.#known.delete(name);
    this.#known.set(name, known);
    const [oldest] = this.#known.keys();
    if (this.#known.size > MOST_KEYS && oldest !== undefined) this.#known.delete(oldest);
    return known;
  }

  /** Asks the object anew, in the background, if it was not asked lately. What a lost question tells is lost too. */
  #refresh(caller: Caller, policy: Policy, key: string, known: Known): void {
    const nowMs = caller.time.nowMs();
    const sinceMs = nowMs - known.askedAtMs;
    if (sinceMs >= 0 && sinceMs < REFRESH_MS) return;
    known.askedAtMs = nowMs;
    const agoMs = nowMs - known.ofMs;
    const message = {
      protocol: PROTOCOL,
      policy: policy.name,
      key,
      reports: { sum: known.sum, count: known.count },
      ...(agoMs >= 0 && agoMs < Infinity && { known: { ...known.level, agoMs } }),
    };
    known.sum = 0;
    known.count = 0;
    const ask = async () => {
      const asked = await through(caller.gate, policy, key, nowMs, () =>
        caller.objects.ask(policy, key, async (object) => readAnswer<Level>(await object.shedding(message))),
      );
      if (known.answer === answer) delete known.answer;
      known.hasFailed = asked === undefined || "full" in asked;
      if (asked === undefined || "full" in asked || nowMs < known.ofMs) return;
      known.level = asked.answer;
      known.ofMs = nowMs;
    };
    const answer = ask();
    known.answer = answer;
    caller.inBackground(answer);
  }
}

function unknown(): Known {
  const never = { ofMs: -Infinity, askedAtMs: -Infinity };
  return { level: { level: 0, troubleMs: 0 }, ...never, hasFailed: false, sum: 0, count: 0 };
}

function nameOf({ name }: Policy, key: string): string {
  return `${name}/${key}`;
}
