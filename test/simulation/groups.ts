/** One key whose limit groups share, under steady loads from several isolates: what each group is admitted. */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { Objects } from "../../client/transports/objects.ts";
import { parsePolicies, parseRegions, RegionalPolicies } from "../../core/policies/parse-policies.ts";
import { DEFAULT_BOUNDS, type Policy } from "../../core/policies/policy.ts";
import { ofGroup } from "../../core/policies/seen-policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { orThrow } from "../../core/protocol/problems.ts";
import type { ReservationsMessage } from "../../core/protocol/reservation-messages.ts";
import { SCOPES } from "../../worker/auth/tokens.ts";
import { callReserve } from "../../worker/calls/reservations.ts";
import { type AdmittedCall, worstExcess } from "../support/interval-bound.ts";
import { seededRandom } from "../support/random.ts";
import { transportOf } from "../support/transport.ts";
import { Database } from "./database.ts";
import { type Method, simulatedNamespace } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { VirtualTime } from "./virtual-time.ts";

export interface GroupsLoad {
  /** Units per second. */
  readonly limit: number;
  readonly isolates: number;
  /** They are processes with a client of their own, which one isolate serves. */
  readonly areProcesses?: boolean;
  /** Units per second that each group asks for. */
  readonly asked: readonly number[];
  readonly policy?: object;
  /** All calls of a group come to one isolate for so long, and then to the next one. Absent: to any. */
  readonly movesEachMs?: number;
  /** The average one-way time of a message, in milliseconds. */
  readonly messageMs?: number;
  /** This part of the messages or their answers is lost. */
  readonly lost?: number;
  readonly seed?: number;
  /** How long calls are made. They count from 3 s on, when groups and holders know each other. */
  readonly seconds: number;
}

export interface GroupsFigures {
  /** By group: the part of what it asked for. */
  readonly admitted: readonly number[];
  /** Units admitted in a second, as a part of the limit. */
  readonly used: number;
  /** Units over what one exact bucket admits in any interval. */
  readonly over: number;
  /** Messages for each call. */
  readonly messages: number;
}

const FROM_MS = 3_000;

export async function sharedByGroups(load: GroupsLoad): Promise<GroupsFigures> {
  const { limit, isolates, asked, messageMs = 2, lost = 0, seed = 1 } = load;
  const random = seededRandom(seed);
  const table = { algorithm: "token-bucket", limit, window: "1s", deadlineMs: 1_000, ...load.policy };
  const policies = parsePolicies({ key: { ...table, fair: true } });
  const policy = policies.get("key") as Policy;
  const time = new VirtualTime();
  const clock = time.clock({ ms: 1_000_000 });
  const object = new SimulatedObject(new Database(), policies, () => clock.nowMs());
  let messages = 0;
  const handle = (method: Method, args: readonly unknown[]) => {
    if (time.nowMs >= FROM_MS) messages += 1;
    return object.handle(method, args);
  };
  const oneWayMs = () => messageMs * (0.5 + random());
  const fateOf = () => ({
    ...(random() >= lost && { thereMs: oneWayMs() }),
    ...(random() >= lost && { backMs: oneWayMs() }),
  });
  const objects = new Objects(
    simulatedNamespace(time, handle, fateOf, () => false),
    clock,
  );
  const caller = { objects, time: clock, inBackground: () => undefined };
  const decideIn = (index: number): ((group: string) => unknown) => {
    const limiter = new LocalLimiter(new ReservationCache(() => `isolate-${index}`));
    return (group) => limiter.limit(caller, ofGroup(policy, { group, namedBy: "caller" }), "key", 1);
  };
  const isolate = new LimiterClient({
    ...caller,
    policies: new RegionalPolicies(policies, parseRegions(undefined)),
  });
  const decideInProcess = (index: number): ((group: string) => unknown) => {
    const principal = { title: "the client", id: "caller", bounds: DEFAULT_BOUNDS, scopes: SCOPES };
    // The way to the object is the isolate's: this one takes no time, and loses nothing.
    const reserve = async (message: ReservationsMessage) =>
      orThrow(await callReserve({ client: isolate, principal }, message));
    const transport = transportOf({ reserve });
    const cache = new ReservationCache(() => `process-${index}-${(random() * 1e9).toFixed()}`);
    const limiter = new RemoteLimiter({ ...caller, time: { ...clock, isLasting: true }, transport, cache });
    return (group) => limiter.limit({ policy: "key", key: "key", group });
  };
  const holders = Array.from({ length: isolates }, (_, index) =>
    load.areProcesses === true ? decideInProcess(index) : decideIn(index),
  );
  const sums = asked.map(() => ({ calls: 0, admitted: 0 }));
  const admissions: AdmittedCall[] = [];
  const call = async (index: number, sum: { calls: number; admitted: number }) => {
    const sentMs = time.nowMs;
    const at = load.movesEachMs === undefined ? random() * isolates : index + sentMs / load.movesEachMs;
    const decided = (await holders[Math.floor(at) % isolates]?.(`group-${index}`)) as Partial<Decision>;
    const isIn = decided.success === true;
    if (isIn)
      admissions.push({ sentAtMs: Math.floor(sentMs), receivedAtMs: Math.ceil(time.nowMs), units: 1 });
    if (sentMs < FROM_MS) return;
    sum.calls += 1;
    if (isIn) sum.admitted += 1;
  };
  for (const [index, sum] of sums.entries()) {
    const pauseMs = () => (-1_000 * Math.log(1 - random())) / (asked[index] ?? 1);
    const next = () => {
      void call(index, sum);
      time.at(time.nowMs + pauseMs(), next);
    };
    time.at(pauseMs(), next);
  }
  await time.run(1_000 * load.seconds, () => undefined);
  const seconds = load.seconds - FROM_MS / 1_000;
  return {
    admitted: sums.map(({ calls, admitted }) => admitted / calls),
    used: sums.reduce((all, { admitted }) => all + admitted, 0) / (limit * seconds),
    over: Math.max(0, worstExcess(admissions, { limit, windowMs: 1_000, burst: limit })),
    messages: messages / sums.reduce((all, { calls }) => all + calls, 0),
  };
}
