/**
 * An isolate's knowledge of the catalog, refreshed in the background. Only a call after a pause waits for it: while the
 * catalog answers, no decision uses knowledge older than 8 s. If it does not, the last known catalog counts, however old.
 */
import type { Follow } from "../../client/call-gate.ts";
import { FailureLog } from "../../client/transports/send-batch.ts";
import {
  ANY_SNAPSHOT,
  type CatalogChanges,
  type CatalogMethods,
  type WantedPage,
} from "../../core/catalog/calls.ts";
import type { PoliciesInForce } from "../../core/catalog/policies-in-force.ts";
import { inTime, jitterAt, Latch, orTimeout, type Time } from "../../core/clock.ts";
import { later, type Policies } from "../../core/policies/policy.ts";
import type { Counter } from "../../core/stats/tally.ts";
import type { SnapshotNamespace } from "./env.ts";

/**
 * Milliseconds after which the next call refreshes without waiting, give or take an eighth: isolates that began together
 * do not go on together. A deployment may bind another value.
 */
export const ASK_AFTER_MS = 5_000;
/** The oldest knowledge that decides, in ms. A change applies within 10 s, less a deadline of 1 s. */
export const MAX_AGE_MS = 8_000;
/** The longest that calls wait for a message, in milliseconds. Then they use what is known. */
const DEADLINE_MS = 1_000;
/** After this time without an answer another message may be sent. */
export const LOST_AFTER_MS = 5_000;
/** A late answer counts for so long. */
const KEPT_MS = 10_000;
/**
 * After a failure an isolate asks again as soon as it would ask after an answer, so a change applies within 10 s however the
 * catalog was before. One that knows only the file asks sooner, at first after this part of the time, then after twice that.
 */
const COLD_PART = 1 / 5;
const MAX_COLD_PAUSES = 5;
/** Times between messages differ by so much, as a part of them: isolates that failed together do not come again together. */
const JITTER = 0.25;
/** The longest that Workers KV is waited for, in milliseconds: then the object is asked for the pages. */
const ENTRY_DEADLINE_MS = 1_000;
/** An entry of Workers KV is never written again, so a location may keep it as long as it is in use. */
const ENTRY_SECONDS = 86_400;

interface CatalogReaderParts {
  readonly policies: PoliciesInForce;
  readonly time: Time;
  /** A new stub for each message: a stub may not be used by another request. */
  readonly catalog: () => Pick<CatalogMethods, "changes">;
  /** Workers KV with snapshots. Absent: the object is asked for all pages. */
  readonly snapshots?: SnapshotNamespace | undefined;
  readonly inBackground: (work: Promise<unknown>) => void;
  readonly onTokens: (entries: readonly object[]) => void;
  readonly counter?: Pick<Counter, "add" | "lasted"> | undefined;
  readonly askAfterMs?: number | undefined;
}

interface Message {
  readonly turn: number;
  readonly sentAtMs: number;
  /** When it was sent, or the latest of its pages was asked for. */
  pageAtMs: number;
  /** Opens when the message is answered or has failed. */
  readonly ended: Latch;
}

export class CatalogReader {
  /** When the message with the last answer was sent. `-Infinity`: only the file is known. */
  askedAtMs = -Infinity;
  /** Until then no call refreshes. */
  freshUntilMs = -Infinity;
  readonly #parts: CatalogReaderParts;
  readonly #askAfterMs: number;
  readonly #log: FailureLog;
  readonly #tokens = new Map<string, object>();
  /** The latest message, unless it has ended. */
  #underWay: Message | undefined;
  /** Since the last answer. */
  #failures = 0;
  #failedAtMs = -Infinity;
  #pauseMs = 0;
  #sent = 0;
  #taken = 0;

  constructor(parts: CatalogReaderParts) {
    this.#parts = parts;
    this.#askAfterMs = parts.askAfterMs ?? ASK_AFTER_MS;
    this.#log = new FailureLog(parts.time, ({ cause, calls, seconds }) => {
      const often = seconds === undefined ? "" : ` (${calls} messages in ${seconds} s)`;
      console.warn(`the catalog does not answer${often}, so ${this.#known} is in force: ${cause}`);
    });
  }

  /**
   * Refreshes old knowledge; a promise: the call must wait. Calls use old knowledge if the catalog fails.
   * @param caller `stranger`: its token is not known, so only the catalog has an answer for it; `holder`: it keeps stubs
   * of this request, which is not prolonged for a late answer
   */
  freshen(caller?: "stranger" | "holder"): Promise<unknown> | undefined {
    const { time } = this.#parts;
    const nowMs = time.nowMs();
    // After a clock was put back, the age is unknown.
    if (nowMs >= this.askedAtMs && nowMs < this.freshUntilMs) return undefined;
    const message =
      this.#messageUnderWay(nowMs) ?? (this.#mayAsk(nowMs) ? this.#ask(nowMs, caller) : undefined);
    if (message === undefined) return undefined;
    const ageMs = nowMs - this.askedAtMs;
    if ((ageMs >= 0 && ageMs < MAX_AGE_MS) || nowMs < message.sentAtMs) return undefined;
    // No call that can be decided waits for a catalog whose last message failed.
    if (this.#failures > 0 && !(caller === "stranger" && ageMs === Infinity)) return undefined;
    const leftMs = Math.min(DEADLINE_MS, message.sentAtMs + DEADLINE_MS - nowMs);
    return leftMs > 0 ? message.ended.wait(time, leftMs) : undefined;
  }

  /** Refreshes at once, so that the caller of a write sees its change. */
  async ask(): Promise<void> {
    const { time } = this.#parts;
    await this.#ask(time.nowMs()).ended.wait(time, DEADLINE_MS);
  }

  #messageUnderWay(nowMs: number): Message | undefined {
    const message = this.#underWay;
    // The request that sent it may have ended, and then nothing tells that it is lost.
    if (message !== undefined && Math.abs(nowMs - message.pageAtMs) >= LOST_AFTER_MS)
      this.#fail(message, `no answer within ${LOST_AFTER_MS} ms`, false);
    return this.#underWay;
  }

  #mayAsk(nowMs: number): boolean {
    return nowMs < this.#failedAtMs || nowMs >= this.#failedAtMs + this.#pauseMs;
  }

  #ask(nowMs: number, caller?: "stranger" | "holder"): Message {
    const { time, inBackground } = this.#parts;
    this.#sent += 1;
    const message = { turn: this.#sent, sentAtMs: nowMs, pageAtMs: nowMs, ended: new Latch() };
    this.#underWay = message;
    const read = this.#read(message);
    const kept =
      caller === "holder"
        ? orTimeout(read, time, DEADLINE_MS)
        : orTimeout(read, time, KEPT_MS).then(() => this.#readsOn(message, read));
    inBackground(kept.then(() => this.#messageUnderWay(time.nowMs())));
    return message;
  }

  /** Keeps the request as long again while pages come: far from the object a large catalog takes more than 10 s. */
  async #readsOn(message: Message, read: Promise<void>): Promise<void> {
    const { time } = this.#parts;
    const isRead = this.#underWay === message && time.nowMs() < message.pageAtMs + LOST_AFTER_MS;
    if (isRead) await orTimeout(read, time, KEPT_MS);
  }

  async #read(message: Message): Promise<void> {
    try {
      const read = await this.#readChanges(message);
      // An answer overtaken by a later one brings nothing new, and could remove what was added since.
      if (message.turn > this.#taken) this.#take(message, read);
      this.#end(message);
    } catch (error) {
      this.#fail(message, String(error));
    }
  }

  /** What is new, in the order to apply it, when all of it is there: changes, or a snapshot and the changes after it. */
  async #readChanges(message: Message): Promise<readonly CatalogChanges[]> {
    const { policies, catalog, time } = this.#parts;
    const since = policies.revision;
    const ask = (wanted: WantedPage) => {
      message.pageAtMs = time.nowMs();
      return catalog().changes(since, wanted);
    };
    let changes = await ask(ANY_SNAPSHOT);
    const pages: string[] = [];
    for (let { snapshot } = changes; snapshot !== undefined; { snapshot } = changes) {
      const { id } = snapshot;
      if (!("text" in snapshot)) {
        const everything = await this.#readEntry(id);
        if (everything !== undefined) return [everything, changes];
        changes = await ask({ id, page: 0 });
        continue;
      }
      // The first page of another snapshot may come instead of the next one.
      pages.splice(snapshot.page, Infinity, snapshot.text);
      if (pages.length === snapshot.pages) return [JSON.parse(pages.join("")) as CatalogChanges, changes];
      changes = await ask({ id, page: pages.length });
    }
    return [changes];
  }

  /** `undefined`: it is not there, or not in time. */
  async #readEntry(id: string): Promise<CatalogChanges | undefined> {
    const { snapshots, time } = this.#parts;
    if (snapshots === undefined) return undefined;
    try {
      const read = () => snapshots.get(id, { cacheTtl: ENTRY_SECONDS });
      const text = await inTime(time, ENTRY_DEADLINE_MS, read);
      return text === null ? undefined : (JSON.parse(text) as CatalogChanges);
    } catch (error) {
      console.warn(
        `Workers KV has no answer, so the catalog's object is asked for all of it: ${String(error)}`,
      );
      return undefined;
    }
  }

  /** Ends a message. Returns whether it was still under way. */
  #end(message: Message): boolean {
    message.ended.open();
    const isLatest = this.#underWay === message;
    if (isLatest) this.#underWay = undefined;
    return isLatest;
  }

  #fail(message: Message, cause: string, isPaused = true): void {
    if (!this.#end(message)) return;
    const { time, counter } = this.#parts;
    const nowMs = time.nowMs();
    const isCold = this.askedAtMs === -Infinity;
    const part = isCold ? COLD_PART * Math.min(2 ** this.#failures, MAX_COLD_PAUSES) : 1;
    this.#failures += 1;
    this.#failedAtMs = nowMs;
    this.#pauseMs = isPaused ? part * this.#askAfterMs * (1 - JITTER * jitterAt(nowMs)) : 0;
    counter?.add("catalog_failures", [isCold ? "file" : "catalog"]);
    if (!isCold) counter?.lasted("catalog_age_seconds", [], nowMs - this.askedAtMs);
    this.#log.note(cause);
  }

  get #known(): string {
    if (this.askedAtMs === -Infinity) return "the deployment's file";
    return `what was known ${this.#parts.time.nowMs() - this.askedAtMs} ms ago`;
  }

  #take({ turn, pageAtMs }: Message, read: readonly CatalogChanges[]): void {
    const { policies, onTokens } = this.#parts;
    this.#taken = turn;
    for (const changes of read) {
      if (changes.isWhole) this.#tokens.clear();
      for (const { name, entry } of changes.tokens)
        if (entry === undefined) this.#tokens.delete(name);
        else this.#tokens.set(name, { ...entry, name });
      policies.apply(changes);
    }
    if (read.some(({ isWhole, tokens }) => isWhole || tokens.length > 0))
      onTokens([...this.#tokens.values()]);
    this.askedAtMs = pageAtMs;
    this.freshUntilMs = pageAtMs + this.#askAfterMs * (1 + JITTER * (jitterAt(pageAtMs) - 0.5));
    if (this.#failures > 0) this.#log.flush();
    this.#failures = 0;
    this.#pauseMs = 0;
  }
}

/** Milliseconds between checks for a new policy during a wait, so the object learns it in some 9 s. */
export const CHECK_EVERY_MS = 2_000;

export function followingBy(
  catalog: Pick<CatalogReader, "freshen">,
  policies: Pick<Policies, "get">,
  time: Time,
  backgroundMs = CHECK_EVERY_MS,
): Follow {
  const checkEveryMs = Math.min(backgroundMs, CHECK_EVERY_MS);
  return ({ name, inForce }, key, tell) => {
    let sentVersion = inForce;
    let isOver = false;
    let cancel = () => {};
    const check = async () => {
      // The caller may leave with a lease meanwhile.
      await catalog.freshen("holder");
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
