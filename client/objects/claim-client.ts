/** The calls on holds and leases: leases from slots of this isolate where it has some, everything else from the object. */
import { type Policy, relaxedRule } from "../../core/policies/policy.ts";
import type { Answer, Decided, Lease, Missing, Released, Young } from "../../core/protocol/answers.ts";
import type {
  AcquireCall,
  AcquireParams,
  HoldParams,
  LeaseReport,
  Settling,
} from "../../core/protocol/calls.ts";
import { type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import { LINK_PROTOCOL, PROTOCOL, RESUMING_PROTOCOL } from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { type Answered, Problem } from "../../core/protocol/problems.ts";
import { SENT_BEFORE, sentNow } from "../../core/reservations/said-figures.ts";
import type { ClientContext } from "../call-gate.ts";
import type { IsolateSlots } from "../isolate-slots.ts";
import { asShadow, decisionOf, hasNoRules, notFound, toDecision, unavailable } from "../read-answer.ts";
import type { LimiterStub } from "../transports/objects.ts";
import { readAnswer } from "../transports/send-batch.ts";
import type { ObjectCalls } from "./object-calls.ts";

/** A lease that another isolate has granted is known to the object within a second: so often it is asked for it. */
const YOUNG_TRIES = 8;
const YOUNG_MS = 250;

/** How often a call that waits in this isolate looks whether it should rather ask the object. */
const LOOK_MS = 250;

function waitedLonger(answer: Answer, ms: number): Answer {
  return "rules" in answer ? { ...answer, waitedMs: ms + (answer.waitedMs ?? 0) } : answer;
}

const ENDING = { kind: "end", isRepeatable: true } as const;

export class ClaimClient {
  readonly #caller: ClientContext;
  readonly #objects: ObjectCalls;
  readonly #slots: IsolateSlots;
  readonly #makeId: (policy: Policy, key: string, holder: string, from?: string) => string;

  /** @param makeId makes the secret of a lease's id with the mark of a holder; `from`: a secret that nothing else uses */
  constructor(
    caller: ClientContext,
    objects: ObjectCalls,
    slots: IsolateSlots,
    makeId: (policy: Policy, key: string, holder: string, from?: string) => string,
  ) {
    this.#makeId = makeId;
    this.#caller = caller;
    this.#objects = objects;
    this.#slots = slots;
  }

  async hold(policy: Policy, key: string, call: HoldParams): Promise<Answer | Problem | undefined> {
    // Checks on several keys were sampled together. In shadow nothing is shed.
    const isSampled = call.provisional !== undefined || policy.shadow;
    const shed = isSampled ? call.shed : await this.#objects.sampleShedding(policy, key, call);
    if (shed !== undefined && call.idempotencyKey === undefined) return { shed };
    const message = this.#objects.message(policy, key, { ...call, shed });
    if (call.provisional === undefined)
      return await this.#objects.operate(policy, key, { op: "hold", ...message });
    // It may wait for others of its kind.
    const options = { waitMs: call.provisional.waitMs, isRepeatable: call.idempotencyKey !== undefined };
    return await this.#objects.ask(policy, key, (object) => object.hold(message), options);
  }

  settle(policy: Policy, key: string, settling: Settling): Answered<Decision> {
    return this.#endHold(policy, key, "settled", { op: "settle", ...settling });
  }

  cancel(policy: Policy, key: string, id: string): Answered<Decision> {
    return this.#endHold(policy, key, "cancelled", { op: "cancel", id });
  }

  async #endHold(
    policy: Policy,
    key: string,
    outcome: string,
    end: ({ readonly op: "settle" } & Settling) | { readonly op: "cancel"; readonly id: string },
  ): Answered<Decision> {
    const answer = await this.#objects.operate(policy, key, this.#objects.message(policy, key, end));
    const detail = `whether the hold was ${outcome} is not known: ask again, it takes effect only once`;
    return decisionOf(policy, key, answer ?? unavailable(detail), "hold");
  }

  /**
   * Leases units, waiting for up to `call.waitMs`; `signal` ends the wait, and then nothing is granted. Returns no promise
   * for a slot that is free in this isolate.
   */
  acquire(
    policy: Policy,
    key: string,
    call: AcquireParams,
    signal?: AbortSignal,
  ): Decision | Answered<Decision> {
    const makeId = (holder: string) => this.#makeId(policy, key, holder, call.id);
    const own = this.#slots.acquire(this.#caller, policy, key, { ...call, makeId });
    if (own !== undefined) return toDecision(policy, key, own, "isolate");
    return this.#acquireThere(policy, key, call, signal);
  }

  async #acquireThere(
    policy: Policy,
    key: string,
    call: AcquireParams,
    signal: AbortSignal | undefined,
  ): Answered<Decision> {
    const { denial, shed, isShadow } = await this.#objects.shed(policy, key, call);
    if (denial !== undefined) return denial;
    const answer = await this.#acquireWithFree(policy, key, { ...call, shed }, signal);
    if (answer instanceof Problem) return answer;
    if (answer !== undefined && "here" in answer) return toDecision(policy, key, answer.here, "isolate");
    const isAnswered = answer !== undefined && !hasNoRules(answer);
    const decision = isAnswered ? decisionOf(policy, key, answer) : degradedDecision(policy, key);
    return isShadow === true ? asShadow(decision) : decision;
  }

  /**
   * What the object has denied may be granted with this isolate's free slots: by it, or by the object once it has them.
   * A call that has waited waits no further.
   */
  async #acquireWithFree(policy: Policy, key: string, call: AcquireParams, signal?: AbortSignal) {
    const first = await this.#acquire(policy, key, call, signal);
    if (first === undefined || !("rules" in first)) return first;
    const [rule] = first.rules;
    if (rule === undefined || rule.success) return this.#withFree(policy, key, first);
    const makeId = (holder: string) => this.#makeId(policy, key, holder, call.id);
    const asked = { ...call, makeId };
    const second = await this.#slots.afterDenial(this.#caller, policy, key, asked, rule.remaining);
    if (typeof second !== "boolean") return { here: second };
    if (!second) return this.#withFree(policy, key, first);
    const last = await this.#acquire(policy, key, { ...call, waitMs: 0 }, signal);
    if (call.waitMs === 0 || last === undefined || !("rules" in last)) return last;
    return last.lease === undefined ? first : waitedLonger(last, first.waitedMs ?? 0);
  }

  /** Slots that are free in this isolate remain for its callers. */
  #withFree(policy: Policy, key: string, answer: Answer) {
    if (!("rules" in answer)) return answer;
    const remaining = (said: number) => this.#slots.remainingOf(policy, key, said);
    return {
      ...answer,
      rules: answer.rules.map((rule) => ({ ...rule, remaining: remaining(rule.remaining) })),
    };
  }

  /** A call that waits, also for a pool, ends with its caller. */
  async #acquire(policy: Policy, key: string, call: AcquireParams, signal?: AbortSignal) {
    if (call.waitMs > 0) return await this.#acquireInTurn(policy, key, call, signal);
    const message = this.#objects.message(policy, key, call);
    return await this.#heard(policy, key, call, () =>
      policy.pool === undefined
        ? this.#objects.operate(policy, key, { op: "lease", ...message })
        : this.#objects.wait<Answer>(policy, key, "acquire", call, signal),
    );
  }

  /** The answer to an acquire, of which this isolate's slots hear. */
  async #heard<Said extends object | undefined>(
    policy: Policy,
    key: string,
    call: AcquireParams,
    ask: () => Promise<Said>,
  ): Promise<Said> {
    const sent = sentFor(call);
    const answer = await ask();
    if (answer !== undefined && "rules" in answer)
      this.#slots.heard(this.#caller, policy, key, answer as Decided, sent);
    return answer;
  }

  /** Waits for a slot of this isolate, and at the object where those of others may be free before. */
  async #acquireInTurn(policy: Policy, key: string, call: AcquireParams, signal?: AbortSignal) {
    const there = (params: AcquireParams, until = signal) =>
      this.#heard(policy, key, call, () => this.#objects.wait<Answer>(policy, key, "acquire", params, until));
    const makeId = (holder: string) => this.#makeId(policy, key, holder);
    const turn = this.#slots.enter(this.#caller, policy, key, { ...call, makeId, signal });
    if (turn === undefined) return await there(call);
    const { latch } = turn;
    const { time } = this.#caller;
    let leftMs = call.waitMs;
    const isHere = () => leftMs > 0 && this.#slots.isOwn(this.#caller, policy, key, turn);
    while (!latch.isOpen && signal?.aborted !== true && isHere())
      leftMs -= await latch.wait(time, Math.min(leftMs, LOOK_MS));
    if (latch.isOpen) return turn.answer && { here: turn.answer };
    const stop = new AbortController();
    if (signal?.aborted === true) stop.abort();
    signal?.addEventListener("abort", () => stop.abort());
    const mark = this.#slots.markOf(policy, key);
    // The object says why, if the time is over.
    const inBoth = { ...call, waitMs: Math.max(1, leftMs), ...(mark !== undefined && { mark }) };
    const asked = there(inBoth, stop.signal);
    await Promise.race([asked, latch.wait(time, leftMs + policy.deadlineMs)]);
    this.#slots.leave(policy, key, turn);
    // Otherwise its timer goes on.
    latch.open();
    const { answer: here } = turn;
    if (here === undefined) {
      const answer = await asked;
      const isAnswer = answer !== undefined && !(answer instanceof Problem);
      return isAnswer ? waitedLonger(answer, call.waitMs - leftMs) : answer;
    }
    // The object may have granted a lease meanwhile.
    stop.abort();
    this.#caller.inBackground(asked.then(() => this.release(policy, key, call.id, { outcome: "ignore" })));
    return { here };
  }

  /** Ends the waits of this isolate's callers for its slots. */
  endWaits(policy: Policy, key: string): void {
    this.#slots.endWaits(this.#caller, policy, key);
  }

  /** Leases units until expiry, or the disposal of the handle in `attached`. `call.resume` takes over one. */
  async acquireAttached(
    policy: Policy,
    key: string,
    call: AcquireParams,
  ): Promise<{ readonly decision: Decision | Problem; readonly attached: Attached } | undefined> {
    const { denial, shed, isShadow } = await this.#objects.shed(policy, key, call);
    if (denial !== undefined) return { decision: denial, attached: NOTHING_ATTACHED };
    const problem = await this.#handed(policy, key, call);
    if (problem !== undefined) return { decision: problem, attached: NOTHING_ATTACHED };
    const isLinked = call.resume !== undefined || call.graceMs !== undefined;
    const protocol = isLinked ? LINK_PROTOCOL : PROTOCOL;
    const message = this.#objects.message(policy, key, { ...call, waitMs: 0, shed }, protocol);
    const answer = await this.#objects.askFor(policy, key, async (object) => {
      const sent = sentFor(call);
      const attached = await object.acquire(message);
      const said = readAnswer(attached.answer);
      // Its lease ends with its handle, and says nothing of the slots that are worth having.
      if ("rules" in said) this.#slots.heard(this.#caller, policy, key, { rules: said.rules }, sent);
      const decision = decisionOf(policy, key, said);
      return { decision: isShadow === true ? asShadow(decision) : decision, attached };
    });
    return answer instanceof Problem ? { decision: answer, attached: NOTHING_ATTACHED } : answer;
  }

  /** Extends a lease granted for `confirmWithinMs`. @param isAttached it ends with the returned handle too */
  async confirm(
    policy: Policy,
    key: string,
    id: string,
    ttlMs: number,
    isAttached: boolean,
  ): Promise<Attached | "ended" | undefined> {
    const confirm = async (object: LimiterStub) => {
      const attached = await object.confirm(policy.name, key, id, ttlMs, isAttached);
      return "missing" in readAnswer<Lease | Missing>(attached.answer) ? "ended" : attached;
    };
    // Disposing of a lost answer's handle ends the lease, so a second attempt would not find it.
    const options = isAttached ? ({ kind: "end" } as const) : ENDING;
    const answer = await this.#objects.askFor(policy, key, confirm, options);
    return answer instanceof Problem ? undefined : answer;
  }

  /** `confirm` of a lease that outlives its link for a grace, with its first ttl. */
  async takeOver(policy: Policy, key: string, call: AcquireParams): Promise<Attached | "ended" | undefined> {
    const granted = await this.acquireAttached(policy, key, call);
    if (granted === undefined) return undefined;
    const { decision, attached } = granted;
    if (!(decision instanceof Problem)) return attached;
    return decision.status === 404 ? "ended" : undefined;
  }

  /** The object knows a lease that is to be resumed, also if an isolate has just granted it by itself. */
  async #handed(policy: Policy, key: string, { resume }: AcquireParams): Promise<Problem | undefined> {
    if (resume === undefined || relaxedRule(policy) === undefined) return undefined;
    const renewed = await this.renew(policy, key, resume, undefined, true);
    return renewed instanceof Problem && renewed.status !== 404 ? renewed : undefined;
  }

  /**
   * Moves a lease's end to `ttlMs` from now; absent: the ttl of its acquire.
   * @param isHanded the object's answer is needed, also for a lease of this isolate's own
   */
  async renew(policy: Policy, key: string, id: string, ttlMs?: number, isHanded?: boolean): Answered<Lease> {
    const own = await this.#slots.renew(this.#caller, policy, key, id, ttlMs, isHanded);
    if (own !== undefined) return own;
    const renew = { op: "renew", id, ttlMs, ...this.#mayBeYoung(policy, key, id) } as const;
    const message = this.#objects.message(policy, key, renew);
    for (let tries = 0; ; tries += 1) {
      const answer = await this.#objects.operate<Lease | Missing | Young>(policy, key, message);
      const isYoung = answer !== undefined && "young" in answer;
      if (answer === undefined || (isYoung && tries === YOUNG_TRIES))
        return unavailable("whether the lease was renewed is not known: ask again");
      if (!isYoung) {
        if ("missing" in answer) return notFound("lease");
        if (!(answer instanceof Problem)) this.#slots.renewed(this.#caller, policy, key, answer);
        return answer;
      }
      await new Promise<void>((done) => void this.#caller.time.after(YOUNG_MS, done));
    }
  }

  #mayBeYoung(policy: Policy, key: string, id: string): { readonly mayBeYoung?: true } {
    return this.#slots.isOthers(policy, key, id) ? { mayBeYoung: true } : {};
  }

  /**
   * Ends a lease with its report. The first caller in the queue gets its units at once. Returns no promise for a lease of
   * this isolate's own.
   */
  release(
    policy: Policy,
    key: string,
    id: string,
    report: LeaseReport = {},
  ): undefined | Answered<undefined> {
    return this.endHere(policy, key, id) ? undefined : this.#releaseThere(policy, key, id, report);
  }

  /** Ends a lease of this isolate's own. `false`: the object is to end it. */
  endHere(policy: Policy, key: string, id: string): boolean {
    return this.#slots.release(this.#caller, policy, key, id);
  }

  async #releaseThere(policy: Policy, key: string, id: string, report: LeaseReport): Answered<undefined> {
    const message = this.#objects.message(policy, key, {
      op: "release",
      id,
      ...(learns(policy) && report),
      ...this.#mayBeYoung(policy, key, id),
    } as const);
    const answer = await this.#objects.operate<Released | Missing>(policy, key, message);
    if (answer === undefined) return unavailable("whether the lease was released is not known: ask again");
    if (answer instanceof Problem) return answer;
    return "released" in answer ? undefined : notFound("lease");
  }

  /** Opens a WebSocket to the object. The lease lasts while the socket is open. */
  async openSocket(policy: Policy, key: string, call: AcquireParams): Answered<Response> {
    // The object answers a shed call by a socket too.
    const isShed = call.resume === undefined && !policy.shadow;
    const shed = isShed ? await this.#objects.sampleShedding(policy, key, call) : undefined;
    const problem = await this.#handed(policy, key, call);
    if (problem !== undefined) return problem;
    const protocol = call.resume === undefined ? PROTOCOL : RESUMING_PROTOCOL;
    const message: AcquireCall = this.#objects.message(policy, key, { ...call, shed }, protocol);
    const url = `https://object/socket?call=${encodeURIComponent(JSON.stringify(message))}`;
    const answer = await this.#objects.askFor(policy, key, async (object) => {
      const response = await object.fetch(url, { headers: { upgrade: "websocket" } });
      if (response.status !== 101) throw new Error(`the object opened no socket: ${await response.text()}`);
      return response;
    });
    return answer ?? unavailable("no socket was opened: ask again");
  }
}

const NOTHING_ATTACHED: Attached = { answer: "" };

function sentFor({ idempotencyKey, resume }: AcquireParams): number {
  return idempotencyKey === undefined && resume === undefined ? sentNow() : SENT_BEFORE;
}

/** Whether a rule of the policy learns from reports. All others ignore them. */
function learns({ rules }: Policy): boolean {
  return rules.some(({ algorithm }) => algorithm.leasing?.released !== undefined);
}
