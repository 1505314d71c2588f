/**
 * One random history of leases: isolates that have slots of a key, their callers, and the object. Messages are lost,
 * late or doubled; isolates die or stand still, the object loses its memory, and leases are released through other isolates.
 */
import { Ticks } from "../../bench/scale/ticks.ts";
import type { GrantedLease } from "../../client/limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { type LimiterNamespace, type LimiterStub, Objects } from "../../client/transports/objects.ts";
import { randomId, type Time } from "../../core/clock.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Lease, Slots } from "../../core/protocol/answers.ts";
import type { AcquireCall } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { MAX_REST_MS } from "../../core/protocol/messages.ts";
import { readClaimId } from "../../core/protocol/names.ts";
import type { KeyCall } from "../../core/protocol/object-methods.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { joinParts, KeyCalls } from "../../durable-objects/key-calls.ts";
import { Timers } from "../../durable-objects/keys/key-store.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import {
  OwnerRouting,
  WIRE_METHODS,
  type WireMethod,
  writeAnswer,
} from "../../durable-objects/wire-methods.ts";
import { seededRandom, whole } from "../support/random.ts";
import { Database, Died } from "./database.ts";
import { law } from "./laws.ts";
import { deploymentOf, isCalling, noOutcome, type SlotsOutcome, type SlotsPlan } from "./slots-plan.ts";
import { type Holder, inIsolate, inProcess, type MadeCall, type Trusted } from "./slots-process.ts";
import { SlotsTruth } from "./slots-truth.ts";

const KEY = "key";

export class SlotsHistory {
  readonly #plan: SlotsPlan;
  readonly #ticks = new Ticks();
  readonly #random: () => number;
  readonly #database = new Database();
  readonly #truth: SlotsTruth;
  readonly #policy: Policy;
  readonly #deployment: ReturnType<typeof deploymentOf>;
  readonly #isolates: LimiterClient[] = [];
  readonly #holders: Holder[] = [];
  #memory: ReturnType<SlotsHistory["start"]>;
  #life = 0;
  #failure: unknown;
  readonly #outcome = noOutcome();

  constructor(plan: SlotsPlan) {
    this.#plan = plan;
    this.#random = seededRandom(plan.seed);
    this.#truth = new SlotsTruth(plan, this.#ticks);
    this.#deployment = deploymentOf(plan);
    this.#policy = this.#deployment.regionalPolicies.get("slots") as Policy;
    this.#memory = this.start();
    for (let count = 0; count < plan.isolates; count += 1) this.#begin(count, false);
    for (let count = 0; count < plan.processes; count += 1) this.#begin(plan.isolates + count, true);
  }

  async run(): Promise<SlotsOutcome> {
    const { seconds, callsPerS, kills, restarts, freezes, cuts, resets, drops, ttlMs, standstills } =
      this.#plan;
    const endMs = seconds * 1_000;
    const plan = (count: number, fault: () => void) => {
      for (let made = 0; made < count; made += 1) this.#ticks.at(100 + whole(this.#random, endMs), fault);
    };
    plan(kills, () => this.#kill());
    plan(freezes, () => (this.#drawn.frozenUntilMs = this.#later(6_000)));
    plan(restarts, () => this.#die());
    plan(cuts, () => (this.#drawn.cutUntilMs = this.#later(20_000)));
    plan(standstills, () => this.#standStill());
    plan(resets, () => this.#reset());
    plan(drops, () => this.#drop());
    let nextAtMs = 1;
    // No call is under way any more.
    const overMs = endMs + 5_000;
    await this.#ticks.run(
      () => this.#ticks.nowMs >= overMs || this.#failure !== undefined,
      (nowMs) => {
        while (nextAtMs < Math.min(nowMs + 1, endMs)) {
          nextAtMs += (-Math.log(1 - this.#random()) * 1_000) / callsPerS;
          if (isCalling(this.#plan, nextAtMs)) this.#call();
        }
      },
    );
    if (this.#failure !== undefined) throw this.#failure;
    this.#database.writesLeft = Infinity;
    // No lease and no row of a holder lasts for longer.
    this.#ticks.nowMs += ttlMs + 40_000;
    this.#ticks.nowMs += MAX_REST_MS;
    const left = this.#outstanding();
    law(left === 0, () => `${left} slots were never freed`);
    this.#outcome.rows = this.#database.rowsWritten;
    return this.#outcome;
  }

  /** Everything that is only in the object's memory. */
  protected start() {
    const life = this.#life;
    const clock = this.#ticks.clock(1_000_000);
    // A memory that is lost does nothing more.
    const after: Time["after"] = (ms, work) =>
      clock.after(ms, () => {
        try {
          if (life === this.#life) work();
        } catch (error) {
          if (!(error instanceof Died)) throw error;
          this.#restart();
        }
      });
    const time = { nowMs: () => clock.nowMs(), after };
    const alarm = { getAlarm: () => Promise.resolve(null), setAlarm: () => Promise.resolve() };
    const joined = joinParts({
      storage: new Storage(this.#database.storage),
      timers: new Timers(alarm, () => time.nowMs()),
      policies: this.#deployment.policies,
      loadPooled: () => Promise.reject(new Error("there are no pools")),
      time,
    });
    const calls = new KeyCalls({ ...joined, sockets: { closeLost: () => undefined } });
    const here = (message: KeyCall, method: WireMethod) =>
      writeAnswer(method, this.#make(calls, message, life));
    return { routing: new OwnerRouting(here, { time }), calls, joined };
  }

  #make(calls: KeyCalls, message: KeyCall, life: number): unknown {
    // It has died with an earlier call of the same message.
    if (life !== this.#life) throw new Died("the machine has died");
    try {
      return this.#planted(calls, message);
    } catch (error) {
      // The machine dies in the middle of its writes.
      if (error instanceof Died) this.#restart();
      throw error;
    }
  }

  #planted(calls: KeyCalls, message: KeyCall): unknown {
    const { message: changed, answer = (same: Slots) => same, renewsBlindly } = this.#plan.faults ?? {};
    if (message.op === "renew" && renewsBlindly === true) {
      const made = calls.call(message) as Lease | object;
      return "id" in made ? made : { id: message.id, fencingToken: 1, expiresAfterMs: message.ttlMs ?? 1 };
    }
    if (message.op !== "slots") return calls.call(message);
    this.#outcome.messages += 1;
    // One that is for no memory is told the name, and changes nothing.
    const { slots } = calls.call({ ...message, memory: "", turn: 0 }) as Slots;
    const call = changed === undefined ? message : { ...changed(message, slots.memory), op: message.op };
    const said = calls.call(call) as Slots;
    const { restMs = 0 } = said.slots.given ?? {};
    this.#truth.restMs = Math.max(this.#truth.restMs, restMs);
    this.#outcome.rests += restMs > 0 ? 1 : 0;
    return answer(said, message);
  }

  #outstanding(): number {
    const { ask } = this.#memory.joined;
    const peeked = ask("slots", KEY, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
    return (peeked as { readonly outstanding: number }).outstanding;
  }

  /** @param place among the holders; one that was there has died */
  #begin(place: number, isProcess: boolean): void {
    const holder = {
      isProcess,
      aheadMs: 2_000_000 + whole(this.#random, 100_000),
      stoppedUntilMs: 0,
      isDead: false,
      frozenUntilMs: 0,
      cutUntilMs: 0,
    } as { -readonly [Field in keyof Holder]: Holder[Field] };
    const time: Time = {
      isLasting: isProcess,
      nowMs: () => Math.max(this.#ticks.nowMs, holder.stoppedUntilMs) + holder.aheadMs,
      after: (ms, work) => {
        let left: (() => void) | undefined = work;
        this.#ticks.at(this.#ticks.nowMs + ms, () => this.#timed(holder, () => left?.()));
        return () => {
          left = undefined;
        };
      },
    };
    this.#holders[place] = holder;
    if (isProcess) {
      const send = (make: () => Promise<unknown>) => this.#send(holder, make);
      const worker = () => this.#isolates[whole(this.#random, this.#isolates.length)] as LimiterClient;
      holder.leasing = inProcess(worker, this.#plan, this.#policy, KEY, { send, time, random: this.#random });
      return;
    }
    const inBackground = () => undefined;
    const objects = new Objects(this.#namespace(holder), time, { queues: new BatchQueues(), inBackground });
    const policies = this.#deployment.regionalPolicies;
    const client = new LimiterClient({ objects, policies, time, inBackground });
    this.#isolates[place] = client;
    holder.leasing = inIsolate(client, this.#policy, KEY);
  }

  #timed(holder: Holder, work: () => void): void {
    const isStopped = this.#plan.faults?.stopsTimers === true && this.#ticks.nowMs < holder.stoppedUntilMs;
    if (!isStopped) return this.#awake(holder, work);
    this.#ticks.at(holder.stoppedUntilMs, () => this.#timed(holder, work));
  }

  /** Runs work of an isolate: later if it stands still, and never after its death. */
  #awake(isolate: Holder, work: () => void): void {
    if (isolate.isDead) return;
    if (this.#ticks.nowMs >= isolate.frozenUntilMs) return work();
    this.#ticks.at(isolate.frozenUntilMs, () => this.#awake(isolate, work));
  }

  #wayMs(): number {
    const { oneWayMs, late } = this.#plan;
    return oneWayMs * (0.5 + this.#random()) + (this.#random() < late ? 3_000 * this.#random() : 0);
  }

  /** Makes a call of a holder: lost, late or twice. */
  #send(by: Holder, make: () => Promise<unknown>): Promise<unknown> {
    const { lost } = this.#plan;
    const isLost = () => this.#random() < lost || this.#ticks.nowMs < by.cutUntilMs;
    return new Promise((resolve, reject) => {
      if (isLost()) return;
      const arrive = () => {
        const life = this.#life;
        const back = (end: () => void) => {
          if (life === this.#life && !isLost())
            this.#ticks.at(this.#ticks.nowMs + this.#wayMs(), () => this.#awake(by, end));
        };
        make().then(
          (answer) => back(() => resolve(answer)),
          (error: unknown) => back(() => reject(error)),
        );
      };
      this.#ticks.at(this.#ticks.nowMs + this.#wayMs(), arrive);
      if (this.#random() < lost / 2) this.#ticks.at(this.#ticks.nowMs + 2 * this.#wayMs(), arrive);
    });
  }

  #namespace(isolate: Holder): LimiterNamespace {
    const send = (make: () => Promise<unknown>) => this.#send(isolate, make);
    const methods = WIRE_METHODS.map((method) => [
      method,
      (...args: readonly unknown[]) => send(async () => await this.#memory.routing.call(method, args)),
    ]);
    const fetch = async (url: string, { body, signal }: RequestInit) => {
      const call = JSON.parse(body as string) as AcquireCall;
      const text = await send(async () => {
        // Each of two arrivals of a message has a memory of its own to leave.
        const left = new AbortController();
        const life = this.#life;
        const leave = () => life === this.#life && left.abort();
        const leaveLater = () => this.#ticks.at(this.#ticks.nowMs + this.#wayMs(), leave);
        if (signal?.aborted === true) leaveLater();
        else signal?.addEventListener("abort", leaveLater);
        return JSON.stringify(await this.#memory.calls.request(new URL(url).pathname, call, left.signal));
      });
      return new Response(text as string);
    };
    const stub = { ...Object.fromEntries(methods), fetch } as LimiterStub;
    return { getByName: () => stub };
  }

  #call(): void {
    const { heldMs, waitMs, limit } = this.#plan;
    // Some are longer than an isolate may grant.
    const ttlMs = this.#random() < 0.1 ? 20_000 : this.#plan.ttlMs;
    const cost = this.#random() < 0.2 ? Math.min(limit, 1 + whole(this.#random, 4)) : 1;
    const gone = new AbortController();
    if (this.#random() < 0.05)
      this.#ticks.at(this.#ticks.nowMs + whole(this.#random, 1 + waitMs), () => gone.abort());
    const isolate = this.#plan.isServing === true ? (this.#holders.at(-1) as Holder) : this.#drawn;
    const sentAtMs = this.#ticks.nowMs;
    const before = this.#truth.latestToken;
    const longMs = this.#random() < 0.5 ? 0.1 : 1.9;
    const heldForMs = -Math.log(1 - this.#random()) * heldMs * longMs;
    this.#awake(isolate, () => {
      const id = randomId();
      const waiting = { by: isolate, sinceMs: this.#ticks.nowMs };
      if (waitMs > 0) this.#truth.waiting.add(waiting);
      void isolate.leasing
        .acquire({ id, cost, ttlMs, waitMs }, gone.signal)
        .then((decision) =>
          this.#guarded(() =>
            this.#answered(
              isolate,
              { id, sentAtMs, before, heldForMs, ttlMs, cost, gone: gone.signal },
              decision,
            ),
          ),
        )
        .finally(() => this.#truth.waiting.delete(waiting));
    });
  }

  #guarded(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.#failure ??= error;
    }
  }

  #answered(isolate: Holder, call: MadeCall, decision: Decision | Problem): void {
    const { id, sentAtMs, before, heldForMs, ttlMs, cost, gone } = call;
    const { lease = { id: "", fencingToken: 0 } } = decision as Partial<Decision>;
    const { secret = id } = readClaimId("lease", lease.id) ?? {};
    const isUnknown = decision instanceof Problem || decision.reason === "degraded";
    if (isUnknown || gone.aborted) {
      this.#outcome.degraded += gone.aborted ? 0 : 1;
      // As the worker does: the lease may have been granted.
      void isolate.leasing.release(secret);
      return;
    }
    if (!decision.success || decision.lease === undefined) {
      this.#outcome.denied += 1;
      return;
    }
    this.#outcome.granted += 1;
    const isOwn = decision.source === "isolate";
    if (isOwn) this.#truth.checkOrder(isolate, sentAtMs);
    this.#outcome.own += isOwn ? 1 : 0;
    this.#truth.checkToken(lease.fencingToken, isOwn ? 0 : before);
    const { signal } = lease as GrantedLease;
    const isInProcess = signal !== undefined;
    this.#outcome.inProcesses += isInProcess ? 1 : 0;
    const trusted = { by: isolate, units: cost, sentAtMs, untilMs: sentAtMs + ttlMs, isInProcess };
    const isTold = this.#plan.faults?.isSilent !== true;
    // It was lost before its caller has it.
    if (isTold && signal?.aborted === true) return;
    this.#truth.trust(trusted);
    if (isOwn && isInProcess === isolate.isProcess) this.#truth.checkFigures(decision);
    if (isTold)
      signal?.addEventListener("abort", () => {
        this.#outcome.lost += this.#truth.trusted.delete(trusted) ? 1 : 0;
      });
    this.#use(isolate, secret, trusted, heldForMs, ttlMs);
  }

  #use(isolate: Holder, id: string, trusted: Trusted, heldForMs: number, ttlMs: number): void {
    const { elsewhere, abandoned } = this.#plan;
    const endsAtMs = this.#ticks.nowMs + heldForMs;
    const via = () => (isolate.isDead || this.#random() < elsewhere ? this.#drawn : isolate);
    const renewLater = () => {
      const atMs = this.#ticks.nowMs + ttlMs / 2;
      if (atMs >= endsAtMs) return;
      this.#ticks.at(atMs, () => {
        if (!this.#truth.trusted.has(trusted)) return;
        const askedMs = this.#ticks.nowMs;
        const through = via();
        this.#awake(through, () => {
          void through.leasing.renew(id, ttlMs).then((lease) =>
            this.#guarded(() => {
              if (lease instanceof Problem) return this.#truth.checkHanded(trusted);
              this.#outcome.renewed += 1;
              trusted.untilMs = Math.max(trusted.untilMs, askedMs + ttlMs);
              if (this.#truth.trusted.has(trusted)) this.#truth.trust(trusted);
              renewLater();
            }),
          );
        });
      });
    };
    renewLater();
    const releaseBy = (holder: Holder) => this.#awake(holder, () => void holder.leasing.release(id));
    this.#ticks.at(endsAtMs, () => {
      this.#truth.trusted.delete(trusted);
      if (this.#random() < abandoned) return;
      releaseBy(via());
      if (this.#random() >= 0.05) return;
      const again = this.#drawn;
      this.#ticks.at(endsAtMs + 2_000 * this.#random(), () => releaseBy(again));
    });
  }

  get #drawn(): Holder {
    return this.#holders[whole(this.#random, this.#holders.length)] as Holder;
  }

  #kill(): void {
    const holder = this.#drawn;
    holder.isDead = true;
    // Callers of a process die with it.
    for (const trusted of this.#truth.trusted)
      if (holder.isProcess && trusted.by === holder) this.#truth.trusted.delete(trusted);
    this.#begin(this.#holders.indexOf(holder), holder.isProcess);
  }

  #standStill(): void {
    const holder = this.#drawn;
    if (!holder.isProcess || this.#ticks.nowMs < holder.stoppedUntilMs) return;
    const stopMs = whole(this.#random, 6_000);
    // From then on it is behind by as much.
    holder.aheadMs -= stopMs;
    holder.stoppedUntilMs = this.#ticks.nowMs + stopMs;
  }

  #later(mostMs: number): number {
    return this.#ticks.nowMs + whole(this.#random, mostMs);
  }

  #reset(): void {
    const { ask } = this.#memory.joined;
    try {
      void ask("slots", KEY, (operations, keyState, nowMs) => operations.reset(keyState, nowMs));
    } catch (error) {
      if (!(error instanceof Died)) throw error;
      return this.#restart();
    }
    this.#truth.resetAtMs = this.#ticks.nowMs;
    this.#truth.trusted.clear();
  }

  #drop(): void {
    const { cache } = this.#memory.joined;
    for (const keyState of cache.states) if (!keyState.isPinned) cache.drop(keyState);
  }

  /** At once, or in the middle of some later write. */
  #die(): void {
    if (this.#random() < 0.5) this.#restart();
    else this.#database.writesLeft = whole(this.#random, 6);
  }

  #restart(): void {
    this.#database.writesLeft = Infinity;
    this.#life += 1;
    this.#memory = this.start();
  }
}
