import { OverrideIndex } from "./override-index.ts";
import type { Pattern } from "./patterns.ts";
import type { OverrideFields } from "./table.ts";

/** An override, by its pattern. */
export interface Overriding {
  readonly pattern: string;
  readonly fields: OverrideFields;
}

/** What is in force for a key. */
export interface FoundOverride {
  /** Absent: those that the key had have ended. */
  readonly override?: Overriding;
  /** When the last one of those ended. Absent: none has. */
  readonly sinceMs?: number;
}

interface Ending extends FoundOverride {
  /** NaN: it does not end by itself. */
  readonly endsAtMs: number;
}

/**
 * The overrides of one policy. One that has ended is as if it were not there, from its instant on: the catalog writes so a
 * moment later, and isolates hear of that when they ask again.
 */
export class EndingOverrides {
  readonly #index = new OverrideIndex<Ending>();

  get size(): number {
    return this.#index.size;
  }

  /** Adds an override, or replaces the one of the same pattern. */
  set(pattern: Pattern, override: Overriding): void {
    this.#index.set(pattern, { override, endsAtMs: Date.parse(String(override.fields["expiresAt"])) });
  }

  delete(pattern: Pattern): void {
    this.#index.delete(pattern);
  }

  /** What is in force for a key at this instant; `undefined`: no override is for it, and none has ended. */
  find(key: string, nowMs: number): FoundOverride | undefined {
    const first = this.#index.find(key);
    if (first === undefined || !hasEnded(first, nowMs)) return first;
    let sinceMs = first.endsAtMs;
    const next = this.#index.find(key, (each) => {
      if (!hasEnded(each, nowMs)) return true;
      sinceMs = Math.max(sinceMs, each.endsAtMs);
      return false;
    });
    return { ...(next?.override && { override: next.override }), sinceMs };
  }
}

function hasEnded({ endsAtMs }: Ending, nowMs: number): boolean {
  return endsAtMs <= nowMs;
}
