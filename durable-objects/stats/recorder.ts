import type { Time } from "../../core/clock.ts";
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
  Step,
  TopKeysAnswer,
  TopKeysCall,
  Totals,
} from "../../core/stats/messages.ts";

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

/**
 * The tables. Their names and columns are stored for ever: never rename them. With `WITHOUT ROWID` a write costs one row
 * instead of two.
 */
const SCHEMA = [
  `CREATE TABLE IF NOT EXISTS documents (
    name TEXT, part INTEGER, text TEXT NOT NULL, PRIMARY KEY (name, part)
  ) WITHOUT ROWID`,
  `CREATE TABLE IF NOT EXISTS history (
    step TEXT, policy TEXT, slot INTEGER, number INTEGER NOT NULL, counts TEXT NOT NULL, PRIMARY KEY (step, policy, slot)
  ) WITHOUT ROWID`,
];

/**
 * So many steps are kept: a day of minutes, and 30 days of hours. A row is written over the one that is as much older, so
 * nothing has to be deleted. Stored: a row's place depends on it.
 */
export const STEPS_KEPT: Readonly<Record<Step, number>> = { minute: 1_440, hour: 720 };

/** A value may have 2 MB. A character has four bytes at most. */
const MAX_PART_LENGTH = 400_000;

/** What is stored of the statistics. All methods are synchronous. */
export class StatsStorage {
  readonly #storage: DurableObjectStorage;
  readonly #parts = new Map<string, number>();

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
    for (const table of SCHEMA) storage.sql.exec(table);
  }

  /** Runs `work` in a transaction. When `work` throws, storage is as it was before. */
  atomically(work: () => void): void {
    this.#storage.transactionSync(work);
  }

  /** A value that is stored under this name; `undefined`: there is none. */
  read<Value>(name: string): Value | undefined {
    const query = "SELECT text FROM documents WHERE name = ? ORDER BY part";
    const parts = this.#storage.sql.exec<{ text: string }>(query, name).toArray();
    this.#parts.set(name, parts.length);
    return parts.length === 0 ? undefined : (JSON.parse(parts.map(({ text }) => text).join("")) as Value);
  }

  /** The names under which something is stored that begin with this. */
  names(prefix: string): string[] {
    const query = "SELECT DISTINCT name FROM documents WHERE name >= ? AND name < ?";
    const rows = this.#storage.sql.exec<{ name: string }>(query, prefix, `${prefix}\u{10FFFF}`).toArray();
    return rows.map(({ name }) => name);
  }

  /** Stores a value under a name: a row for each 400,000 characters. */
  write(name: string, value: object): void {
    const text = JSON.stringify(value);
    const parts = Math.max(1, Math.ceil(text.length / MAX_PART_LENGTH));
    for (let part = 0; part < parts; part += 1) {
      const from = part * MAX_PART_LENGTH;
      const query = "INSERT OR REPLACE INTO documents (name, part, text) VALUES (?, ?, ?)";
      this.#storage.sql.exec(query, name, part, text.slice(from, from + MAX_PART_LENGTH));
    }
    if ((this.#parts.get(name) ?? parts) > parts)
      this.#storage.sql.exec("DELETE FROM documents WHERE name = ? AND part >= ?", name, parts);
    this.#parts.set(name, parts);
  }

  /** Deletes what is stored under a name. */
  remove(name: string): void {
    this.#storage.sql.exec("DELETE FROM documents WHERE name = ?", name);
    this.#parts.delete(name);
  }

  /** Writes one step of a policy's history. */
  writeStep(step: Step, policy: string, number: number, counts: Counts): void {
    const slot = number % STEPS_KEPT[step];
    const query =
      "INSERT OR REPLACE INTO history (step, policy, slot, number, counts) VALUES (?, ?, ?, ?, ?)";
    this.#storage.sql.exec(query, step, policy, slot, number, JSON.stringify(counts));
  }

  /** The steps of a policy's history from one on, in their order. */
  steps(step: Step, policy: string, from: number): { readonly number: number; readonly counts: Counts }[] {
    const query =
      "SELECT number, counts FROM history WHERE step = ? AND policy = ? AND number >= ? ORDER BY number";
    const rows = this.#storage.sql
      .exec<{ number: number; counts: string }>(query, step, policy, from)
      .toArray();
    return rows.map(({ number, counts }) => ({ number, counts: JSON.parse(counts) as Counts }));
  }
}
