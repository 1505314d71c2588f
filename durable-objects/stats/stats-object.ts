import { DurableObject } from "cloudflare:workers";
import { SYSTEM_TIME, type Time } from "../../core/clock.ts";
import { parseBackgroundMs } from "../../core/policies/parse-policies.ts";
import { Analytics } from "../../core/stats/analytics.ts";
import { type Counts, merged, plansOf, type PolicyNames, seriesOf } from "../../core/stats/counts.ts";
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
  type SenderMark,
  Senders,
  Tops,
  withMessages,
} from "../../core/stats/ledger.ts";
import type {
  HistoryCall,
  HistoryPoint,
  Receipt,
  StatsBindings,
  StatsMessage,
  TopKeysAnswer,
  TopKeysCall,
  Totals,
} from "../../core/stats/messages.ts";
import { SEND_EVERY_MS } from "../../core/stats/tally.ts";
import { StatsStorage } from "./stats-storage.ts";

interface Bindings extends Pick<StatsBindings, "ANALYTICS"> {
  /** Less in tests. */
  readonly BACKGROUND_MS?: unknown;
}

/** The one object with the limiter's totals, history and top keys. No decision depends on it. */
export class StatsObject extends DurableObject {
  readonly #recorder: Recorder;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    const { ANALYTICS, BACKGROUND_MS } = env as unknown as Bindings;
    const analytics = ANALYTICS && new Analytics(ANALYTICS);
    const work = {
      onCounted: (counts: Counts) => analytics?.write(counts),
      wakeAfter: (ms: number) => {
        ctx.storage.setAlarm(SYSTEM_TIME.nowMs() + ms).catch(warnUnstored);
      },
    };
    const storage = new StatsStorage(ctx.storage);
    this.#recorder = new Recorder(storage, SYSTEM_TIME, work, parseBackgroundMs(BACKGROUND_MS));
  }

  /** Counts an isolate's message once, by its number. Answers at once, and says what is stored. */
  push(message: StatsMessage): Receipt {
    return this.#recorder.push(message);
  }

  /** Stores what no later message has caused to be stored. */
  override alarm(): void {
    this.#recorder.write();
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

/** A write costs a row, so it waits until so much time has passed for each. In milliseconds. */
const WRITE_EVERY_MS = 2_000;
/** Writes that do not wait, after a pause: messages of a few isolates are stored at once. */
const BURST = 5;
/** Messages that may wait for a write. */
const MAX_WAITING = 1_000;
/** An alarm writes what waits, before an idle object loses its memory after 10 s. A timer would cost more than a row. */
const WAKE_AFTER_WRITES = 4;
/** Messages a second that all isolates together send. Of more isolates each sends less often. */
const MESSAGES_PER_SECOND = 100;
const MAX_SEND_EVERY_MS = 60_000;
/** A sender with no message for so long counts no longer for that. */
const ACTIVE_MS = 2 * MAX_SEND_EVERY_MS;
/** Each policy's top keys cost a row. Until then they are in the row of the open minute. */
const TOPS_EVERY_MINUTES = 10;
/** Their longest text in that row, which is written with each batch of messages. */
const MAX_RECENT_LENGTH = 300_000;

/** The names of stored documents. Never change them. */
const [OPEN, CLOSED, TOPS] = ["open", "closed", "tops "];

/** Stored: never rename a field. */
interface StoredMinute extends Omit<OpenMinute, "senders"> {
  readonly senders: readonly SenderMark[];
  /** Top keys without a current row of their own. Absent: none, or they are too long. */
  readonly tops?: readonly PolicyWithTops[];
}

const warnUnstored = (error: unknown) =>
  console.warn(`counts could not be stored, and are sent again: ${String(error)}`);

interface RecorderWork {
  /** Called with messages counted for the first time, after they were stored. */
  readonly onCounted: (counts: Counts) => void;
  /** Has `write` called after `ms` milliseconds, also if the object has nothing to do until then. */
  readonly wakeAfter: (ms: number) => void;
}

/** Counts messages. What is answered is what is stored: messages in memory are in no total. */
export class Recorder {
  readonly #writeEveryMs: number;
  readonly #storage: StatsStorage;
  readonly #time: Pick<Time, "nowMs">;
  readonly #work: RecorderWork;
  #open: OpenMinute;
  #closed: ClosedMinute;
  readonly #names: PolicyNames;
  #tops: Tops;
  #waiting: StatsMessage[] = [];
  /** By sender: the last message that waits. */
  readonly #received = new Map<string, number>();
  /** When writes have waited for all that were made. */
  #writtenUntilMs = -Infinity;
  #wakeAtMs = -Infinity;
  #latestMs: number;
  #sendEveryMs: number;

  constructor(
    storage: StatsStorage,
    time: Pick<Time, "nowMs">,
    work: RecorderWork,
    backgroundMs = WRITE_EVERY_MS,
  ) {
    this.#writeEveryMs = Math.min(backgroundMs, WRITE_EVERY_MS);
    this.#storage = storage;
    this.#time = time;
    this.#work = work;
    const nowMs = time.nowMs();
    const minute = Math.floor(nowMs / MINUTE_MS);
    const empty: StoredMinute = { minute, counts: {}, senders: [] };
    const { tops: recent = [], senders, ...open } = storage.read<StoredMinute>(OPEN) ?? empty;
    const nothing: ClosedMinute = { sinceMs: nowMs, totals: {}, hour: 0, hourCounts: {} };
    this.#open = { ...open, senders: new Senders(senders) };
    this.#closed = storage.read<ClosedMinute>(CLOSED) ?? nothing;
    this.#latestMs = this.#open.minute * MINUTE_MS;
    this.#sendEveryMs = this.#pace();
    this.#names = namesIn(this.#open.counts, namesIn(this.#closed.totals));
    const names = storage.names(TOPS);
    const stored = names.map((name) => [name.slice(TOPS.length), storage.read(name) as PolicyTops] as const);
    this.#tops = new Tops(stored, recent);
  }

  /**
   * Counts a message once, unless one before it is lost.
   * @throws Error if what waits could not be stored: then none of it is counted
   */
  push(message: StatsMessage): Receipt {
    const { sender, number, isKept = false, after = 0 } = message;
    const last = this.#lastOf(sender);
    if (last >= after) {
      this.#waiting.push(message);
      this.#received.set(sender, Math.max(last, number));
    }
    if (!isKept || this.#mayWrite() || this.#waiting.length >= MAX_WAITING) this.#write();
    else this.#wake();
    const stored = this.#open.senders.lastOf(sender);
    const everyMs = this.#sendEveryMs;
    return { received: this.#lastOf(sender), stored, ...(everyMs > SEND_EVERY_MS && { everyMs }) };
  }

  /** Stores the messages that wait. If it cannot, their senders have them. */
  write(): void {
    // Also where this clock stands still, after it was set back.
    this.#wakeAtMs = -Infinity;
    try {
      this.#write();
    } catch (error) {
      warnUnstored(error);
    }
  }

  totals(): Totals {
    this.#catchUp();
    const isolates = Object.entries(this.#isolates()).map(
      ([runs, count]) => [seriesOf("isolates", [runs]), count] as const,
    );
    const counts = merged(this.#closed.totals, this.#open.counts);
    return { counts: { ...counts, ...Object.fromEntries(isolates) }, sinceMs: this.#closed.sinceMs };
  }

  /** Without steps that have no traffic. */
  history(call: HistoryCall): readonly HistoryPoint[] {
    this.#catchUp();
    const byPlan = this.#points({ ...call, policy: plansOf(call.policy) });
    const plans = new Map(byPlan.map(({ atMs, counts }) => [atMs, counts]));
    return this.#points(call).map((point) => {
      const ofPoint = plans.get(point.atMs);
      return ofPoint === undefined ? point : { ...point, plans: ofPoint };
    });
  }

  #points({ policy, step, sinceMs }: HistoryCall): HistoryPoint[] {
    const stepMs = step === "minute" ? MINUTE_MS : MINUTE_MS * MINUTES_AN_HOUR;
    const from = Math.floor(sinceMs / stepMs);
    const { number, counts } = this.#openStep(step, policy);
    const steps = this.#storage.steps(step, policy, from).filter((each) => each.number < number);
    const open = number >= from && counts !== undefined ? [{ number, counts }] : [];
    return [...steps, ...open].map((each) => ({ atMs: each.number * stepMs, counts: each.counts }));
  }

  topKeys(call: TopKeysCall): TopKeysAnswer {
    this.#catchUp();
    return this.#tops.answer(call, this.#now());
  }

  #openStep(step: HistoryCall["step"], policy: string) {
    const { minute, counts } = this.#open;
    if (step === "minute") return { number: minute, counts: historyOf(counts).get(policy) };
    const hour = hourOf(minute);
    const before = this.#closed.hour === hour ? this.#closed.hourCounts : {};
    return { number: hour, counts: historyOf(merged(before, counts)).get(policy) };
  }

  #lastOf(sender: string): number {
    return this.#received.get(sender) ?? this.#open.senders.lastOf(sender);
  }

  #mayWrite(): boolean {
    return this.#writtenUntilMs - this.#now() <= (BURST - 1) * this.#writeEveryMs;
  }

  #catchUp(): void {
    if (this.#mayWrite()) this.write();
  }

  #wake(): void {
    const nowMs = this.#now();
    if (nowMs < this.#wakeAtMs) return;
    const ms = WAKE_AFTER_WRITES * this.#writeEveryMs;
    this.#wakeAtMs = nowMs + ms;
    this.#work.wakeAfter(ms);
  }

  #pace(): number {
    const { worker, objects } = this.#isolates();
    return Math.min(MAX_SEND_EVERY_MS, ((worker + objects) * 1_000) / MESSAGES_PER_SECOND);
  }

  #isolates() {
    return this.#open.senders.countSince(this.#now() - ACTIVE_MS);
  }

  /** Stores all waiting messages, or forgets all: a message that is not stored is not counted. */
  #write(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    this.#received.clear();
    if (waiting.length === 0) return;
    const nowMs = this.#now();
    const untilMs = Math.max(this.#writtenUntilMs, nowMs) + this.#writeEveryMs;
    this.#writtenUntilMs = Math.min(untilMs, nowMs + BURST * this.#writeEveryMs);
    const fresh = this.#store(waiting, nowMs);
    this.#work.onCounted(fresh.map(({ counts }) => counts).reduce(merged, {}));
  }

  /** Stores messages, then changes memory. Returns those that were not counted before. */
  #store(messages: readonly StatsMessage[], nowMs: number): readonly StatsMessage[] {
    const minute = Math.floor(nowMs / MINUTE_MS);
    const isOver = minute > this.#open.minute;
    const close = isOver ? closing(this.#closed, this.#open, minute) : undefined;
    const begun: OpenMinute = isOver ? { ...this.#open, minute, counts: {} } : this.#open;
    const { open, fresh } = withMessages(begun, messages, this.#names, nowMs);
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
    if (isOver) this.#sendEveryMs = this.#pace();
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
