import {
  ANY_SNAPSHOT,
  type CatalogChanges,
  type SnapshotPage,
  type WantedPage,
} from "../../core/catalog/calls.ts";
import { randomId, readClockMs } from "../../core/clock.ts";
import type { CatalogStore } from "./catalog-store.ts";

/** Characters on a page, of one or two bytes. Smaller pages are more messages, and larger ones more memory on their way. */
const PAGE_LENGTH = 2 ** 18;
/** A text up to so long is not written to Workers KV. */
const MAX_UNWRITTEN_LENGTH = 2 ** 16;
/** A text is sent with the changes since it was made, up to so many, of at most 4 Mi characters. Then a new one is made. */
const MAX_LATER_CHANGES = 256;
/** The most changes that an isolate reads one by one. With more it reads everything. */
export const MAX_CHANGES_AT_ONCE = 1_024;
/** Readers are sent to an entry for so long. It exists twice as long, for those that are on their way. */
const ENTRY_SECONDS = 86_400;
/** After a failure it is not written again for so long. */
const PAUSE_MS = 60_000;

const NOTHING = { isWhole: false, policies: [], overrides: [], tokens: [] } as const;

interface Snapshot {
  /** Another one for each text, since another version of this code may write the same revision otherwise. */
  readonly id: string;
  readonly revision: number;
  readonly text: string;
}

/** A namespace of Workers KV, as far as it is written. */
export interface EntryWriter {
  put(key: string, text: string, options: { readonly expirationTtl: number }): Promise<void>;
}

/**
 * Everything in the catalog as one text, which is made once and sent page by page, not read for each isolate. A long
 * text is also written to Workers KV, if that is bound, and isolates read it there: the object answers with
 * the key and with the changes since. A key is written once, under a name that nobody could have looked up before, since
 * KV remembers for a minute that a key is missing. So the object stays the truth, and KV never says what is in force.
 */
export class Snapshots {
  readonly #store: CatalogStore;
  readonly #entries: EntryWriter | undefined;
  readonly #inBackground: (work: Promise<unknown>) => void;
  #made: Snapshot | undefined;
  #isWriting = false;
  #writeAtMs = -Infinity;

  constructor(
    store: CatalogStore,
    entries: EntryWriter | undefined,
    inBackground: (work: Promise<unknown>) => void,
  ) {
    this.#store = store;
    this.#entries = entries;
    this.#inBackground = inBackground;
  }

  /** Where everything is, or a page of it, with the changes after it. */
  read(wanted: WantedPage): CatalogChanges {
    if (wanted.id !== ANY_SNAPSHOT.id) return this.#page(wanted);
    const nowMs = readClockMs();
    const stored = this.#stored(nowMs);
    if (stored !== undefined) return stored;
    const first = this.#page(wanted);
    if (this.#made !== undefined) this.#write(this.#made, nowMs);
    return first;
  }

  /** The entry that readers may use, if there is one. */
  #stored(nowMs: number): CatalogChanges | undefined {
    const entry = this.#entries && this.#store.entry;
    const later =
      entry && nowMs < entry.untilMs ? this.#store.changes(entry.revision, MAX_LATER_CHANGES) : undefined;
    return entry && later && { ...later, snapshot: { id: entry.id } };
  }

  #page(wanted: WantedPage): CatalogChanges & { readonly snapshot: SnapshotPage } {
    const known = this.#made && this.#store.changes(this.#made.revision, MAX_LATER_CHANGES);
    const made = this.#made !== undefined && known !== undefined ? this.#made : this.#make();
    const later = known ?? { ...NOTHING, revision: made.revision };
    const { id, text } = made;
    const pages = Math.ceil(text.length / PAGE_LENGTH);
    const page = wanted.id === id && wanted.page < pages ? wanted.page : 0;
    const beginning = page * PAGE_LENGTH;
    return { ...later, snapshot: { id, page, pages, text: text.slice(beginning, beginning + PAGE_LENGTH) } };
  }

  #make(): Snapshot {
    const everything = this.#store.everything();
    const { revision } = everything;
    const id = `catalog-${revision}-${randomId()}`;
    this.#made = { id, revision, text: JSON.stringify(everything) };
    return this.#made;
  }

  /** Writes it to Workers KV, if it is long. */
  #write(made: Snapshot, nowMs: number): void {
    const { id, revision, text } = made;
    const isDue = !this.#isWriting && nowMs >= this.#writeAtMs;
    if (this.#entries === undefined || text.length <= MAX_UNWRITTEN_LENGTH || !isDue) return;
    this.#isWriting = true;
    const written = this.#entries
      .put(id, text, { expirationTtl: 2 * ENTRY_SECONDS })
      .then(() => this.#store.writeEntry({ id, revision, untilMs: nowMs + ENTRY_SECONDS * 1_000 }))
      .catch((error: unknown) => {
        this.#writeAtMs = readClockMs() + PAUSE_MS;
        console.warn(
          `the catalog was not written to Workers KV, so isolates read it from here: ${String(error)}`,
        );
      })
      .finally(() => (this.#isWriting = false));
    this.#inBackground(written);
  }
}
