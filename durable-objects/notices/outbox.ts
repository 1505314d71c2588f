/**
 * The keys of an object with notices that are to be sent.
 *
 * The notices are in the keys' records, which are stored before any is sent: the output gate holds a message back until
 * what was written before is durable. One that has arrived is taken out of its record. After a crash between the two it
 * is sent again with its id. So a notice costs two rows, and the first is mostly one that its call writes anyway.
 *
 * No call waits for a notice. Attempts that fail come again with an alarm, after half the age of the oldest notice, for
 * a day. An alarm also finds the notices of an object that has crashed.
 */
import { type Notice, SENT_FOR_MS } from "../../core/accounts/notices.ts";
import { randomFraction } from "../../core/clock.ts";
import { publicName } from "../../core/policies/policy.ts";
import type { Counter } from "../../core/stats/tally.ts";
import { hasUnsent, type NoticeBox } from "../keys/key-notices.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { Addressed, Deliver } from "./delivery.ts";

/** Of an object. Each has at most `MAX_UNSENT` notices of a rule. */
const MAX_KEYS = 1_000;
/** A request may have six connections at once. */
const MAX_AT_ONCE = 5;
const MIN_WAIT_MS = 5_000;
const MAX_WAIT_MS = 2 * 60 * 60 * 1_000;
/** The alarm that opens a key after its holds have ended comes at most so much later. */
const WATCHED_WITHIN_MS = 1_000;
/** The alarm that would find notices after a crash comes at most so much later than it might. It costs a row. */
const FOUND_WITHIN_MS = 6 * 60 * 60 * 1_000;

type NamedKey = readonly [key: string, policy: string];

interface OutboxHost {
  readonly store: Pick<KeyStore, "open" | "release" | "unsend" | "notice">;
  readonly storage: {
    readonly [Kind in "keysUnsent" | "keysHolding"]: (most: number) => readonly NamedKey[];
  };
  readonly timers: { nowMs(): number; alarmBy(dueMs: number, nowMs: number, slackMs?: number): void };
  readonly counter: Pick<Counter, "add">;
  readonly deliver: Deliver;
  /** Keeps the object in memory until `work` ends. */
  readonly inBackground: (work: Promise<unknown>) => void;
}

export class Outbox implements NoticeBox {
  readonly #host: OutboxHost;
  /** Keys that may reach a threshold without a further call, and when. Of more keys the next call notices it. */
  readonly #watched = new Map<string, { readonly policy: string; readonly dueMs: number }>();
  /** By key: its policy. The first is the one that waits longest for an attempt. */
  readonly #keys = new Map<string, string>();
  #running: Promise<void> | undefined;
  #isRead = false;
  #notBeforeMs = -Infinity;
  #dueMs = -Infinity;
  /** Keys were added while notices of others are under way. */
  #hasMore = false;

  constructor(host: OutboxHost) {
    this.#host = host;
  }

  hasRoom({ key }: KeyState): boolean {
    return this.#keys.has(key) || this.#keys.size < MAX_KEYS;
  }

  drop(policy: string, count: number): void {
    this.#host.counter.add("notices", [policy, "dropped"], count);
  }

  /** A key was stored, or loaded, with notices. */
  add({ key, policy }: KeyState, nowMs: number): void {
    if (this.#keys.has(key) || this.#keys.size >= MAX_KEYS) return;
    this.#keys.set(key, policy.name);
    const isResting = nowMs < this.#notBeforeMs;
    const dueMs = isResting ? this.#notBeforeMs : nowMs + MIN_WAIT_MS;
    this.#host.timers.alarmBy(dueMs, nowMs, isResting ? 0 : FOUND_WITHIN_MS);
    this.#hasMore = true;
    if (isResting) this.#dueMs = Math.min(this.#dueMs, dueMs);
    else this.#host.inBackground(this.#run());
  }

  watch({ key, policy }: KeyState, dueMs: number, nowMs: number): void {
    if (!this.#watched.has(key) && this.#watched.size >= MAX_KEYS) return;
    this.#watched.set(key, { policy: policy.name, dueMs });
    this.#host.timers.alarmBy(dueMs, nowMs, WATCHED_WITHIN_MS);
  }

  /** A key was loaded. */
  follow(keyState: KeyState, nowMs: number): void {
    if (hasUnsent(keyState)) this.add(keyState, nowMs);
  }

  /** An alarm came: sends what is due, also what was stored before this memory. Returns when it has to come again. */
  async wake(): Promise<number> {
    const { storage, timers } = this.#host;
    if (!this.#isRead) {
      for (const [key, policy] of storage.keysUnsent(MAX_KEYS)) this.#keys.set(key, policy);
      for (const [key, policy] of storage.keysHolding(MAX_KEYS))
        this.#watched.set(key, { policy, dueMs: -Infinity });
    }
    const watchedMs = this.#look();
    // More than there is room for are found when these have gone.
    this.#isRead = this.#keys.size < MAX_KEYS;
    if (timers.nowMs() >= this.#dueMs) await this.#run();
    const unreadMs = this.#isRead ? Infinity : timers.nowMs() + MIN_WAIT_MS;
    const sentMs = this.#keys.size === 0 ? unreadMs : Math.max(this.#dueMs, timers.nowMs());
    return Math.min(sentMs, watchedMs);
  }

  /** Opens the keys whose holds have ended. Returns when the next one has to be opened. */
  #look(): number {
    const { store, timers } = this.#host;
    const nowMs = timers.nowMs();
    for (const [key, { policy, dueMs }] of this.#watched) {
      if (nowMs < dueMs) continue;
      this.#watched.delete(key);
      try {
        const keyState = store.open(policy, key, nowMs);
        store.notice(keyState, nowMs);
        store.release(keyState);
      } catch (error) {
        console.warn(`policy ${policy}: what a key has used could not be noticed: ${String(error)}`);
      }
    }
    return Math.min(...[...this.#watched.values()].map(({ dueMs }) => dueMs));
  }

  #run(): Promise<void> {
    this.#running ??= this.#send().finally(() => (this.#running = undefined));
    return this.#running;
  }

  async #send(): Promise<void> {
    // First the turn ends that has stored them.
    await Promise.resolve();
    for (let batch = this.#next(); batch.length > 0; batch = this.#next()) {
      const outcomes = await Promise.all(batch.map((each) => this.#attempt(each)));
      const [sent, failed] = [true, false].map((is) => batch.filter((_, index) => outcomes[index] === is));
      for (const each of sent ?? []) this.#unsend(each, "sent");
      if (failed !== undefined && failed.length > 0) return this.#rest(failed);
    }
  }

  /** Whether it has arrived. */
  async #attempt(addressed: Addressed): Promise<boolean> {
    try {
      await this.#host.deliver(addressed);
      return true;
    } catch (error) {
      console.warn(
        `policy ${addressed.policy}: a notice did not arrive, and is sent again: ${String(error)}`,
      );
      this.#host.counter.add("notices", [publicName(addressed.policy), "failed"]);
      return false;
    }
  }

  /** The next that are to be sent, as the keys have them now. */
  #next(): Addressed[] {
    const batch: Addressed[] = [];
    this.#hasMore = false;
    for (const [key, policy] of this.#keys) {
      const left = MAX_AT_ONCE - batch.length;
      if (left === 0) break;
      const found = this.#unsentOf(policy, key);
      if (found.length === 0) this.#keys.delete(key);
      batch.push(...found.slice(0, left));
    }
    return batch;
  }

  /** Those of a key. Gives up what is too old. */
  #unsentOf(policy: string, key: string): Addressed[] {
    const nowMs = this.#host.timers.nowMs();
    const all = this.#read(policy, key, nowMs);
    const isOver = ({ atMs }: Notice) => nowMs >= atMs + SENT_FOR_MS;
    const over = all.filter(({ notice }) => isOver(notice));
    for (const each of over) this.#unsend(each, "dropped");
    return all.filter(({ notice }) => !isOver(notice));
  }

  #read(policy: string, key: string, nowMs: number): Addressed[] {
    const { store } = this.#host;
    try {
      const keyState = store.open(policy, key, nowMs);
      const all = keyState.ruleStates.flatMap(({ rule, noticed: { unsent } }) =>
        unsent.map((notice) => ({ policy, key, rule: rule.name, notice })),
      );
      store.release(keyState);
      return all;
    } catch {
      // It has moved with its notices, or this version does not know its policy.
      return [];
    }
  }

  #unsend({ policy, key, notice }: Addressed, outcome: "sent" | "dropped"): void {
    const { store, timers, counter } = this.#host;
    counter.add("notices", [publicName(policy), outcome]);
    const nowMs = timers.nowMs();
    try {
      const keyState = store.open(policy, key, nowMs);
      store.unsend(keyState, new Set([notice.id]), nowMs);
      store.release(keyState);
    } catch (error) {
      // It is sent again, with its id.
      console.warn(`policy ${policy}: what became of a notice could not be stored: ${String(error)}`);
      this.#keys.delete(key);
    }
  }

  /** Tries again later, and others first. */
  #rest(failed: readonly Addressed[]): void {
    const { timers } = this.#host;
    const nowMs = timers.nowMs();
    for (const { key, policy } of failed) {
      this.#keys.delete(key);
      this.#keys.set(key, policy);
    }
    const ageMs = Math.max(...failed.map(({ notice }) => nowMs - notice.atMs));
    const waitMs = this.#hasMore ? 0 : Math.min(MAX_WAIT_MS, ageMs / 2);
    this.#notBeforeMs = nowMs + MIN_WAIT_MS;
    this.#dueMs = nowMs + Math.ceil(Math.max(MIN_WAIT_MS, waitMs) * (1 + randomFraction() / 4));
    timers.alarmBy(this.#dueMs, nowMs, 0);
  }
}
