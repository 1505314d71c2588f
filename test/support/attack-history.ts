/** The calls of a limiter and their answers, for attack-laws.ts. */
import type { BoundClient } from "./bound-client.ts";
import type { HttpClient, TimedAnswer } from "./http-client.ts";

/** The calls, by their names in the service binding. `idle` is a peek that waits. */
export type Kind =
  | "limit"
  | "limitAll"
  | "refund"
  | "hold"
  | "settle"
  | "cancel"
  | "acquire"
  | "renew"
  | "release"
  | "peek"
  | "idle"
  | "reset";

export type Cost = number | Readonly<Record<string, number>>;

/** One check, or the arguments of a call on one key. */
export interface Argument {
  readonly policy?: string;
  readonly key?: string;
  readonly cost?: Cost;
  readonly units?: Cost;
  readonly used?: Cost;
  readonly id?: string;
  readonly idempotencyKey?: string;
  readonly charge?: string;
  readonly ttlMs?: number;
  readonly waitMs?: number;
  readonly checks?: readonly Argument[];
}

/** A call. `status` 0: it was not answered, since the server was killed, but may have been executed. */
export interface Made extends TimedAnswer {
  readonly caller: string;
  readonly kind: Kind;
  readonly argument: Argument;
}

/** Makes calls as one caller. Rejects when there is no answer. */
export type Ask = (kind: Kind, argument: Argument) => Promise<TimedAnswer>;

type Route = readonly [method: "GET" | "POST" | "DELETE", path: string];

function routeOf(kind: Kind, { id = "", policy = "", key = "", waitMs }: Argument): Route {
  const place = `policies/${policy}/keys/${encodeURIComponent(key)}`;
  const routes: Readonly<Record<Kind, Route>> = {
    limit: ["POST", "limit"],
    limitAll: ["POST", "limit/all"],
    refund: ["POST", "refund"],
    hold: ["POST", "holds"],
    settle: ["POST", `holds/${id}/settle`],
    cancel: ["DELETE", `holds/${id}`],
    acquire: ["POST", "leases"],
    renew: ["POST", `leases/${id}/renew`],
    release: ["DELETE", `leases/${id}`],
    peek: ["GET", place],
    idle: ["GET", `${place}?waitFor=idle&waitMs=${waitMs}`],
    reset: ["DELETE", place],
  };
  return routes[kind];
}

export function askOverHttp(client: HttpClient): Ask {
  return (kind, argument) => {
    const [method, path] = routeOf(kind, argument);
    const { id: _, ...body } = argument;
    return client.call(method, `/v1/${path}`, method === "POST" ? body : undefined);
  };
}

/** Leases are detached: otherwise they would end with the request that acquired them. */
export function askOverBinding(client: BoundClient): Ask {
  return (kind, argument) => {
    if (kind === "acquire") return client.call("acquire", { ...argument, detached: true });
    if (kind === "idle") return client.call("peek", { ...argument, waitFor: "idle" });
    return client.call(kind, argument);
  };
}

/** A hold or lease that a caller knows. */
export interface Told {
  readonly id: string;
  readonly expiresAfterMs: number;
}

export function claimIn({ body }: Pick<Made, "body">): Told | undefined {
  return (body["hold"] ?? body["lease"]) as Told | undefined;
}

/** Every id in an answer, also those that do not belong there. */
export function idsIn({ body }: Pick<Made, "body">): string[] {
  return JSON.stringify(body).match(/\b(?:hold|lease)_[\w-]+\.[\w-]{22}/g) ?? [];
}

export function isAdmitted({ status, body }: Made): boolean {
  return status === 200 && body["success"] === true;
}

/** The units of a cost for a rule that counts this unit. */
export function unitsOf(cost: Cost | undefined, unit: string): number {
  if (typeof cost === "object") return cost[unit] ?? 1;
  return cost ?? 1;
}

/** A call as evidence: short, with the place and the times. */
export function shown({ caller, kind, argument, status, body, sentAtMs, receivedAtMs }: Made): string {
  const told = JSON.stringify(body, [
    "success",
    "remaining",
    "hold",
    "lease",
    "id",
    "expiresAfterMs",
    "detail",
  ]);
  return `${sentAtMs}-${receivedAtMs} ${caller} ${kind} ${JSON.stringify(argument)}: ${status} ${told}`;
}

/** All calls in the order of their answers, and the ways to find them. */
export class History {
  readonly made: readonly Made[];
  readonly resets: readonly Made[];
  readonly #byId: ReadonlyMap<string, readonly Made[]>;
  readonly #repeated: ReadonlyMap<string, readonly Made[]>;

  constructor(made: readonly Made[]) {
    this.made = made;
    this.resets = made.filter(({ kind }) => kind === "reset");
    this.#byId = Map.groupBy(inOrder(made), ({ argument }) => argument.id ?? "");
    this.#repeated = Map.groupBy(made, (call) => repetitionName(call));
  }

  /** The calls on a hold or lease, in the order in which they were sent. */
  on(id: string | undefined): readonly Made[] {
    return this.#byId.get(id ?? "none") ?? [];
  }

  /** Whether no earlier call may be the original of this one. */
  isFirst(call: Made): boolean {
    if (call.argument.idempotencyKey === undefined) return true;
    return (this.#repeated.get(repetitionName(call)) ?? []).every(
      (other) => other === call || !isOn(other, call) || other.sentAtMs > call.sentAtMs,
    );
  }
}

/** Equal for calls of one caller under one idempotency key. */
export function repetitionName({ caller, argument: { idempotencyKey } }: Made): string {
  return JSON.stringify([caller, idempotencyKey]);
}

export function inOrder(calls: readonly Made[]): Made[] {
  return calls.toSorted((a, b) => a.sentAtMs - b.sentAtMs);
}

/** Whether a call is on the key of another one. */
export function isOn({ argument }: Made, { argument: { policy, key } }: Made): boolean {
  return [argument, ...(argument.checks ?? [])].some((each) => each.policy === policy && each.key === key);
}
