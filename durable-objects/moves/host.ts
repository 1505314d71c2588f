import type { Time } from "../../core/clock.ts";
import type { Policies } from "../../core/policies/policy.ts";
import type { KeyCache } from "../keys/key-cache.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Storage } from "../storage/storage.ts";
import type { Places } from "./places.ts";
import type { Residents } from "./residents.ts";

/** The parts of an object by which its keys move. */
export interface MovesHost {
  readonly policies: Pick<Policies, "get">;
  readonly storage: Storage;
  readonly cache: KeyCache;
  readonly residents: Residents;
  readonly places: Places;
  readonly time: Pick<Time, "after">;
  readonly nowMs: () => number;
  /** A key was written, and is whole from that instant. */
  readonly onWritten: (wholeMs: number, nowMs: number) => void;
  /** Whoever waits for the key is told that it has moved. */
  readonly endLine: (keyState: KeyState, moved: Error) => void;
}

/** The key is not here any more. Whoever made the call makes it again, where the key is. */
export class KeyHasMoved extends Error {
  constructor(key: string) {
    super(`the key ${JSON.stringify(key)} has moved to another object`);
  }
}
