import { DurableObject } from "cloudflare:workers";
import { CallerHolds } from "./caller-holds.ts";
import { claimId } from "./claim-ids.ts";
import { inWords } from "./claims.ts";
import { readClockMs } from "./clock.ts";
import { costOf, decideTogether, withoutTaking } from "./decisions.ts";
import { policies } from "./deployment.ts";
import { outstandingOf, refund } from "./holds.ts";
import { KeyBook, QUIET_MS, accountsOf, type Entry } from "./key-book.ts";
import { LeaseSockets } from "./lease-sockets.ts";
import { Leases } from "./leases.ts";
import { Ledger } from "./ledger.ts";
import type {
  AcquireCall,
  AnswerText,
  Attached,
  Cost,
  Decided,
  HoldCall,
  IdleCall,
  Leased,
  LimiterMethods,
  Missing,
  Peeked,
} from "./protocol.ts";
import { leaseNotFound, renewalOf, Slot } from "./slot.ts";
import { Storage } from "./storage.ts";
import { FORGET_AFTER_MS, sweep } from "./sweep.ts";
import { isIdle, WaitingRoom, type Idler } from "./waiting.ts";

/** An alarm is moved forward only for this much or more: each move is a row written. */
const ALARM_SLACK_MS = 60_000;
/** No alarm is set further ahead; it looks again then. */
const MOST_ALARM_MS = 30 * 24 * 60 * 60 * 1_000;

/**
 * The object: load, decide, save, answer. It serves one or many keys of one policy. Nothing is awaited
 * between reading and writing, so there are no locks; and what an answer says has been written, or is covered
 * by what was, before it leaves (the output gate holds it back until the write is durable).
 */
export class LimiterObject extends DurableObject implements LimiterMethods {
  readonly #storage: Storage;
  readonly #book: KeyBook;
  readonly #ledger: Ledger;
  readonly #room: WaitingRoom;
  readonly #leases: Leases;
  readonly #holds: CallerHolds;
  readonly #sockets: LeaseSockets;
  #lastNowMs = 0;
  #alarmAtMs = Infinity;
  #hasQuietTimer = false;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    this.#storage = new Storage(ctx.storage);
    this.#book = new KeyBook(this.#storage);
    this.#ledger = new Ledger(this.#storage, this.#book, (wholeMs, nowMs) => {
      this.#alarmBy(wholeMs + FORGET_AFTER_MS, nowMs, ALARM_SLACK_MS);
      this.#watchQuiet();
    });
    this.#room = new WaitingRoom((entry) => {
      const nowMs = this.#nowMs();
      this.#book.advance(entry, nowMs);
      return nowMs;
    });
    this.#leases = new Leases(this.#ledger, this.#room);
    this.#holds = new CallerHolds(this.#ledger, this.#room);
    this.#sockets = new LeaseSockets(ctx, this.#leases, {
      open: (policy, key) => this.#open(policy, key),
      alarmBy: (dueMs, nowMs) => this.#alarmBy(dueMs, nowMs, 0),
    });
    if (!this.#storage.isEmpty) {
      void ctx.blockConcurrencyWhile(async () => {
        this.#alarmAtMs = (await ctx.storage.getAlarm()) ?? Infinity;
      });
    }
  }

  /** Decides on a cost and takes it if every rule admits it. */
  limit(policy: string, key: string, cost: Cost, idempotencyKey?: string): AnswerText {
    const [entry, nowMs] = this.#open(policy, key);
    const idempotent =
      idempotencyKey === undefined ? undefined : { idempotencyKey, request: `limit of ${inWords(cost)}` };
    const earlier = this.#ledger.earlier(entry, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const { accounts, rules } = decideTogether(entry.books, nowMs, cost);
    const answer = JSON.stringify({ rules } satisfies Decided);
    if (accounts === undefined || cost === 0) return answer;
    this.#ledger.commit(entry, { accounts, remember: idempotent ? [{ ...idempotent, answer }] : [] }, nowMs);
    return answer;
  }

  /** Gives units back, at most up to an untouched quota. */
  refund(policy: string, key: string, units: Cost, idempotencyKey: string): AnswerText {
    const [entry, nowMs] = this.#open(policy, key);
    const idempotent = { idempotencyKey, request: `refund of ${inWords(units)}` };
    const earlier = this.#ledger.earlier(entry, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const refunded = entry.books.map(({ rule, account }) => ({
      rule,
      account: refund(rule, account, nowMs, costOf(rule, units)),
    }));
    const answer = JSON.stringify({ rules: withoutTaking(refunded, nowMs, 0) } satisfies Decided);
    const accounts = refunded.map(({ account }) => account);
    this.#ledger.commit(entry, { accounts, remember: [{ ...idempotent, answer }] }, nowMs);
    this.#room.serve(entry);
    return answer;
  }

  /** Sets units apart; only a call that decides on several keys may wait, for others of its kind. */
  hold({ policy, key, ...call }: HoldCall): AnswerText | Promise<AnswerText> {
    const [entry, nowMs] = this.#open(policy, key);
    return this.#holds.hold(entry, call, nowMs);
  }

  /** Ends a hold with what was used. */
  settle(policy: string, key: string, id: string, used: Cost): AnswerText {
    const [entry, nowMs] = this.#open(policy, key);
    return this.#holds.settle(entry, id, used, nowMs);
  }

  /** Ends a hold of which nothing was used. */
  cancel(policy: string, key: string, id: string): AnswerText {
    const [entry, nowMs] = this.#open(policy, key);
    return this.#holds.cancel(entry, id, nowMs);
  }

  /** Leases units for as long as the caller keeps what comes back; without waiting, which `fetch` does. */
  async acquire({ policy, key, ...call }: AcquireCall): Promise<Attached> {
    const [entry, nowMs] = this.#open(policy, key);
    const answer = await this.#leases.acquire(entry, { ...call, waitMs: 0 }, nowMs);
    const { lease } = JSON.parse(answer) as Decided;
    return lease === undefined ? { answer } : this.#attached(policy, key, lease.id, answer);
  }

  /** Makes a lease last that was granted to a caller who might have gone. */
  confirm(policy: string, key: string, id: string, ttlMs: number, isAttached: boolean): Attached {
    const answer = this.renew(policy, key, id, ttlMs);
    const isThere = !("missing" in (JSON.parse(answer) as object));
    return isAttached && isThere ? this.#attached(policy, key, id, answer) : { answer };
  }

  renew(policy: string, key: string, id: string, ttlMs?: number): AnswerText {
    const [entry, nowMs] = this.#open(policy, key);
    return this.#leases.renew(entry, id, ttlMs, nowMs);
  }

  release(policy: string, key: string, id: string): boolean {
    const [entry, nowMs] = this.#open(policy, key);
    return this.#leases.release(entry, id, nowMs);
  }

  /** What a call of cost 1 would be answered, and who has and waits for units; nothing is taken. */
  peek(policy: string, key: string): Peeked {
    const [entry, nowMs] = this.#open(policy, key);
    const kinds = [...entry.claims.values()].map(({ kind }) => kind);
    const waiters = this.#room.waitersOf(entry);
    return {
      rules: this.#leases.look(entry, 1, nowMs),
      outstanding: Math.max(...accountsOf(entry).map(outstandingOf)),
      holds: kinds.filter((kind) => kind === "hold").length,
      leases: kinds.filter((kind) => kind === "lease").length,
      reclaimed: Math.max(
        0,
        ...entry.books.map(({ rule, account }) =>
          account.state === undefined ? 0 : (rule.algorithm.leasing?.reclaimed(account.state) ?? 0),
        ),
      ),
      queueLength: waiters.length,
      longestWaitMs: waiters[0] === undefined ? 0 : nowMs - waiters[0].sinceMs,
    };
  }

  /** Makes the key as new: its consumption, holds, leases and idempotency keys are forgotten. */
  reset(policy: string, key: string): void {
    const [entry, nowMs] = this.#open(policy, key);
    this.#ledger.reset(entry, nowMs);
    this.#room.serve(entry);
  }

  /**
   * Calls that wait, and sockets. They come as requests and not as RPC, since only a request has a signal that
   * says when the caller has gone (flag enable_request_signal; tried on workerd 1.20261023.1: within 2 ms).
   */
  override async fetch(request: Request): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === "/socket")
      return this.#sockets.accept(JSON.parse(searchParams.get("call") ?? "") as AcquireCall);
    if (pathname === "/idle")
      return Response.json(await this.#idle((await request.json()) as IdleCall, request.signal));
    return new Response(await this.#acquireFor((await request.json()) as AcquireCall, request.signal));
  }

  override webSocketClose(socket: WebSocket): void {
    this.#sockets.closed(socket);
  }

  override webSocketError(socket: WebSocket): void {
    this.#sockets.closed(socket);
  }

  /** Forgets keys that are whole again and answers that no longer stand; deletes everything when nothing is left. */
  override async alarm(): Promise<void> {
    const nowMs = this.#nowMs();
    this.#alarmAtMs = Infinity;
    this.#sockets.renew();
    const dueMs = sweep(this.#storage, this.#book, policies, nowMs);
    if (dueMs === undefined) await this.#storage.removeAll();
    else this.#alarmBy(dueMs, nowMs, ALARM_SLACK_MS);
  }

  /** Leases units for a caller who may have gone when they are granted: then they are taken back. */
  async #acquireFor({ policy, key, ...call }: AcquireCall, signal: AbortSignal): Promise<AnswerText> {
    if (signal.aborted) throw new Error("the caller has gone");
    const [entry, nowMs] = this.#open(policy, key);
    const answer = await this.#leases.acquire(entry, { ...call, signal }, nowMs);
    const { lease } = JSON.parse(answer) as Decided;
    // A repeated call has its lease from before: it is not this one's to take back.
    if (signal.aborted && lease !== undefined && call.idempotencyKey === undefined)
      this.release(policy, key, lease.id);
    return answer;
  }

  /** Answers when the key has no leases, or when the time is over. */
  async #idle({ policy, key, waitMs }: IdleCall, signal: AbortSignal): Promise<Peeked> {
    const [entry, nowMs] = this.#open(policy, key);
    if (!isIdle(entry) && waitMs > 0) {
      await new Promise<void>((resolve) => {
        const idler: Idler = { untilMs: nowMs + waitMs, resolve };
        signal.addEventListener("abort", () => {
          this.#room.leaveIdle(entry, idler);
          resolve();
        });
        this.#room.joinIdle(entry, idler);
      });
    }
    return this.peek(policy, key);
  }

  #attached(policy: string, key: string, id: string, answer: AnswerText): Attached {
    const release = () => this.release(policy, key, id);
    return {
      answer,
      slot: new Slot(release),
      release: () => {
        if (!release()) throw leaseNotFound();
      },
      renew: (call) => {
        const [entry, nowMs] = this.#open(policy, key);
        const ttlMs = renewalOf(entry.policy, call);
        const renewed = JSON.parse(this.#leases.renew(entry, id, ttlMs, nowMs)) as Leased | Missing;
        if ("missing" in renewed) throw leaseNotFound();
        return { ...renewed, id: claimId("lease", { policy, key }, id) };
      },
    };
  }

  #open(policy: string, key: string): [entry: Entry, nowMs: number] {
    const nowMs = this.#nowMs();
    const entry = this.#ledger.open(policy, key, nowMs);
    this.#watchQuiet();
    return [entry, nowMs];
  }

  /** Sees to it that an alarm comes by then, give or take `slackMs`. */
  #alarmBy(dueMs: number, nowMs: number, slackMs: number): void {
    const alarmAtMs = Math.min(dueMs, nowMs + MOST_ALARM_MS);
    if (this.#alarmAtMs <= alarmAtMs + slackMs) return;
    this.#alarmAtMs = alarmAtMs;
    void this.ctx.storage.setAlarm(alarmAtMs);
  }

  /** While memory is ahead of storage, a timer writes what has been quiet; it keeps no idle object in memory. */
  #watchQuiet(): void {
    if (this.#hasQuietTimer || !this.#book.isAhead) return;
    this.#hasQuietTimer = true;
    setTimeout(() => {
      this.#hasQuietTimer = false;
      this.#book.writeQuiet(this.#nowMs());
      this.#watchQuiet();
    }, QUIET_MS);
  }

  /** The clock of this object never runs backwards. */
  #nowMs(): number {
    this.#lastNowMs = Math.max(this.#lastNowMs, readClockMs());
    return this.#lastNowMs;
  }
}
