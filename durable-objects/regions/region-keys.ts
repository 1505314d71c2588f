/**
 * A key's object in a region. Where a key has many holders, those in a region ask an object there instead of the key's home
 * object. It is a holder of the home object as they are holders of it: it has a bucket of its own, cut from the home
 * object's (operations/own-buckets.ts), and cuts theirs from that. Whatever either level loses, no unit is spent twice:
 *
 * - What it hands out ends before its own bucket does, and that ends before the home object counts it as ended.
 * - Its messages say how much it has handed out, so a smaller bucket counts only when all of that fits into it.
 * - It stores nothing. After it has lost its memory it is another holder, and its holders are unknown to it.
 *
 * It decides calls that take units and need nothing else. Others go to the home object, also those that cost more than its
 * bucket can have.
 */
import type { RuleAccount } from "../../core/accounts/hold.ts";
import { HolderClock, inTime, randomId, type Time } from "../../core/clock.ts";
import { canHaveRegions, type Policy, type PolicyLookup } from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import { type Answer, ASK_HOME } from "../../core/protocol/answers.ts";
import type { LimitCall, ReserveCall } from "../../core/protocol/calls.ts";
import { Departures, type Failed, type PacedReply, unpaced } from "../../core/protocol/messages.ts";
import type { KeyCall, MaybePromise, ObjectStub } from "../../core/protocol/object-methods.ts";
import type { UnansweredMessage } from "../../core/reservations/holder.ts";
import { MAX_MARGIN_MS } from "../../core/reservations/sizing.ts";
import { readPolicy } from "../keys/versions.ts";
import { type DecidedCall, RegionKey } from "./region-key.ts";

/** The most keys of one object. Holders of further ones ask their home objects. */
const MAX_KEYS = 1_000;
/** A message to the home object that is not answered comes again after so long. */
const AGAIN_MS = 500;

interface RegionHost {
  readonly policies: PolicyLookup;
  readonly time: Time;
  /** The key's home object. A new stub for each message. */
  readonly home: (policy: Policy, key: string) => Pick<ObjectStub, "reserve">;
}

/** The keys of one object for which it is the object of a region. */
export class RegionKeys {
  readonly #host: RegionHost;
  readonly #keys = new Map<string, RegionKey>();
  readonly #clock = new HolderClock(MAX_MARGIN_MS);
  readonly #departures = new Departures(randomId);

  constructor(host: RegionHost) {
    this.#host = host;
  }

  /** Makes a call whose `region` is present. */
  call(message: KeyCall): MaybePromise<Answer | Failed | undefined> {
    const nowMs = this.#now();
    if (message.op === "giveBack") {
      for (const returned of message.returned)
        this.#keys.get(nameOf({ policy: message.policy, key: returned.key }))?.giveBack(returned, nowMs);
      return undefined;
    }
    if (message.op !== "reserve" && message.op !== "limit") return ASK_HOME;
    const policy = this.#policyOf(message);
    const key = policy && this.#open(policy, message, nowMs);
    if (policy === undefined || key === undefined) return ASK_HOME;
    const refusal = key.refusal(message, nowMs);
    if (refusal !== undefined) return refusal;
    key.hear(message, policy, nowMs);
    if (key.needsMessage(nowMs)) this.#send(key, nowMs);
    const isShort = key.hasBucket(nowMs) && key.lacksUnits(message.cost, nowMs);
    if (isShort && key.messageAt(nowMs) === undefined) this.#send(key, nowMs);
    if (!key.isReady(nowMs) || isShort) return this.#decideLater(key, message);
    const waitMs = key.turnAfterMs(message, nowMs);
    return waitMs === 0 ? key.decide(message, nowMs) : this.#decideInTurn(key, message, waitMs);
  }

  async #decideInTurn(key: RegionKey, message: DecidedCall, waitMs: number): Promise<Answer | Failed> {
    await new Promise<void>((done) => this.#host.time.after(waitMs, done));
    const nowMs = this.#now();
    // Meanwhile its bucket may have ended, or another one come in its place.
    const isReady = this.#keys.get(nameOf(message)) === key && key.isReady(nowMs);
    return await (isReady ? key.decide(message, nowMs) : this.#decideLater(key, message));
  }

  /**
   * When the home object does not answer, the call fails: the key's holders would wait there as well. Where it answers after
   * the call's caller has left, nothing is charged.
   */
  async #decideLater(key: RegionKey, message: DecidedCall): Promise<Answer | Failed> {
    const untilMs = this.#now() + (message.leftMs ?? Infinity);
    for (let waits = 0; waits < 2; waits += 1) {
      await key.sent;
      const nowMs = this.#now();
      if (this.#keys.get(nameOf(message)) !== key) return ASK_HOME;
      const refusal = key.refusal(message, nowMs);
      if (refusal !== undefined) return refusal;
      if (key.isReady(nowMs)) {
        const isLate = nowMs >= untilMs && message.cost !== 0;
        return isLate ? { failed: "the caller has stopped waiting" } : await key.decide(message, nowMs);
      }
      if (key.needsMessage(nowMs)) this.#send(key, nowMs);
    }
    return { failed: "the key's home object has not answered the object of this region" };
  }

  /** What each key has and has not handed out: for tests and simulations. */
  accountsOf(policy: string, key: string): readonly RuleAccount[] {
    const nowMs = this.#now();
    const found = this.#keys.get(nameOf({ policy, key }));
    return found?.hasBucket(nowMs) === true ? found.accountsAt(nowMs) : [];
  }

  /** After the clock was set back, buckets would last longer than the home object counts. */
  #now(): number {
    if (this.#clock.read(this.#host.time.nowMs())) this.#keys.clear();
    return this.#clock.latestMs;
  }

  /** The policy as a call names it; `undefined`: its key has no object in regions. */
  #policyOf({ policy: name, terms, inForce }: LimitCall | ReserveCall): Policy | undefined {
    const fields = inForce?.fields;
    const found =
      (fields === undefined ? undefined : readPolicy(name, fields, this.#host.policies)) ??
      this.#host.policies.get(name);
    const policy = found && planOf(found, inForce?.plan);
    // During a rollout the home object decides by both versions.
    if (policy === undefined || (fields === undefined && terms !== undefined && terms !== policy.terms))
      return undefined;
    return policy.rules.every(canHaveRegions) ? policy : undefined;
  }

  #open(policy: Policy, { key: of, region }: DecidedCall, nowMs: number): RegionKey | undefined {
    const name = nameOf({ policy: policy.name, key: of });
    const known = this.#keys.get(name);
    if (known?.isFor(policy) === true) return known;
    for (const [each, key] of this.#keys) if (key.isOver(nowMs)) this.#keys.delete(each);
    // One under other rules is used up first, and ends by itself.
    if (this.#keys.size >= MAX_KEYS || this.#keys.has(name)) return undefined;
    const key = new RegionKey(policy, of, region, () => this.#now());
    this.#keys.set(name, key);
    return key;
  }

  #send(key: RegionKey, nowMs: number): void {
    let message = key.ask(nowMs);
    // It gives its bucket back.
    if (message.call.ttlMs === 0) this.#keys.delete(nameOf(message.call));
    const replace = (atMs: number) => (message = key.ask(atMs));
    key.sent = inTime(this.#host.time, key.messageMs, () => this.#ask(key, message, replace))
      .then((answer) => {
        key.answered(message, answer, this.#now());
        this.#watch(key);
      })
      .catch(() => key.failed(message));
  }

  /** Also while no calls come the limit is divided by what is needed: otherwise nobody has the rest of a bucket until it ends. */
  #watch(key: RegionKey): void {
    if (key.isWatched) return;
    key.isWatched = true;
    this.#host.time.after(key.everyMs(this.#now()), () => {
      key.isWatched = false;
      const nowMs = this.#now();
      const name = nameOf({ policy: key.policy.name, key: key.key });
      if (this.#keys.get(name) !== key || !key.hasBucket(nowMs)) return;
      if (key.needsMessage(nowMs)) this.#send(key, nowMs);
      else this.#watch(key);
    });
  }

  /**
   * Sends a message again and again until it is answered: the home object knows it by its number. Where thousands of holders
   * start at once, it waits behind theirs, and most of its own come meanwhile: `replace` makes one that knows them, and
   * nothing is taken from the answer to the one before.
   */
  #ask(
    key: RegionKey,
    first: UnansweredMessage<ReserveCall>,
    replace: (nowMs: number) => UnansweredMessage<ReserveCall>,
  ): Promise<Answer> {
    const { home, time } = this.#host;
    let [message, number] = [first, this.#departures.nextNumber()];
    const ask = async () => {
      const nowMs = this.#now();
      const sent = this.#departures.stamp([{ untilMs: nowMs + key.messageMs }], nowMs, number);
      const reply = await home(key.policy, key.key).reserve({ ...message.call, sent });
      // Regions are few, and each sends a message in a second, whatever pace the home object asks of isolates.
      return unpaced(JSON.parse(reply) as Answer | PacedReply<Answer>);
    };
    return new Promise((done, fail) => {
      const attempt = (): void => {
        const asked = message;
        void ask().then((answer) => message === asked && done(answer), fail);
        time.after(AGAIN_MS, () => {
          const nowMs = this.#now();
          if (key.messageAt(nowMs) !== message) return;
          if (key.hasOutgrown(nowMs)) [message, number] = [replace(nowMs), this.#departures.nextNumber()];
          attempt();
        });
      };
      attempt();
    });
  }
}

function nameOf({ policy, key }: { readonly policy: string; readonly key: string }): string {
  return `${policy}/${key}`;
}
