/**
 * What an isolate knows of the catalog. It asks for what has changed, in the background while there are calls, so that no
 * call waits. Only one that comes after a pause has to: a decision is never made by what was asked for longer ago.
 */
import type { Follow } from "../../client/call-gate.ts";
import type { CatalogChanges, CatalogMethods, TokenChange } from "../../core/catalog/calls.ts";
import type { PoliciesInForce } from "../../core/catalog/policies-in-force.ts";
import { orTimeout, type Time } from "../../core/clock.ts";
import { later, type Policies } from "../../core/policies/policy.ts";

/** From so many milliseconds on the next call asks again, and does not wait for the answer. */
export const ASK_AFTER_MS = 5_000;
/**
 * What was asked for so long ago is not decided by. A change is in force 10 s after it was acknowledged, and a decision may
 * take its deadline, which is 1 s unless its policy says more.
 */
export const MAX_AGE_MS = 8_000;
/** The longest that a call waits for the catalog. Then it goes on with what is known. */
const DEADLINE_MS = 1_000;

/** What the reader needs of the isolate. */
interface CatalogReaderParts {
  readonly policies: PoliciesInForce;
  readonly time: Time;
  /** A new stub for each message: a stub may not be used by another request. */
  readonly catalog: () => Pick<CatalogMethods, "changes">;
  readonly inBackground: (work: Promise<unknown>) => void;
  readonly onTokens: (entries: readonly object[]) => void;
}

/** One isolate's knowledge of the catalog. */
export class CatalogReader {
  readonly #parts: CatalogReaderParts;
  readonly #tokens = new Map<string, object>();
  /** When what is known was asked for. */
  #askedMs = -Infinity;
  /** The message under way, and when it was sent. */
  #asking: { readonly answer: Promise<void>; readonly sinceMs: number } | undefined;
  /** When the last message failed; `undefined`: it did not. */
  #failedMs: number | undefined;
  #sent = 0;
  #taken = 0;

  constructor(parts: CatalogReaderParts) {
    this.#parts = parts;
  }

  /** How many milliseconds ago what is known was asked for. */
  get ageMs(): number {
    return this.#parts.time.nowMs() - this.#askedMs;
  }

  /**
   * Sees to it that what is known is not too old. `undefined`: it is not; else it is when the promise resolves, or the
   * catalog does not answer. Then calls go on with what is known.
   */
  freshen(): Promise<void> | undefined {
    const nowMs = this.#parts.time.nowMs();
    const ageMs = nowMs - this.#askedMs;
    // A clock that was put back tells no age.
    if (ageMs >= 0 && ageMs < ASK_AFTER_MS) return undefined;
    const failedMs = this.#failedMs ?? -Infinity;
    if (nowMs >= failedMs && nowMs < failedMs + ASK_AFTER_MS) return undefined;
    const answer = this.#ask(nowMs);
    // Nobody waits for a catalog that has not answered the last time.
    if ((ageMs >= 0 && ageMs < MAX_AGE_MS) || this.#failedMs !== undefined) return undefined;
    return orTimeout(answer, this.#parts.time, DEADLINE_MS);
  }

  /** Asks at once: whoever has just changed something sees it. */
  async ask(): Promise<void> {
    await this.#ask(this.#parts.time.nowMs(), true);
  }

  #ask(nowMs: number, isForced = false): Promise<void> {
    const asking = this.#asking;
    // The request that asked may have ended, and then no answer comes.
    const isUnderWay =
      asking !== undefined && nowMs >= asking.sinceMs && nowMs < asking.sinceMs + DEADLINE_MS;
    if (isUnderWay && !isForced) return asking.answer;
    const answer = this.#read(nowMs);
    this.#asking = { answer, sinceMs: nowMs };
    this.#parts.inBackground(answer);
    return answer;
  }

  async #read(nowMs: number): Promise<void> {
    const { policies, catalog, time } = this.#parts;
    this.#sent += 1;
    const turn = this.#sent;
    try {
      const changes = await inTime(catalog().changes(policies.revision), time);
      // One that was overtaken by a later answer says nothing new, and what it would take away may be there again.
      if (turn < this.#taken) return;
      this.#taken = turn;
      this.#askedMs = nowMs;
      this.#failedMs = undefined;
      this.#take(changes);
    } catch (error) {
      this.#failedMs = time.nowMs();
      const known =
        this.#askedMs === -Infinity ? "the deployment's file" : `what was known ${this.ageMs} ms ago`;
      console.warn(`the catalog does not answer, so ${known} is in force: ${String(error)}`);
    } finally {
      if (this.#asking?.sinceMs === nowMs) this.#asking = undefined;
    }
  }

  #take(changes: CatalogChanges): void {
    const { policies, onTokens } = this.#parts;
    policies.apply(changes);
    if (changes.isWhole) this.#tokens.clear();
    if (changes.tokens.length === 0 && !changes.isWhole) return;
    for (const token of changes.tokens) this.#note(token);
    onTokens([...this.#tokens.values()]);
  }

  #note({ name, entry }: TokenChange): void {
    if (entry === undefined) this.#tokens.delete(name);
    else this.#tokens.set(name, { ...entry, name });
  }
}

/** @throws Error when there is no answer in time */
async function inTime<Answer>(answer: Promise<Answer>, time: Time): Promise<Answer> {
  let cancel = () => {};
  const late = new Promise<never>((_, reject) => {
    cancel = time.after(DEADLINE_MS, () => reject(new Error(`no answer within ${DEADLINE_MS} ms`)));
  });
  try {
    return await Promise.race([answer, late]);
  } finally {
    cancel();
  }
}

/* How an isolate sees, while a call of its own waits at an object, that another policy is in force for the key. */

/**
 * How often it looks, in milliseconds. What the catalog says is asked for every 5 s and seen at the next look, so an
 * object hears of a change within some 9 s.
 */
export const LOOK_MS = 2_000;

/** Looks at the catalog as long as somebody waits. */
export function followingBy(
  catalog: Pick<CatalogReader, "freshen">,
  policies: Pick<Policies, "get">,
  time: Time,
): Follow {
  return ({ name, inForce }, key, tell) => {
    let told = inForce;
    let isOver = false;
    let cancel = () => {};
    const look = async () => {
      await catalog.freshen();
      const named = policies.get(name);
      const now = named?.overrides?.find(key, time.nowMs()) ?? named;
      if (isOver) return;
      if (now !== undefined && later(told, now.inForce) !== told) {
        told = now.inForce;
        tell(now);
      }
      again();
    };
    const again = () => (cancel = time.after(LOOK_MS, () => void look()));
    again();
    return () => {
      isOver = true;
      cancel();
    };
  };
}
