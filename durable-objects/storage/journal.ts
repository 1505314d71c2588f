/**
 * The journal: what the calls of one turn of the object change is one row, however many keys, claims and
 * answers it is about. A table for each of them would take a row per change, and one more per end.
 *
 * - A turn appends a row with the changes, the last of each record and claim. One that changes only a record
 *   writes that, unless the journal has the key: its row costs as much, and is in its place.
 * - Memory has all changes that are only in the journal, by key (`#since`). Each read looks there first, so a
 *   key is loaded as if its table had them. An object that starts reads the journal once.
 * - When it is long, it begins again with one row of what all its rows came to: what began and ended in between is
 *   not there. If that is long too, it is *folded*: answers go to their table, and if that does not suffice, each
 *   changed key's record and the claims that still last.
 * - No row is deleted. Rows have `MAX_ROWS` places in turn, and each says which turn the journal begins with.
 *
 * An earlier version does not know the journal: after a rollback it goes on with the tables. So the first
 * change of a record also says which one it replaced (`base`): if the table has another by now, that one
 * counts.
 *
 * A fold is one transaction, so after a crash either all of it counts or the journal does as before. Rows are
 * about what is, not about what to add: reading one twice changes nothing. Segments of logs, moves and
 * deletions are written at once, in the same turn.
 */
import { hash } from "../../core/protocol/names.ts";
import type { Claim, DueKey, StoredAnswer, Tables } from "./records.ts";

/** Read at each start: 256 rows and 512 KiB take some 7 ms, and rows read cost a thousandth of rows written. */
const MAX_ROWS = 256;
const MAX_LENGTH = 2 ** 19;
/** The part of it that the row may take with which it begins again. */
const MAX_FIRST = 0.75;
/** Folding them, or writing them into that row, takes 5 to 10 ms, and calls wait for it. */
const MAX_KEYS = 1_000;

interface ChangedClaim {
  /** `undefined`: it has ended. */
  readonly claim: Claim | undefined;
  /** It began after the last fold: no table has it. */
  readonly isNew: boolean;
}

/** What was changed of a key. */
export class KeyChanges {
  /** The tables have no record or claims of the key, and what was changed before does not count. */
  isAnew = false;
  /** The same of its answers. */
  areAnswersAnew = false;
  record: DueKey | undefined;
  readonly claims = new Map<string, ChangedClaim>();
  /** By idempotency key; `undefined`: removed. */
  readonly answers = new Map<string, StoredAnswer | undefined>();

  begin(): void {
    this.isAnew = true;
    this.record = undefined;
    this.claims.clear();
  }

  beginAnswers(areAnew = true): void {
    this.areAnswersAnew = areAnew;
    this.answers.clear();
  }

  change(id: string, { claim, isNew }: ChangedClaim): void {
    const isOwn = this.claims.get(id)?.isNew ?? isNew;
    if (claim === undefined && isOwn) this.claims.delete(id);
    else this.claims.set(id, { claim, isNew: isOwn });
  }

  merge(later: KeyChanges): void {
    if (later.isAnew) this.begin();
    if (later.areAnswersAnew) this.beginAnswers();
    this.record = later.record ?? this.record;
    for (const [id, changed] of later.claims) this.change(id, changed);
    for (const [id, answer] of later.answers) this.answers.set(id, answer);
  }

  /** The same with the changes of a row. */
  mergeStored(key: string, later: StoredChanges): void {
    const { anew, answersAnew, record, begun = [], renewed = [], ended = [], answers = [] } = later;
    if (anew === true) this.begin();
    if (answersAnew === true) this.beginAnswers();
    if (record !== undefined) this.record = { ...record, key, wholeAtMs: Number(record.wholeAtMs) };
    for (const claim of begun) this.change(claim.id, { claim, isNew: true });
    for (const claim of renewed) this.change(claim.id, { claim, isNew: false });
    for (const id of ended) this.change(id, { claim: undefined, isNew: false });
    for (const [id, answer] of answers) this.answers.set(id, answer);
  }
}

class Changes extends Map<string, KeyChanges> {
  of(key: string): KeyChanges {
    const known = this.get(key) ?? new KeyChanges();
    this.set(key, known);
    return known;
  }

  merge(later: Changes): void {
    for (const [key, changes] of later) this.of(key).merge(changes);
  }
}

/** The memory for the journals of all objects in an isolate. */
export interface JournalRoom {
  /** This object's journal has so many characters more. */
  add(length: number): void;
  /** Whether it is short, and this object has more than its part. */
  isShort(): boolean;
}

/** What else is known of the storage whose journal it is. */
interface JournalHost {
  /** Moves a key's changes, or a part of them, to its tables. */
  fold(key: string, changes: Partial<KeyChanges>): void;
  /** After a rollback: what was counted and found in tables meanwhile does not count. */
  forget(): void;
}

/** A key's changes in a row. Stored: add fields, never rename one. */
interface StoredChanges {
  readonly anew?: true;
  readonly answersAnew?: true;
  /** JSON has no Infinity: the instant is a text then. */
  readonly record?: Omit<DueKey, "key" | "wholeAtMs"> & { readonly wholeAtMs: number | string };
  /** Of the record in the table, when the journal had none of the key. */
  readonly base?: number;
  readonly begun?: readonly Claim[];
  readonly renewed?: readonly Claim[];
  readonly ended?: readonly string[];
  readonly answers?: readonly (readonly [idempotencyKey: string, answer?: StoredAnswer])[];
}

export class Journal {
  readonly #tables: Tables;
  readonly #host: JournalHost;
  readonly #room: JournalRoom | undefined;
  /** What only the journal has. */
  readonly #since = new Changes();
  /** What is not written yet: the turn's changes, and those of its parts that may still fail. */
  #turn = new Changes();
  #parts: Changes[] = [];
  /** Until the end of a turn nothing is written. */
  #isTurn = false;
  #isBroken = false;
  /** It could not be read again: nothing is decided before that. */
  #isUnread = false;
  /** The number of the last row, and the rows and characters from the journal's first one on. */
  #number = 0;
  #rows = 0;
  #length = 0;

  constructor(tables: Tables, host: JournalHost, room: JournalRoom | undefined) {
    this.#tables = tables;
    this.#host = host;
    this.#room = room;
    this.#read();
  }

  /** A key's changes, the latest first. */
  *changesOf(key: string): Generator<KeyChanges, void> {
    for (const layer of this.#layers) {
      const changes = layer.get(key);
      if (changes !== undefined) yield changes;
    }
  }

  /** All that was changed of a key. */
  of(key: string): KeyChanges {
    const all = new KeyChanges();
    for (const changes of [...this.changesOf(key)].toReversed()) all.merge(changes);
    return all;
  }

  /** All changes that are only in the journal, by key. */
  get all(): ReadonlyMap<string, KeyChanges> {
    const all = new Changes();
    for (const layer of this.#layers.toReversed()) all.merge(layer);
    return all;
  }

  /** The latest first. */
  get #layers(): Changes[] {
    if (this.#isUnread) this.#read();
    return [...this.#parts.toReversed(), this.#turn, this.#since];
  }

  /** Changes a key: at once, or with the rest of what is atomic. */
  change(key: string, work: (changes: KeyChanges) => void): void {
    if (this.#parts.length === 0) this.atomically(() => this.change(key, work));
    else work(this.#last.of(key));
  }

  get #last(): Changes {
    return this.#parts.at(-1) ?? this.#turn;
  }

  /** Forgets what was changed of a key, if it was: its rows were deleted. */
  begin(key: string, part: "begin" | "beginAnswers"): void {
    for (const _ of this.changesOf(key)) return this.change(key, (changes) => changes[part]());
  }

  /** See `Storage.turn`. */
  turn<Result>(work: () => Result, lost: (error: unknown) => never): Result {
    if (this.#isTurn) return work();
    this.#isTurn = true;
    try {
      return work();
    } finally {
      try {
        this.#endTurn();
      } catch (error) {
        lost(error);
      }
    }
  }

  #endTurn(): void {
    this.#isTurn = false;
    if (this.#isBroken) throw new Error("a part of a turn was written, and failed");
    // Mostly one row, which needs no transaction of its own.
    this.#write();
  }

  /** All or none of the changes. A turn fails as a whole if `work` fails after it has written rows at once. */
  atomically<Result>(work: () => Result): Result {
    if (this.#isUnread) this.#read();
    const before = this.#parts.length;
    const { writes } = this.#tables;
    try {
      if (this.#isTurn) return this.#part(work);
      return this.#tables.atomically(() => {
        const result = this.#part(work);
        if (before === 0) this.#write();
        return result;
      });
    } catch (error) {
      this.#parts.length = before;
      this.#host.forget();
      if (this.#isTurn) this.#isBroken ||= this.#tables.writes !== writes;
      else if (before === 0) this.#read();
      throw error;
    }
  }

  #part<Result>(work: () => Result): Result {
    const part = new Changes();
    this.#parts.push(part);
    const result = work();
    this.#parts.pop();
    this.#last.merge(part);
    return result;
  }

  /** Moves everything to the tables, so that queries find it there. */
  fold(): void {
    if (this.#isUnread) this.#read();
    if (this.#parts.length > 0) throw new Error("a part of a turn cannot be folded");
    if (this.#turn.size + this.#since.size === 0) return;
    try {
      this.#tables.atomically(() => {
        this.#write();
        if (this.#since.size > 0) this.#fold();
      });
    } catch (error) {
      this.#host.forget();
      if (this.#isTurn) this.#isBroken = true;
      else this.#read();
      throw error;
    }
  }

  /** Everything stored is deleted. */
  forget(): void {
    this.#since.clear();
    this.#turn = new Changes();
    this.#parts = [];
    this.#number = 0;
    this.#rows = 0;
    this.#add(-this.#length);
  }

  #add(length: number): void {
    this.#length += length;
    this.#room?.add(length);
  }

  /** Writes what the turn has changed. */
  #write(): void {
    const changes = this.#turn;
    this.#turn = new Changes();
    const [only] = changes;
    if (only === undefined) return;
    const [onlyKey, { record, claims, answers }] = only;
    const isRecord = changes.size === 1 && claims.size + answers.size === 0 && !this.#since.has(onlyKey);
    if (isRecord && record !== undefined) return this.#tables.writeRecord(record);
    this.#tables.make("journal");
    const text = this.#textOf(changes, this.#since);
    const length = this.#length + text.length;
    this.#since.merge(changes);
    const isCrowded = this.#room?.isShort() === true;
    if (isCrowded || length > MAX_LENGTH || this.#rows === MAX_ROWS || this.#since.size > MAX_KEYS)
      this.#shorten(MAX_FIRST * Math.min(MAX_LENGTH, isCrowded ? length : Infinity));
    else this.#append(text, this.#rows + 1);
  }

  /** @param before what the journal had of the keys */
  #textOf(changes: Changes, before: ReadonlyMap<string, KeyChanges>): string {
    return JSON.stringify(
      [...changes].map(([key, each]) => {
        const isFirst = each.record !== undefined && before.get(key)?.record === undefined;
        return [key, { ...storedOf(each), ...(isFirst && { base: this.#baseOf(key) }) }];
      }),
    );
  }

  #shorten(mostLength: number): void {
    if (this.#begin(mostLength)) return;
    this.#tables.atomically(() => {
      for (const [key, changes] of this.#since) {
        this.#host.fold(key, { answers: changes.answers });
        changes.beginAnswers(false);
      }
      if (!this.#begin(mostLength)) this.#fold();
    });
  }

  /** Begins again with one row of all changes. Returns whether it did, as that is short. */
  #begin(mostLength: number): boolean {
    const text = this.#textOf(this.#since, new Map());
    const isShort = text.length <= mostLength && this.#since.size <= MAX_KEYS;
    if (isShort) this.#append(text, 1);
    return isShort;
  }

  /** The journal has this many rows from now on. */
  #append(changes: string, rows: number): void {
    const turn = this.#number + 1;
    this.#tables.put("journal", { place: turn % MAX_ROWS, turn, first: turn - rows + 1, changes });
    this.#number = turn;
    this.#rows = rows;
    this.#add(rows === 1 ? changes.length - this.#length : changes.length);
  }

  #baseOf(key: string): number {
    return hash(this.#tables.recordText(key) ?? "");
  }

  #fold(): void {
    for (const [key, changes] of this.#since) this.#host.fold(key, changes);
    this.#since.clear();
    this.#append("[]", 1);
  }

  #read(): void {
    this.#isUnread = true;
    this.forget();
    const query = `SELECT turn, changes FROM journal
      WHERE turn >= (SELECT first FROM journal ORDER BY turn DESC LIMIT 1) ORDER BY turn`;
    const bases = new Map<string, number>();
    for (const { turn, changes } of this.#tables.rows<{ turn: number; changes: string }>("journal", query)) {
      this.#number = turn;
      this.#rows += 1;
      this.#add(changes.length);
      for (const [key, stored] of JSON.parse(changes) as [string, StoredChanges][]) {
        this.#since.of(key).mergeStored(key, stored);
        if (stored.anew === true) bases.set(key, hash(""));
        else if (stored.base !== undefined) bases.set(key, stored.base);
      }
    }
    for (const [key, base] of bases) if (base !== this.#baseOf(key)) this.#since.of(key).record = undefined;
    this.#isUnread = false;
  }
}

function storedOf({ isAnew, areAnswersAnew, record, claims, answers: byId }: KeyChanges): StoredChanges {
  const [begun, renewed, ended]: [Claim[], Claim[], string[]] = [[], [], []];
  for (const [id, { claim, isNew }] of claims) {
    if (claim === undefined) ended.push(id);
    else (isNew ? begun : renewed).push(claim);
  }
  const answers = [...byId].map(([id, answer]) => (answer === undefined ? [id] : [id, answer]));
  const lists = Object.entries({ begun, renewed, ended, answers }).filter(([, { length }]) => length > 0);
  return {
    ...(isAnew && { anew: true }),
    ...(areAnswersAnew && { answersAnew: true }),
    ...(record !== undefined && { record: storedRecord(record) }),
    ...Object.fromEntries(lists),
  };
}

function storedRecord({ policy, rules, wholeAtMs }: DueKey): NonNullable<StoredChanges["record"]> {
  return { policy, rules, wholeAtMs: Number.isFinite(wholeAtMs) ? wholeAtMs : String(wholeAtMs) };
}
