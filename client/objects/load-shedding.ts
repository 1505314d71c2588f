import { Latch } from "../../core/clock.ts";
import { type Cost, costOf, forPriority, type Policy } from "../../core/policies/policy.ts";
import type { Shed, SheddingLevel } from "../../core/protocol/answers.ts";
import { PROTOCOL } from "../../core/protocol/messages.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { chanceOf, FADES_MS, type Reports, restoredInMs } from "../../core/shedding/load-shedder.ts";
import { type ClientContext, through } from "../call-gate.ts";
import { readAnswer } from "../transports/send-batch.ts";

export type SheddingSample = Shed | undefined;

/** Milliseconds between a client's refreshes while there are calls. */
export const REFRESH_MS = 1_000;
/** Milliseconds for which an answer is used; after that a call waits for the next. */
export const USABLE_MS = 10_000;
/** The most keys that a client remembers; the least recently used is dropped. */
const MAX_KEYS = 1_000;

export interface SheddingParams {
  readonly cost: Cost;
  readonly priority?: string | undefined;
}

interface KnownChance {
  level: SheddingLevel;
  /** Send times of the message with that answer, and of the last message. */
  ofMs: number;
  askedAtMs: number;
  /** The message under way; each request that waits for it has its own timer. */
  answer?: Latch;
  /** The last message was not answered, so no call waits for the next. */
  hasFailed: boolean;
  /** Reports since the last message, and the time of the latest. */
  sum: number;
  count: number;
  reportedAtMs: number;
  sentByMs: number;
}

/**
 * Sheds calls by key. A client samples with the chance last sent by the key's object, so no call waits. Once
 * a second, while there are calls, it refreshes the chance and sends its callers' reports.
 */
export class LoadShedding {
  readonly #known = new Map<string, KnownChance>();
  readonly #random: () => number;

  constructor(random: () => number) {
    this.#random = random;
  }

  /** Takes the utilization of a caller's machine, from 0 to 1. */
  report(caller: ClientContext, policy: Policy, key: string, utilization: number): void {
    const known = this.#open(policy, key);
    const nowMs = caller.time.nowMs();
    known.sum += utilization;
    known.count += 1;
    known.reportedAtMs = nowMs;
    this.#refresh(caller, policy, key, known);
    if (known.count === 0 || nowMs < known.sentByMs) return;
    // Another call may never come.
    known.sentByMs = nowMs + REFRESH_MS;
    const later = new Promise<void>((done) => void caller.time.after(REFRESH_MS, done));
    caller.inBackground(later.then(() => this.#refresh(caller, policy, key, known)));
  }

  /** Whether a call is shed; a promise if no recent chance of the key is known. */
  sampleShedding(
    caller: ClientContext,
    policy: Policy,
    key: string,
    { cost, priority }: SheddingParams,
    draw?: number,
  ): SheddingSample | Promise<SheddingSample> {
    // A call that can never pass is denied as such.
    if (policy.shedding === undefined || isNever(forPriority(policy, priority), cost)) return undefined;
    const known = this.#open(policy, key);
    this.#refresh(caller, policy, key, known);
    const isUsable = () => caller.time.nowMs() < known.ofMs + USABLE_MS;
    // Without a usable answer nothing is shed.
    const sample = () => (isUsable() ? this.#sample(policy, known, priority, draw) : undefined);
    if (isUsable() || known.hasFailed || known.answer === undefined) return sample();
    // Waits at most half the deadline, to leave time to decide.
    return known.answer.wait(caller.time, policy.deadlineMs / 2).then(sample);
  }

  /** Whether each of several joint calls is shed. All share one draw, so more calls are shed no sooner. */
  sampleTogether(
    caller: ClientContext,
    calls: readonly (SheddingParams & { readonly policy: Policy; readonly key: string })[],
  ): Promise<SheddingSample[]> {
    const draw = this.#random();
    return Promise.all(
      calls.map(
        async ({ policy, key, ...call }) => await this.sampleShedding(caller, policy, key, call, draw),
      ),
    );
  }

  /** Sheds no calls of the key until its object answers again. */
  forget(policy: Policy, key: string): void {
    this.#known.delete(nameOf(policy, key));
  }

  #sample(
    { shedding, priorities }: Policy,
    { level: { level } }: KnownChance,
    priority: string | undefined,
    draw: number | undefined,
  ): SheddingSample {
    const chance = level === 0 ? 0 : chanceOf(priorities, level, priority);
    if (shedding === undefined || chance === 0 || (draw ?? this.#random()) >= chance) return undefined;
    return { restoredInMs: restoredInMs(shedding, priorities, level, priority) };
  }

  #open(policy: Policy, key: string): KnownChance {
    const name = nameOf(policy, key);
    const known = this.#known.get(name) ?? unknown();
    this.#known.delete(name);
    this.#known.set(name, known);
    const [oldest] = this.#known.keys();
    if (this.#known.size > MAX_KEYS && oldest !== undefined) this.#known.delete(oldest);
    return known;
  }

  /** Refreshes in the background if the last message is old. A lost message loses its reports. */
  #refresh(caller: ClientContext, policy: Policy, key: string, known: KnownChance): void {
    const nowMs = caller.time.nowMs();
    const sinceMs = nowMs - known.askedAtMs;
    if (sinceMs >= 0 && sinceMs < REFRESH_MS) return;
    known.askedAtMs = nowMs;
    const agoMs = nowMs - known.ofMs;
    // Reports that could not be sent in time do not describe the present.
    const isLate = nowMs - known.reportedAtMs > FADES_MS;
    const message = {
      protocol: PROTOCOL,
      policy: policy.name,
      key,
      ...(caller.callerId !== undefined && { caller: caller.callerId }),
      reports: isLate ? { sum: 0, count: 0 } : { sum: known.sum, count: known.count },
      ...(agoMs >= 0 && agoMs < Infinity && { known: { ...known.level, agoMs } }),
    };
    known.sum = 0;
    known.count = 0;
    const ask = async () => {
      const reply = await through(caller.gate?.enter(policy, key, nowMs, "ask"), () =>
        caller.objects.ask(policy, key, async (object) =>
          readAnswer<SheddingLevel>(await object.shedding(message)),
        ),
      );
      if (known.answer === answer) delete known.answer;
      if (reply instanceof Problem) return leaveToOthers(known, message.reports);
      known.hasFailed = reply === undefined;
      if (reply === undefined || nowMs < known.ofMs) return;
      known.level = reply.answer;
      known.ofMs = nowMs;
    };
    const asked = ask();
    const answer = Latch.after(asked);
    known.answer = answer;
    caller.inBackground(asked);
  }
}

/** This caller has no room for a call to the object: the next call, of any caller, sends the reports. */
function leaveToOthers(known: KnownChance, { sum, count }: Reports): void {
  known.askedAtMs = -Infinity;
  known.sum += sum;
  known.count += count;
}

const NOTHING: SheddingLevel = { level: 0, troubleMs: 0, utilization: null, reportedAgoMs: 0, sinceMs: 0 };

/** Whether a cost can never pass: it exceeds a capacity as the call sees it. */
function isNever({ rules }: Policy, cost: Cost): boolean {
  return rules.some((rule) => costOf(rule, cost) > rule.capacity);
}

function unknown(): KnownChance {
  const never = { ofMs: -Infinity, askedAtMs: -Infinity, reportedAtMs: -Infinity, sentByMs: -Infinity };
  return { level: NOTHING, ...never, hasFailed: false, sum: 0, count: 0 };
}

function nameOf({ name }: Policy, key: string): string {
  return `${name}/${key}`;
}
