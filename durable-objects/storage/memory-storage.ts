import type { NewSegment, Segment } from "../../core/algorithms/algorithm.ts";
import { callerOf, type StoredAnswers, type Swept } from "./answers.ts";
import {
  CallerCounts,
  type Claim,
  type DueKey,
  type StoredAnswer,
  type StoredKey,
  type SweptKey,
} from "./records.ts";
import type { KeyStorage, StoredClaims } from "./storage.ts";
import { Sweeps } from "./sweeps.ts";
import { CrashAllowances } from "./write-behind.ts";

const NOT_KEPT = { kv: { get: () => undefined, put: () => undefined } };

/** Storage in memory, for a limiter that need not survive its process. */
export class MemoryStorage implements KeyStorage {
  readonly answers = new MemoryAnswers((key) => this.#keys.has(key));
  readonly claims = new MemoryClaims();
  /** Never read: there is no start after a crash. */
  readonly allowances = new CrashAllowances(NOT_KEPT);
  readonly sweeps = new Sweeps(NOT_KEPT);
  readonly loneKey = undefined;
  /** Each policy has one object here, so keys never move. */
  readonly moves = { isEmpty: true, isAway: () => false, sweep: () => ({ left: 0, dueMs: Infinity }) };
  readonly #keys = new Map<string, DueKey>();
  /** By rule. */
  readonly #segments = new ByKey<readonly NewSegment[]>();

  get isEmpty(): boolean {
    return this.#keys.size === 0 && this.answers.size === 0 && this.allowances.isEmpty;
  }

  /** Only a bug can make it fail halfway, and then the process should end. */
  atomically<Result>(work: () => Result): Result {
    return work();
  }

  removeAll(): Promise<void> {
    for (const parts of [this.#keys, this.#segments, this.claims, this.answers]) parts.clear();
    this.allowances.forget();
    this.sweeps.begin();
    return Promise.resolve();
  }

  read(key: string): DueKey | undefined {
    return this.#keys.get(key);
  }

  keysAfter(prefix: string, after: string | undefined, most: number): string[] {
    const found = [...this.#keys.keys()].filter((key) => key.startsWith(prefix) && (!after || key > after));
    return found.toSorted((a, b) => (a < b ? -1 : 1)).slice(0, most);
  }

  countKeys(prefix: string): number {
    return [...this.#keys.keys()].filter((key) => key.startsWith(prefix)).length;
  }

  write(record: StoredKey, wholeAtMs: number): void {
    this.#keys.set(record.key, { ...record, wholeAtMs });
    this.sweeps.wrote(wholeAtMs);
  }

  remove(key: string): void {
    this.claims.removeAll(key);
    this.#keys.delete(key);
    this.#segments.delete(key);
  }

  segments(key: string, rule: string): Segment[] {
    const kept = this.#segments.get(key)?.get(rule) ?? [];
    return kept.map(({ log, from, entries }) => ({ log, from, entries: Float64Array.from(entries) }));
  }

  writeSegment(key: string, rule: string, segment: NewSegment): void {
    const isKept = ({ log, from, toMs }: NewSegment) =>
      log === segment.log && toMs >= segment.keepFromMs && from !== segment.from;
    const kept = (this.#segments.get(key)?.get(rule) ?? []).filter(isKept);
    const sorted = [...kept, segment].toSorted((a, b) => a.log - b.log || a.from - b.from);
    this.#segments.write(key, rule, sorted);
  }

  /** All at once, since finding those after a key would sort them all. */
  keysSwept(after: string): SweptKey[] {
    return after === "" ? [...this.#keys.values()] : [];
  }
}

/** Deleted at once: finding them reads all answers of the key. */
const ANSWERS_DROPPED = 1_000;

/** Values by key and name. A key without any is not there. */
class ByKey<Value> extends Map<string, Map<string, Value>> {
  write(key: string, name: string, value: Value): void {
    const ofKey = this.get(key) ?? new Map<string, Value>();
    this.set(key, ofKey);
    ofKey.set(name, value);
  }

  remove(key: string, name: string): void {
    const ofKey = this.get(key);
    ofKey?.delete(name);
    if (ofKey?.size === 0) this.delete(key);
  }

  removeAll(key: string): void {
    this.delete(key);
  }
}

class MemoryAnswers extends ByKey<StoredAnswer> implements Omit<StoredAnswers, "forget" | "fold" | "all"> {
  readonly #hasRecord: (key: string) => boolean;

  constructor(hasRecord: (key: string) => boolean) {
    super();
    this.#hasRecord = hasRecord;
  }

  read(key: string, idempotencyKey: string): StoredAnswer | undefined {
    return this.get(key)?.get(idempotencyKey);
  }

  count(key: string, caller: string): { readonly count: number; readonly oldestMs: number } {
    const found = this.#of(key, caller);
    return { count: found.length, oldestMs: found[0]?.[1].atMs ?? Infinity };
  }

  removeOldest(key: string, caller: string): void {
    for (const [each] of this.#of(key, caller).slice(0, ANSWERS_DROPPED)) this.remove(key, each);
  }

  /** A process has one caller, and its memory ends with it. */
  readonly length = 0;
  lengthOf(): number {
    return 0;
  }

  sweep(_: object, untilMs: number): Swept {
    let [left, oldestMs] = [0, Infinity];
    for (const [key, answers] of this) {
      const isRecorded = this.#hasRecord(key);
      for (const [each, { atMs }] of answers) {
        if (!isRecorded && atMs <= untilMs) {
          this.remove(key, each);
          continue;
        }
        left += 1;
        if (!isRecorded) oldestMs = Math.min(oldestMs, atMs);
      }
    }
    return { left, oldestMs };
  }

  #of(key: string, caller: string): [string, StoredAnswer][] {
    return [...(this.get(key) ?? [])].filter(([each, { request }]) => callerOf(each, request) === caller);
  }
}

class MemoryClaims implements Omit<StoredClaims, "forgetCounts" | "fold"> {
  readonly #claims = new ByKey<Claim>();

  read(key: string): Claim[] {
    return [...(this.#claims.get(key)?.values() ?? [])];
  }

  write(key: string, claim: Claim): void {
    this.#claims.write(key, claim.id, claim);
  }

  remove(key: string, { id }: Pick<Claim, "id">): void {
    this.#claims.remove(key, id);
  }

  removeAll(key: string): void {
    this.#claims.delete(key);
  }

  clear(): void {
    this.#claims.clear();
  }

  get counts(): CallerCounts {
    const counts = new CallerCounts();
    for (const ofKey of this.#claims.values())
      for (const { caller = "" } of ofKey.values()) counts.add(caller, 1);
    return counts;
  }
}
