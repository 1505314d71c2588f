/**
 * The journal: what the calls of one turn of the object change is one row, however many keys, claims and
 * answers it is about. A table for each of them would take a row per change, and one more per end.
 *
 * - A turn appends a row with the changes, the last of each record and claim. One that changes only a record
 *   writes that, unless the journal has the key: its row costs as much, and is in its place.
 * - Memory has all changes that are only in the journal, by key (`#since`). Each read looks there first, so a
 *   key is loaded as if its table had them. An object that starts reads the journal once.
 * - When it is long, it is *folded*: each changed key's record, the claims that still last and the answers go
 *   to their tables. What began and ended in between is never there.
 * - No row is deleted. Rows have `MAX_ROWS` places in turn, and each says which turn the journal begins with.
 *   After a fold it begins with a row that has no changes. So an end costs no delete, and a fold one row.
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

/** Read at each start: 256 rows and 256 KiB take some milliseconds, and rows read cost a thousandth of rows written. */
const MAX_ROWS = 256;
const MAX_LENGTH = 2 ** 18;
/** Folding takes about 10 µs per key, and calls wait for it. */
const MAX_KEYS = 500;

interface ChangedClaim {
  /** `undefined`: it has ended. */
  readonly claim: Claim | undefined;
  /** It began after the last fold: no table has it. */
  readonly isNew: boolean;
}

/** What was changed of a key. */
class KeyChanges {
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

  beginAnswers(): void {
    this.areAnswersAnew = true;
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

  get isRecordOnly(): boolean {
    return this.record !== undefined && this.claims.size + this.answers.size === 0;
  }
}

export type { KeyChanges };

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
  /** Until the end of a turn nothing is written. */
  isTurn = false;
  readonly #tables: Tables;
  readonly #foldKey: (key: string, changes: KeyChanges) => void;
  readonly #room: JournalRoom | undefined;
  /** What only the journal has. */
  #since = new Changes();
  /** What is not written yet: the turn's changes, and those of the parts of it that may still fail. */
  #pending: Changes[] = [];
  #isBroken = false;
  /** It could not be read again: nothing is decided before that. */
  #isUnread = false;
  /** The number of the last row, and the rows and characters from the journal's first one on. */
  #turn = 0;
  #rows = 0;
  #length = 0;

  constructor(
    tables: Tables,
    foldKey: (key: string, changes: KeyChanges) => void,
    room: JournalRoom | undefined,
  ) {
    this.#tables = tables;
    this.#foldKey = foldKey;
    this.#room = room;
    this.#read();
  }

  /** A key's changes, the latest first. */
  *changesOf(key: string): Generator<KeyChanges, void> {
    this.#readAgain();
    for (let index = this.#pending.length - 1; index >= 0; index -= 1) {
      const changes = this.#pending[index]?.get(key);
      if (changes !== undefined) yield changes;
    }
    const changes = this.#since.get(key);
    if (changes !== undefined) yield changes;
  }

  /** All changes that are only in the journal, by key. */
  get all(): Iterable<readonly [key: string, changes: KeyChanges]> {
    this.#readAgain();
    const all = new Changes();
    for (const changes of [this.#since, ...this.#pending]) all.merge(changes);
    return all;
  }

  /** Changes a key: at once, or with the rest of what is atomic. */
  change(key: string, work: (changes: KeyChanges) => void): void {
    const last = this.#pending.at(-1);
    if (last !== undefined) work(last.of(key));
    else this.atomically(() => work(this.#last.of(key)));
  }

  /** Forgets what was changed of a key, if it was: its rows were deleted. */
  begin(key: string, part: "begin" | "beginAnswers"): void {
    for (const _ of this.changesOf(key)) return this.change(key, (changes) => changes[part]());
  }

  /** All or none of the changes. A turn fails as a whole if `work` fails after it has written rows at once. */
  atomically<Result>(work: () => Result): Result {
    this.#readAgain();
    const before = this.#pending.length;
    const { writes } = this.#tables;
    try {
      if (this.isTurn) return this.#nested(work);
      return this.#tables.atomically(() => {
        const result = this.#nested(work);
        if (before === 0) this.#write();
        return result;
      });
    } catch (error) {
      this.#pending.length = before;
      if (this.isTurn) this.#isBroken ||= this.#tables.writes !== writes;
      else if (before === 0) this.#read();
      throw error;
    }
  }

  #nested<Result>(work: () => Result): Result {
    if (this.#pending.length === 0) this.#pending.push(new Changes());
    const changes = new Changes();
    this.#pending.push(changes);
    const result = work();
    this.#pending.pop();
    this.#last.merge(changes);
    return result;
  }

  get #last(): Changes {
    const last = this.#pending.at(-1);
    if (last === undefined) throw new Error("nothing is to be changed");
    return last;
  }

  /** Ends a turn. @throws Error when its changes cannot be written: then memory knows more than storage */
  endTurn(): void {
    this.isTurn = false;
    if (this.#isBroken) throw new Error("a part of a turn was written, and failed");
    // Mostly one row, which needs no transaction of its own.
    if (this.#pending.length > 0) this.#write();
  }

  /** Moves everything to the tables, so that queries find it there. */
  fold(): void {
    this.#readAgain();
    if (this.#pending.length > 1) throw new Error("a part of a turn cannot be folded");
    if (this.#pending.length + this.#since.size === 0) return;
    try {
      this.#tables.atomically(() => {
        this.#write();
        if (this.#since.size > 0) this.#fold();
      });
    } catch (error) {
      if (this.isTurn) this.#isBroken = true;
      else this.#read();
      throw error;
    }
  }

  /** Everything stored is deleted. */
  forget(): void {
    this.#since.clear();
    this.#pending = [];
    this.#turn = 0;
    this.#rows = 0;
    this.#add(-this.#length);
  }

  #add(length: number): void {
    this.#length += length;
    this.#room?.add(length);
  }

  /** Writes what is pending. */
  #write(): void {
    const [changes = new Changes()] = this.#pending;
    this.#pending = [];
    if (changes.size === 0) return;
    const [only] = changes;
    if (changes.size === 1 && only?.[1].isRecordOnly === true && !this.#since.has(only[0])) {
      if (only[1].record !== undefined) this.#tables.writeRecord(only[1].record);
      return;
    }
    this.#tables.make("journal");
    const text = JSON.stringify(
      [...changes].map(([key, each]) => {
        const isFirst = each.record !== undefined && this.#since.get(key)?.record === undefined;
        return [key, { ...storedOf(each), ...(isFirst && { base: this.#baseOf(key) }) }];
      }),
    );
    const isLong = this.#length + text.length > MAX_LENGTH || this.#since.size + changes.size > MAX_KEYS;
    this.#since.merge(changes);
    if (isLong || this.#rows === MAX_ROWS || this.#room?.isShort() === true)
      this.#tables.atomically(() => this.#fold());
    else this.#append(text, this.#rows + 1);
  }

  /** The journal has this many rows from now on. */
  #append(changes: string, rows: number): void {
    const turn = this.#turn + 1;
    this.#tables.put("journal", { place: turn % MAX_ROWS, turn, first: turn - rows + 1, changes });
    this.#turn = turn;
    this.#rows = rows;
    this.#add(changes.length);
  }

  #baseOf(key: string): number {
    return hash(this.#tables.recordText(key) ?? "");
  }

  #fold(): void {
    for (const [key, changes] of this.#since) this.#foldKey(key, changes);
    this.#append("[]", 1);
    this.#add(-this.#length);
    this.#since.clear();
  }

  #readAgain(): void {
    if (this.#isUnread) this.#read();
  }

  #read(): void {
    this.#isUnread = true;
    this.forget();
    this.#readRows();
    this.#isUnread = false;
  }

  #readRows(): void {
    type Row = { turn: number; first: number };
    const query = "SELECT turn, first FROM journal ORDER BY turn DESC LIMIT 1";
    const [last] = this.#tables.rows<Row>("journal", query);
    if (last === undefined) return;
    const rows = "SELECT changes FROM journal WHERE turn >= ? ORDER BY turn";
    const bases = new Map<string, number>();
    for (const { changes } of this.#tables.rows<{ changes: string }>("journal", rows, last.first)) {
      this.#add(changes.length);
      for (const [key, stored] of JSON.parse(changes) as [string, StoredChanges][]) {
        this.#since.of(key).merge(changesIn(key, stored));
        if (stored.anew === true) bases.set(key, hash(""));
        else if (stored.base !== undefined) bases.set(key, stored.base);
      }
    }
    for (const [key, base] of bases) if (base !== this.#baseOf(key)) this.#since.of(key).record = undefined;
    this.#turn = last.turn;
    this.#rows = last.turn - last.first + 1;
  }
}

function storedOf({ isAnew, areAnswersAnew, record, claims, answers }: KeyChanges): StoredChanges {
  const [begun, renewed, ended]: [Claim[], Claim[], string[]] = [[], [], []];
  for (const [id, { claim, isNew }] of claims) {
    if (claim === undefined) ended.push(id);
    else (isNew ? begun : renewed).push(claim);
  }
  return {
    ...(isAnew && { anew: true }),
    ...(areAnswersAnew && { answersAnew: true }),
    ...(record !== undefined && { record: storedRecord(record) }),
    ...(begun.length > 0 && { begun }),
    ...(renewed.length > 0 && { renewed }),
    ...(ended.length > 0 && { ended }),
    ...(answers.size > 0 && {
      answers: [...answers].map(([id, answer]) =>
        answer === undefined ? ([id] as const) : ([id, answer] as const),
      ),
    }),
  };
}

function storedRecord({ policy, rules, wholeAtMs }: DueKey): NonNullable<StoredChanges["record"]> {
  return { policy, rules, wholeAtMs: Number.isFinite(wholeAtMs) ? wholeAtMs : String(wholeAtMs) };
}

function changesIn(key: string, stored: StoredChanges): KeyChanges {
  const { anew, answersAnew, record, begun = [], renewed = [], ended = [], answers = [] } = stored;
  const changes = new KeyChanges();
  changes.isAnew = anew === true;
  changes.areAnswersAnew = answersAnew === true;
  changes.record = record && { ...record, key, wholeAtMs: Number(record.wholeAtMs) };
  for (const claim of begun) changes.change(claim.id, { claim, isNew: true });
  for (const claim of renewed) changes.change(claim.id, { claim, isNew: false });
  for (const id of ended) changes.claims.set(id, { claim: undefined, isNew: false });
  for (const [id, answer] of answers) changes.answers.set(id, answer);
  return changes;
}

/** Where what only the journal has is. */
export interface Journaled {
  readonly journal: Journal | undefined;
  /** The journal, made if need be. */
  readonly made: Journal;
  fold(): void;
}
