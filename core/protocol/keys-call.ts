import type { Versioned } from "./messages.ts";

/** Lists or counts the keys of one object. */
export interface KeysCall extends Versioned {
  readonly policy: string;
  /** Only keys that begin with it. */
  readonly prefix?: string;
  /** Only keys after this one, in the order of their bytes. */
  readonly after?: string;
  /** A list has at most so many keys. */
  readonly most?: number;
}
