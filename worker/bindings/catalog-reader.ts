/**
 * An isolate's knowledge of the catalog, refreshed in the background. Only a call after a pause waits for it:
 * no decision uses knowledge older than 8 s.
 */
import type { Follow } from "../../client/call-gate.ts";
import type { CatalogChanges, CatalogMethods } from "../../core/catalog/calls.ts";
import type { PoliciesInForce } from "../../core/catalog/policies-in-force.ts";
import { inTime, Latch, type Time } from "../../core/clock.ts";
import { later, type Policies } from "../../core/policies/policy.ts";

/** Milliseconds after which the next call refreshes without waiting. Tests bind another value. */
export const ASK_AFTER_MS = 5_000;
/** The oldest knowledge that decides, in ms. A change applies within 10 s, less a deadline of 1 s. */
export const MAX_AGE_MS = 8_000;
/** The longest that a call waits for the catalog, in milliseconds. Then it uses the known one. */
const DEADLINE_MS = 1_000;

interface CatalogReaderParts {
  readonly policies: PoliciesInForce;
  readonly time: Time;
  /** A new stub for each message: a stub may not be used by another request. */
  readonly catalog: () => Pick<CatalogMethods, "changes">;
  readonly inBackground: (work: Promise<unknown>) => void;
  readonly onTokens: (entries: readonly object[]) => void;
  readonly askAfterMs?: number | undefined;
}

/** A message to the catalog. */
interface Asking {
  readonly answer: Latch;
  readonly sinceMs: number;
}

export class CatalogReader {
  /** When the message with the last answer was sent. */
  askedAtMs = -Infinity;
  readonly #parts: CatalogReaderParts;
  readonly #tokens = new Map<string, object>();
  /** The message under way, and when it was sent. */
  #asking: Asking | undefined;
  #failedMs: number | undefined;
  #sent = 0;
  #taken = 0;

  constructor(parts: CatalogReaderParts) {
    this.#parts = parts;
  }

  /** Refreshes old knowledge; a promise: the call must wait. Calls use old knowledge if the catalog fails. */
  freshen(): Promise<unknown> | undefined {
    const { time, askAfterMs = ASK_AFTER_MS } = this.#parts;
    const nowMs = time.nowMs();
    const ageMs = nowMs - this.askedAtMs;
    // After a clock was put back, the age is unknown.
    if (ageMs >= 0 && ageMs < askAfterMs) return undefined;
    const failedMs = this.#failedMs ?? -Infinity;
    if (nowMs >= failedMs && nowMs < failedMs + askAfterMs) return undefined;
    const { answer } = this.#underWay(nowMs) ?? this.#ask(nowMs);
    // No call waits for a catalog whose last message failed.
    if ((ageMs >= 0 && ageMs < MAX_AGE_MS) || this.#failedMs !== undefined) return undefined;
    return answer.wait(time, DEADLINE_MS);
  }

  /** Refreshes at once, so that the caller of a write sees its change. */
  ask(): Promise<void> {
    return this.#ask(this.#parts.time.nowMs()).read;
  }

  /** The message under way. The request that sent it may have ended, and then no answer comes. */
  #underWay(nowMs: number): Asking | undefined {
    const asking = this.#asking;
    const isAlive = asking !== undefined && nowMs >= asking.sinceMs && nowMs < asking.sinceMs + DEADLINE_MS;
    return isAlive ? asking : undefined;
  }

  #ask(nowMs: number): Asking & { readonly read: Promise<void> } {
    const read = this.#read(nowMs);
    this.#parts.inBackground(read);
    this.#asking = { answer: Latch.after(read), sinceMs: nowMs };
    return { ...this.#asking, read };
  }

  async #read(nowMs: number): Promise<void> {
    const { policies, catalog, time } = this.#parts;
    this.#sent += 1;
    const turn = this.#sent;
    try {
      const changes = await inTime(time, DEADLINE_MS, async () => await catalog().changes(policies.revision));
      // An answer overtaken by a later one brings nothing new, and could remove what was added since.
      if (turn < this.#taken) return;
      this.#taken = turn;
      this.askedAtMs = nowMs;
      this.#failedMs = undefined;
      this.#take(changes);
    } catch (error) {
      this.#failedMs = time.nowMs();
      const known =
        this.askedAtMs === -Infinity
          ? "the deployment's file"
          : `what was known ${time.nowMs() - this.askedAtMs} ms ago`;
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
    for (const { name, entry } of changes.tokens)
      if (entry === undefined) this.#tokens.delete(name);
      else this.#tokens.set(name, { ...entry, name });
    onTokens([...this.#tokens.values()]);
  }
}

/** Milliseconds between checks for a new policy during a wait, so the object learns it in some 9 s. */
export const CHECK_EVERY_MS = 2_000;

export function followingBy(
  catalog: Pick<CatalogReader, "freshen">,
  policies: Pick<Policies, "get">,
  time: Time,
  checkEveryMs = CHECK_EVERY_MS,
): Follow {
  return ({ name, inForce }, key, tell) => {
    let sentVersion = inForce;
    let isOver = false;
    let cancel = () => {};
    const check = async () => {
      await catalog.freshen();
      const named = policies.get(name);
      const now = named?.overrides?.find(key, time.nowMs()) ?? named;
      if (isOver) return;
      if (now !== undefined && later(sentVersion, now.inForce) !== sentVersion) {
        sentVersion = now.inForce;
        tell(now);
      }
      again();
    };
    const again = () => (cancel = time.after(checkEveryMs, () => void check()));
    again();
    return () => {
      isOver = true;
      cancel();
    };
  };
}
