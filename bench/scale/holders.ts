/** Holders of units: isolates of a worker, or processes with a client of their own, which call an isolate nearby. */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { type LimiterNamespace, Objects } from "../../client/transports/objects.ts";
import type { LimiterTransport } from "../../client/transports/transport.ts";
import { RATE_WINDOWS } from "../../core/algorithms/token-bucket.ts";
import type { Time } from "../../core/clock.ts";
import type { RegionalPolicies } from "../../core/policies/parse-policies.ts";
import {
  DEFAULT_BOUNDS,
  type LocationHint,
  type Policy,
  type PolicyView,
} from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { ReservationsMessage, ReservationsReply } from "../../core/protocol/reservation-messages.ts";
import { SCOPES } from "../../worker/auth/tokens.ts";
import { callReserve } from "../../worker/calls/reservations.ts";
import type { Share } from "./laws.ts";

/** The one key that all call. */
export const KEY = "key";
/** How long a message takes between a process and the isolate that it calls, one way. */
const NEARBY_MS = 3;

export interface HolderParts {
  readonly name: string;
  readonly time: Time;
  readonly namespace: LimiterNamespace;
  readonly policies: RegionalPolicies;
  readonly region: LocationHint;
  /** Called at the instant at which a holder admits a unit by itself. */
  readonly onAdmitted: () => void;
  /** Changes what a process says to the isolate that it calls: a planted mistake. */
  readonly plantFar?: ((message: ReservationsMessage) => ReservationsMessage) | undefined;
  /** Changes what the isolate answers: the same. */
  readonly plantReply?: ((reply: ReservationsReply) => ReservationsReply) | undefined;
}

export interface Holder {
  /** Decides a call of cost 1. `undefined`: it is refused, as a bound of its caller is reached. */
  limit(policy: Policy): MaybeLater<Decision | undefined>;
  /** What it may admit without asking. */
  sharesOf(policy: Policy): readonly Share[];
}

type MaybeLater<Value> = Value | Promise<Value>;

export const HOLDERS = { isolate: (parts: HolderParts) => new Isolate(parts), process: startProcess };

/** The production client of an isolate, with the bounds of one caller. */
class Isolate implements Holder {
  readonly client: LimiterClient;
  readonly #cache: ReservationCache;
  readonly #time: Time;

  constructor({ name, time, namespace, policies, region, onAdmitted }: HolderParts) {
    this.#time = time;
    this.#cache = new ReservationCache(() => name);
    const inBackground = () => undefined;
    const objects = new Objects(namespace, time, { queues: new BatchQueues(), inBackground });
    const parts = { objects, policies, time, inBackground, region: () => region };
    this.client = new LimiterClient(parts, new LocalLimiter(this.#cache)).for("caller", DEFAULT_BOUNDS);
    const limit = this.client.limit.bind(this.client);
    const noted = <Answer extends Decision | Problem>(answer: Answer): Answer => {
      if (!(answer instanceof Problem) && isOwn(answer)) onAdmitted();
      return answer;
    };
    this.client.limit = (...call) => {
      const decided = limit(...call);
      return decided instanceof Promise ? decided.then(noted) : noted(decided);
    };
  }

  limit(policy: Policy): MaybeLater<Decision | undefined> {
    const decided = this.client.limit(policy, KEY, { cost: 1 });
    if (!(decided instanceof Promise)) return decided;
    return decided.then((answer) => (answer instanceof Problem ? undefined : answer));
  }

  sharesOf(policy: Policy): readonly Share[] {
    return [shareIn(this.#cache, policy, this.#time.nowMs())];
  }
}

function shareIn(cache: ReservationCache, policy: PolicyView, nowMs: number): Share {
  const reservation = cache.find(policy, KEY);
  const [units = 0] = reservation?.spendableAt(nowMs) ?? [];
  const [bucket] = reservation?.buckets ?? [];
  if (bucket === undefined || nowMs >= (reservation?.endsAtMs ?? -Infinity)) return { units };
  return { units, perWindow: bucket.rate.units / RATE_WINDOWS, burst: bucket.most };
}

/** A process with the production client, and the isolate that it calls. */
function startProcess(parts: HolderParts): Holder {
  const { name: id, time, plantFar, plantReply = (same) => same, onAdmitted } = parts;
  const cache = new ReservationCache(() => id);
  const isolate = new Isolate(parts);
  const principal = { title: "the client", id: `{"token":"t"}`, bounds: DEFAULT_BOUNDS, scopes: SCOPES };
  const nearby = () => new Promise<void>((done) => time.after(NEARBY_MS, done));
  const reserve = async (asked: ReservationsMessage): Promise<ReservationsReply> => {
    // As JSON, without what is undefined.
    const message = JSON.parse(JSON.stringify(plantFar?.(asked) ?? asked)) as ReservationsMessage;
    await nearby();
    const reply = await callReserve({ client: isolate.client, principal }, message);
    await nearby();
    if (reply instanceof Problem) throw reply.toError();
    // What the isolate has admitted by itself is not the process's own.
    const answers = reply.answers.map((answer) =>
      answer !== null && "decision" in answer
        ? { decision: { ...answer.decision, source: "object" as const } }
        : answer,
    );
    return plantReply({ ...reply, answers });
  };
  const transport = { call: (_, message) => reserve(message as ReservationsMessage) } as LimiterTransport;
  const lasting = { ...time, isLasting: true };
  const limiter = new RemoteLimiter({ transport, time: lasting, inBackground: () => undefined, cache });
  const note = (decision: Decision) => {
    if (isOwn(decision)) onAdmitted();
    return decision;
  };
  return {
    limit: ({ name }) => limiter.limit({ policy: name, key: KEY }).then(note, () => undefined),
    sharesOf: (policy) => [...isolate.sharesOf(policy), shareIn(cache, policy, time.nowMs())],
  };
}

function isOwn({ success, source }: Decision): boolean {
  return success && source === "isolate";
}
