import { DurableObject } from "cloudflare:workers";
import { SYSTEM_TIME, type Time } from "../../core/clock.ts";
import { parseBackgroundMs } from "../../core/policies/parse-policies.ts";
import { type Counts, merged, type PolicyNames } from "../../core/stats/counts.ts";
import {
  type ClosedMinute,
  closing,
  historyOf,
  hourOf,
  MINUTE_MS,
  MINUTES_AN_HOUR,
  namesIn,
  type OpenMinute,
  type PolicyTops,
  type PolicyWithTops,
  Tops,
  withMessage,
} from "../../core/stats/ledger.ts";
import type {
  HistoryCall,
  HistoryPoint,
  StatsMessage,
  TopKeysAnswer,
  TopKeysCall,
  Totals,
} from "../../core/stats/messages.ts";
import { Analytics, type AnalyticsDataset, StatsStorage } from "./stats-storage.ts";

interface Bindings {
  readonly ANALYTICS?: AnalyticsDataset;
  /** Only in tests. */
  readonly BACKGROUND_MS?: unknown;
}

/** The one object with the limiter's totals, history and top keys. No decision depends on it. */
export class StatsObject extends DurableObject {
  readonly #recorder: Recorder;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    const { ANALYTICS, BACKGROUND_MS } = env as unknown as Bindings;
    const analytics = ANALYTICS && new Analytics(ANALYTICS);
    const onCounted = (counts: Counts) => analytics?.write(counts);
    const storage = new StatsStorage(ctx.storage);
    this.#recorder = new Recorder(storage, SYSTEM_TIME, onCounted, parseBackgroundMs(BACKGROUND_MS));
  }

  /** Counts an isolate's message once, by its number. Answers when it is stored. */
  push(message: StatsMessage): Promise<void> {
    return this.#recorder.push(message);
  }

  totals(): Totals {
    return this.#recorder.totals();
  }

  history(call: HistoryCall): readonly HistoryPoint[] {
    return this.#recorder.history(call);
  }

  /** The keys of one policy with the most calls or denials. */
  topKeys(call: TopKeysCall): TopKeysAnswer {
    return this.#recorder.topKeys(call);
  }
}

/** Messages within this time are written together, since each write costs a row. In milliseconds. */
const WRITE_EVERY_MS = 2_000;
/** Messages that may wait for a write. Further ones are refused, and are sent again. */
const MAX_WAITING = 1_000;
/** Each policy's top keys cost a row. Until then they are in the row of the open minute. */
const TOPS_EVERY_MINUTES = 10;
/** Their longest text in that row, which is written with each batch of messages. */
const MAX_RECENT_LENGTH = 300_000;

/** The names of stored documents. Never change them. */
const [OPEN, CLOSED, TOPS] = ["open", "closed", "tops "];

/** Stored: never rename a field. */
interface StoredMinute extends OpenMinute {
  /** Top keys without a current row of their own. Absent: none, or they are too long. */
  readonly tops?: readonly PolicyWithTops[];
}

/** A message that is answered when it is stored. */
type Waiting = PromiseWithResolvers<void> & { readonly message: StatsMessage };

/** Counts messages, and stores them before it answers. */
export class Recorder {
  readonly #writeEveryMs: number;
  readonly #storage: StatsStorage;
  readonly #time: Time;
  readonly #onCounted: (counts: Counts) => void;
  #open: OpenMinute;
  #closed: ClosedMinute;
  readonly #names: PolicyNames;
  #tops: Tops;
  #waiting: Waiting[] = [];
  #isTimed = false;
  #nextWriteMs = -Infinity;
  #latestMs: number;

  /** @param onCounted is called with messages counted for the first time, after they were stored */
  constructor(
    storage: StatsStorage,
    time: Time,
    onCounted: (counts: Counts) => void,
    writeEveryMs = WRITE_EVERY_MS,
  ) {
    this.#writeEveryMs = writeEveryMs;
    this.#storage = storage;
    this.#time = time;
    this.#onCounted = onCounted;
    const nowMs = time.nowMs();
    const minute = Math.floor(nowMs / MINUTE_MS);
    const empty: StoredMinute = { minute, counts: {}, senders: [] };
    const { tops: recent = [], ...open } = storage.read<StoredMinute>(OPEN) ?? empty;
    const nothing: ClosedMinute = { sinceMs: nowMs, totals: {}, hour: 0, hourCounts: {} };
    this.#open = open;
    this.#closed = storage.read<ClosedMinute>(CLOSED) ?? nothing;
    this.#latestMs = this.#open.minute * MINUTE_MS;
    this.#names = namesIn(this.#open.counts, namesIn(this.#closed.totals));
    const names = storage.names(TOPS);
    const stored = names.map((name) => [name.slice(TOPS.length), storage.read(name) as PolicyTops] as const);
    this.#tops = new Tops(stored, recent);
  }

  /** Counts a message once. Settles when it is stored. */
  push(message: StatsMessage): Promise<void> {
    if (this.#waiting.length >= MAX_WAITING)
      return Promise.reject(new Error(`${MAX_WAITING} messages wait to be counted: send it again`));
    const waiting = { message, ...Promise.withResolvers<void>() };
    this.#waiting.push(waiting);
    const leftMs = this.#nextWriteMs - this.#now();
    if (leftMs <= 0) this.#write();
    else if (!this.#isTimed) {
      this.#isTimed = true;
      this.#time.after(leftMs, () => {
        this.#isTimed = false;
        this.#write();
      });
    }
    return waiting.promise;
  }

  totals(): Totals {
    return { counts: merged(this.#closed.totals, this.#open.counts), sinceMs: this.#closed.sinceMs };
  }

  /** Without steps that have no traffic. */
  history({ policy, step, sinceMs }: HistoryCall): readonly HistoryPoint[] {
    const stepMs = step === "minute" ? MINUTE_MS : MINUTE_MS * MINUTES_AN_HOUR;
    const from = Math.floor(sinceMs / stepMs);
    const { number, counts } = this.#openStep(step, policy);
    const steps = this.#storage.steps(step, policy, from).filter((each) => each.number < number);
    const open = number >= from && counts !== undefined ? [{ number, counts }] : [];
    return [...steps, ...open].map((each) => ({ atMs: each.number * stepMs, counts: each.counts }));
  }

  topKeys(call: TopKeysCall): TopKeysAnswer {
    return this.#tops.answer(call, this.#now());
  }

  #openStep(step: HistoryCall["step"], policy: string) {
    const { minute, counts } = this.#open;
    if (step === "minute") return { number: minute, counts: historyOf(counts).get(policy) };
    const hour = hourOf(minute);
    const before = this.#closed.hour === hour ? this.#closed.hourCounts : {};
    return { number: hour, counts: historyOf(merged(before, counts)).get(policy) };
  }

  /** Stores and answers all waiting messages, or refuses all: a message that is not stored is not counted. */
  #write(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    if (waiting.length === 0) return;
    const nowMs = this.#now();
    this.#nextWriteMs = nowMs + this.#writeEveryMs;
    try {
      const messages = waiting.map(({ message }) => message);
      const fresh = this.#store(messages, nowMs);
      for (const { resolve } of waiting) resolve();
      this.#onCounted(fresh.map(({ counts }) => counts).reduce(merged, {}));
    } catch (error) {
      for (const { reject } of waiting) reject(error);
    }
  }

  /** Stores messages, then changes memory. Returns those that were not counted before. */
  #store(messages: readonly StatsMessage[], nowMs: number): readonly StatsMessage[] {
    const minute = Math.floor(nowMs / MINUTE_MS);
    const isOver = minute > this.#open.minute;
    const close = isOver ? closing(this.#closed, this.#open, minute) : undefined;
    let open: OpenMinute = isOver ? { ...this.#open, minute, counts: {} } : this.#open;
    const fresh: StatsMessage[] = [];
    for (const message of messages) {
      const { sender, number } = message;
      if (!open.senders.some(([id, last]) => id === sender && number <= last)) fresh.push(message);
      open = withMessage(open, message, this.#names, nowMs);
    }
    const tops = this.#tops.copy();
    for (const { keys } of fresh) tops.add(keys, nowMs);
    this.#storage.atomically(() => {
      if (close !== undefined) {
        for (const [policy, counts] of close.minute)
          this.#storage.writeStep("minute", policy, this.#open.minute, counts);
        for (const [policy, counts] of close.hour)
          this.#storage.writeStep("hour", policy, close.closed.hour, counts);
        this.#storage.write(CLOSED, close.closed);
      }
      const { recent } = tops;
      const isShort = JSON.stringify(recent).length <= MAX_RECENT_LENGTH;
      this.#storage.write(OPEN, isShort ? { ...open, tops: recent } : open);
    });
    const isTopsDue =
      Math.floor(minute / TOPS_EVERY_MINUTES) > Math.floor(this.#open.minute / TOPS_EVERY_MINUTES);
    this.#open = open;
    this.#closed = close?.closed ?? this.#closed;
    this.#tops = tops;
    if (isTopsDue) this.#storeTops();
    return fresh;
  }

  /** Stores changed top keys. Their loss is harmless: everything else is stored already. */
  #storeTops(): void {
    try {
      for (const [policy, tops] of this.#tops.takeChanges())
        if (tops === undefined) this.#storage.remove(`${TOPS}${policy}`);
        else this.#storage.write(`${TOPS}${policy}`, tops);
    } catch (error) {
      console.error(`top keys could not be stored: ${String(error)}`);
    }
  }

  /** It never runs backwards. */
  #now(): number {
    this.#latestMs = Math.max(this.#latestMs, this.#time.nowMs());
    return this.#latestMs;
  }
}
