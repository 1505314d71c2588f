import type { Time } from "../../core/clock.ts";
import { merged, type Counts, type PolicyNames } from "../../core/stats/counts.ts";
import {
  closing,
  historyOf,
  hourOf,
  MINUTE_MS,
  MINUTES_AN_HOUR,
  namesIn,
  withMessage,
  type ClosedMinute,
  type OpenMinute,
} from "../../core/stats/ledger.ts";
import type {
  HistoryCall,
  HistoryPoint,
  StatsMessage,
  TopKeysAnswer,
  TopKeysCall,
  Totals,
} from "../../core/stats/messages.ts";
import { Tops, type PolicyTops, type PolicyWithTops } from "../../core/stats/tops.ts";
import type { StatsStorage } from "./stats-storage.ts";

/** Messages that come within so many milliseconds are written together: each write costs a row. */
const WRITE_EVERY_MS = 2_000;
/** So many messages may wait to be written. Those that come then are refused, and come again. */
const MAX_WAITING = 1_000;
/** Top keys are stored once in so many minutes, since each policy's cost a row. Until then they are in that of the minute. */
const TOPS_EVERY_MINUTES = 10;
/** The longest text of them in that row, which is written with each batch of messages. */
const MAX_RECENT_LENGTH = 300_000;

/** The names under which something is stored. Never change them. */
const OPEN = "open";
const CLOSED = "closed";
const TOPS = "tops ";

/** The open minute as it is stored. Stored: never rename a field. */
interface StoredMinute extends OpenMinute {
  /** Top keys that are not stored by themselves yet, or have changed since. Absent: none, or they are too long. */
  readonly tops?: readonly PolicyWithTops[];
}

/** A message that is answered when it is stored. */
interface Waiting {
  readonly message: StatsMessage;
  readonly answer: () => void;
  readonly fail: (error: unknown) => void;
}

/** Takes messages, and stores what they have before it answers them. */
export class Recorder {
  readonly #storage: StatsStorage;
  readonly #time: Time;
  /** Is told what messages have brought that were not counted before, after it was stored. */
  readonly #onCounted: (counts: Counts) => void;
  readonly #writeEveryMs: number;
  #open: OpenMinute;
  #closed: ClosedMinute;
  readonly #names: PolicyNames;
  #tops: Tops;
  #waiting: Waiting[] = [];
  #isTimed = false;
  #nextWriteMs = -Infinity;
  #latestMs = -Infinity;

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
    const { tops: recent = [], ...open } = storage.read<StoredMinute>(OPEN) ?? {
      minute,
      counts: {},
      senders: [],
    };
    this.#open = open;
    this.#closed = storage.read<ClosedMinute>(CLOSED) ?? {
      sinceMs: nowMs,
      totals: {},
      hour: 0,
      hourCounts: {},
    };
    this.#latestMs = this.#open.minute * MINUTE_MS;
    this.#names = namesIn(this.#open.counts, namesIn(this.#closed.totals));
    const stored = storage.names(TOPS).flatMap((name) => {
      const tops = storage.read<PolicyTops>(name);
      return tops === undefined ? [] : [[name.slice(TOPS.length), tops] as const];
    });
    this.#tops = new Tops(stored, recent);
  }

  /** Counts a message, once. Settles when it is stored. */
  push(message: StatsMessage): Promise<void> {
    if (this.#waiting.length >= MAX_WAITING)
      return Promise.reject(new Error(`${MAX_WAITING} messages wait to be counted: send it again`));
    return new Promise((answer, fail) => {
      this.#waiting.push({ message, answer, fail });
      const leftMs = this.#nextWriteMs - this.#now();
      if (leftMs <= 0) this.#write();
      else if (!this.#isTimed) {
        this.#isTimed = true;
        this.#time.after(leftMs, () => {
          this.#isTimed = false;
          this.#write();
        });
      }
    });
  }

  /** All counts that are stored. */
  totals(): Totals {
    return { counts: merged(this.#closed.totals, this.#open.counts), sinceMs: this.#closed.sinceMs };
  }

  /** The history of one policy. Steps without traffic are left out. */
  history({ policy, step, sinceMs }: HistoryCall): readonly HistoryPoint[] {
    const stepMs = step === "minute" ? MINUTE_MS : MINUTE_MS * MINUTES_AN_HOUR;
    const from = Math.floor(sinceMs / stepMs);
    const { number, counts } = this.#openStep(step, policy);
    const steps = this.#storage.steps(step, policy, from).filter((each) => each.number < number);
    const open = number >= from && counts !== undefined ? [{ number, counts }] : [];
    return [...steps, ...open].map((each) => ({ atMs: each.number * stepMs, counts: each.counts }));
  }

  /** The top keys of one policy. */
  topKeys(call: TopKeysCall): TopKeysAnswer {
    return this.#tops.answer(call, this.#now());
  }

  /** The step that is not over, as far as it is known. */
  #openStep(step: HistoryCall["step"], policy: string) {
    const { minute, counts } = this.#open;
    if (step === "minute") return { number: minute, counts: historyOf(counts).get(policy) };
    const hour = hourOf(minute);
    const before = this.#closed.hour === hour ? this.#closed.hourCounts : {};
    return { number: hour, counts: historyOf(merged(before, counts)).get(policy) };
  }

  /** Writes all messages that wait, or none: a message that was not stored is not counted, and is refused. */
  #write(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    if (waiting.length === 0) return;
    const nowMs = this.#now();
    this.#nextWriteMs = nowMs + this.#writeEveryMs;
    try {
      const fresh = this.#store(waiting, nowMs);
      for (const { answer } of waiting) answer();
      this.#onCounted(fresh.map(({ message }) => message.counts).reduce(merged, {}));
    } catch (error) {
      for (const { fail } of waiting) fail(error);
    }
  }

  /** Stores messages. Memory changes when all is stored. Returns those that were not counted before. */
  #store(waiting: readonly Waiting[], nowMs: number): readonly Waiting[] {
    const minute = Math.floor(nowMs / MINUTE_MS);
    const isOver = minute > this.#open.minute;
    const close = isOver ? closing(this.#closed, this.#open, minute) : undefined;
    let open: OpenMinute = isOver ? { ...this.#open, minute, counts: {} } : this.#open;
    const fresh: Waiting[] = [];
    for (const each of waiting) {
      const { sender, number } = each.message;
      if (!open.senders.some(([id, last]) => id === sender && number <= last)) fresh.push(each);
      open = withMessage(open, each.message, this.#names, nowMs);
    }
    const tops = this.#tops.copy();
    for (const { message } of fresh) tops.add(message.keys, nowMs);
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

  /** Stores the top keys that have changed. They may be lost: all else is stored already. */
  #storeTops(): void {
    try {
      for (const [policy, tops] of this.#tops.takeChanges()) {
        const name = `${TOPS}${policy}`;
        if (tops === undefined) this.#storage.remove(name);
        else this.#storage.write(name, tops);
      }
    } catch (error) {
      console.error(`top keys could not be stored: ${String(error)}`);
    }
  }

  /** The instant that counts: never before one that counted. */
  #now(): number {
    this.#latestMs = Math.max(this.#latestMs, this.#time.nowMs());
    return this.#latestMs;
  }
}
