import { withoutTaking } from "../../core/accounts/account.ts";
import { randomFraction, readClockMs, andThen } from "../../core/clock.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Decided, Lease, Missing, Released } from "../../core/protocol/answers.ts";
import type { AcquireCall, ReleaseCall, OfKey } from "../../core/protocol/calls.ts";
import { type Decision, publicDecision, shedDecision, withJitter } from "../../core/protocol/decision.ts";
import type { MaybePromise, ObjectStub } from "../../core/protocol/object-methods.ts";
import {
  boundText,
  CLOSE_DENIED,
  CLOSE_FAILED,
  CLOSE_LOST,
  CLOSE_RESUMED,
  CLOSE_SILENT,
  LIMITER_PROBLEMS,
  PROBLEMS,
  type ProblemKind,
} from "../../core/protocol/problems.ts";
import { endLease, socketOf } from "../operations/claims.ts";
import { type AskKey, MISSING } from "../operations/operations.ts";

/** The parts of an object that grant leases, and end them wherever their key is. */
export interface LeaseHost {
  readonly ask: AskKey;
  readonly anywhere: LeasesAnywhere;
  readonly policyOf: (policy: string, key: string) => Policy | undefined;
}

interface SocketHost extends LeaseHost {
  readonly nowMs: () => number;
  /** Sets the object's alarm, so that `renew` is called by `dueMs`. */
  renewBy(dueMs: number, nowMs: number): void;
}

/**
 * Leases that live as long as a WebSocket, which the runtime keeps while the object hibernates. Halfway
 * through the lease an alarm renews it and notifies the holder, which also detects dead connections. When the
 * socket ends, so does its lease: at once, or after the holder's grace.
 */
export class LeaseSockets {
  readonly #ctx: DurableObjectState;
  readonly #host: SocketHost;
  /** By socket that waits for a lease: aborted when it closes. */
  readonly #waiting = new Map<WebSocket, AbortController>();

  constructor(ctx: DurableObjectState, host: SocketHost) {
    this.#ctx = ctx;
    this.#host = host;
  }

  /** Accepts a socket and acquires a lease for it. The decision is the first message. */
  accept(call: AcquireCall): Response {
    const { 0: client, 1: socket } = new WebSocketPair();
    this.#ctx.acceptWebSocket(socket);
    const { policy, key, resume, graceMs, pingWithinMs } = call;
    const attachment: Attachment = {
      policy,
      key,
      ...(graceMs !== undefined && { graceMs }),
      ...(pingWithinMs !== undefined && { pingWithinMs, openedMs: readClockMs() }),
    };
    socket.serializeAttachment(attachment);
    // The runtime's own answer wakes no object, and keeps idle connections open in proxies.
    this.#ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair("ping", "pong"));
    void (resume === undefined
      ? this.#acquire(socket, call, attachment)
      : this.#resume(socket, attachment, { id: resume, link: call.id }));
    return new Response(null, { status: 101, webSocket: client });
  }

  /** Ends a closed socket's wait or lease. `isBroken`: without a close, so a holder's grace begins. */
  closed(socket: WebSocket, isBroken = false): void {
    this.#waiting.get(socket)?.abort();
    socket.close();
    const attachment = socket.deserializeAttachment() as Attachment;
    const { policy, key, id, graceMs } = attachment;
    if (id === undefined || this.#host.policyOf(policy, key) === undefined) return;
    const { anywhere } = this.#host;
    if (isBroken && graceMs !== undefined) void renewed(anywhere, attachment, id, graceMs);
    else void anywhere.release(policy, key, id);
  }

  /** Renews open sockets' leases, closes sockets of ended ones. Returns when to retry if a pool failed. */
  async renew(): Promise<number> {
    let againMs = Infinity;
    for (const socket of this.#ctx.getWebSockets()) {
      const attachment = socket.deserializeAttachment() as Attachment;
      const { policy, key, id } = attachment;
      if (id === undefined || socket.readyState !== WebSocket.OPEN) continue;
      try {
        if (isSilent(this.#ctx, socket, attachment)) this.#giveUp(socket);
        // A deployment may have removed the policy.
        else if (this.#host.policyOf(policy, key) === undefined)
          socket.close(CLOSE_LOST, "there is no such policy any more");
        else await this.#renewLease(socket, attachment, id);
      } catch (error) {
        // The pool did not answer. The lease lasts until its end, and `renew` is called again then.
        console.warn(`policy ${policy}: a socket's lease was not renewed: ${String(error)}`);
        againMs = Math.min(againMs, await this.#endOf(attachment, id));
      }
    }
    return againMs;
  }

  /** When a lease expires, or an instant soon if the object does not have it. */
  async #endOf({ policy, key }: OfKey, id: string): Promise<number> {
    const { ask, nowMs: clock } = this.#host;
    try {
      return await ask(policy, key, (_, { claims }, nowMs) => claims.get(id)?.expiresAtMs ?? nowMs + SOON_MS);
    } catch {
      return clock() + LATER_MS;
    }
  }

  #giveUp(socket: WebSocket): void {
    socket.close(CLOSE_SILENT, "no ping came");
    this.closed(socket, true);
    withoutLease(socket);
  }

  async #renewLease(socket: WebSocket, attachment: Attachment, id: string): Promise<void> {
    const sinceMs = this.#host.nowMs();
    const lease = await renewed(this.#host.anywhere, attachment, id);
    if ("missing" in lease) return socket.close(CLOSE_LOST, LOST);
    const { expiresAfterMs } = lease;
    socket.send(JSON.stringify({ renewed: { expiresAfterMs } }));
    this.#host.renewBy(sinceMs + (attachment.everyMs ?? expiresAfterMs / 2), sinceMs);
  }

  /** Closes sockets of ended leases in the same call: later the policy of a key without rows may be unknown. */
  closeLost(policy: string, { key, claims }: { key: string; claims: { has(id: string): boolean } }): void {
    for (const socket of this.#ctx.getWebSockets()) {
      const attached = socket.deserializeAttachment() as Attachment;
      const isOfKey = attached.policy === policy && attached.key === key && attached.id !== undefined;
      if (isOfKey && !claims.has(attached.id)) socket.close(CLOSE_LOST, LOST);
    }
  }

  async #acquire(socket: WebSocket, call: AcquireCall, attachment: Attachment): Promise<void> {
    const { policy: name, key, ...params } = call;
    await this.#whileOpen(socket, async (signal) => {
      const answer = await this.#host.ask(name, key, (operations, keyState, nowMs) =>
        operations.acquire(keyState, { ...params, isSocket: true, signal }, nowMs),
      );
      if ("full" in answer) refuse(socket, CLOSE_DENIED, LIMITER_PROBLEMS.bound, boundText(answer));
      else if ("shed" in answer)
        this.#send(socket, attachment, (policy) => shedDecision(policy, key, answer.shed));
      else if ("rules" in answer && answer.rules.length > 0) this.#tell(socket, attachment, answer, signal);
    });
  }

  /** Takes over the lease of a broken socket, which may not have been detected yet. */
  async #resume(socket: WebSocket, attachment: Attachment, { id, link }: Link): Promise<void> {
    await this.#whileOpen(socket, async (signal) => {
      const answer = await takenOver(this.#host.ask, attachment, { id, link }, true);
      if ("missing" in answer) return refuse(socket, CLOSE_LOST, PROBLEMS.leaseNotFound, LOST);
      // The lease is detached from its other sockets: their end does not end it any more.
      for (const other of this.#ctx.getWebSockets()) {
        if ((other.deserializeAttachment() as Attachment).id !== id) continue;
        withoutLease(other);
        other.close(CLOSE_RESUMED, "the lease was resumed by another socket");
      }
      this.#tell(socket, attachment, answer, signal);
    });
  }

  /** Works for a socket without a lease until it closes, which aborts `signal`. A failure closes it. */
  async #whileOpen(socket: WebSocket, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const gone = new AbortController();
    this.#waiting.set(socket, gone);
    try {
      await work(gone.signal);
    } catch (error) {
      socket.close(CLOSE_FAILED, "the limiter failed");
      throw error;
    } finally {
      this.#waiting.delete(socket);
    }
  }

  /** Sends a decision under the key's policy, if there is still one. A denial closes the socket. */
  #send(socket: WebSocket, { policy: name, key }: OfKey, decide: (policy: Policy) => Decision): void {
    const policy = this.#host.policyOf(name, key);
    if (policy === undefined) return;
    const decision = withJitter(policy, decide(policy), randomFraction);
    socket.send(JSON.stringify(decision));
    if (!decision.success) socket.close(CLOSE_DENIED, decision.reason);
  }

  /** Stores the lease's id with the socket, and sends the decision. */
  #tell(socket: WebSocket, attachment: Attachment, decided: Decided, gone: AbortSignal): void {
    const { lease } = decided;
    if (lease !== undefined) {
      const nowMs = this.#host.nowMs();
      const everyMs = this.#everyMs(attachment, lease);
      socket.serializeAttachment({ ...attachment, id: lease.id, everyMs } satisfies Attachment);
      // The socket may have closed before the lease was granted.
      if (gone.aborted || socket.readyState !== WebSocket.OPEN) return this.closed(socket, true);
      this.#host.renewBy(nowMs + everyMs, nowMs);
    }
    if (gone.aborted) return;
    this.#send(socket, attachment, (policy) => publicDecision(policy, attachment.key, decided));
  }

  /** How often a new lease is renewed: at half of its time, and when its grace is left. */
  #everyMs({ policy, key, graceMs = 0 }: Attachment, { expiresAfterMs }: Lease): number {
    const isPooled = this.#host.policyOf(policy, key)?.pool !== undefined;
    return expiresAfterMs - Math.max(expiresAfterMs / 2, isPooled ? 0 : graceMs);
  }
}

const LOST = "the lease has ended";

/** A lease, and the call that takes it over. What had it before does not end it any more. */
interface Link {
  readonly id: string;
  readonly link: string;
}

interface Attachment {
  readonly policy: string;
  readonly key: string;
  readonly id?: string;
  /** How often the lease is renewed, in milliseconds. Absent: an older build granted it. */
  readonly everyMs?: number;
  /** How long the lease stays after the connection breaks, in milliseconds. Absent: it ends at once. */
  readonly graceMs?: number;
  /** Without a `ping` for this long since `openedMs` or the last one, the connection counts as broken. */
  readonly pingWithinMs?: number;
  /** By the runtime's clock, which also has the instants of pings. */
  readonly openedMs?: number;
}

/** If a lease's end is unknown, it is requested again after this many milliseconds. */
const SOON_MS = 50;
/** As `SOON_MS`, but if the object cannot know whether it has the lease. */
const LATER_MS = 60_000;

/** Whether expected pings are missing: TCP detects power loss late, workerd no reset during the opening. */
function isSilent(ctx: DurableObjectState, socket: WebSocket, attachment: Attachment): boolean {
  const { pingWithinMs, openedMs = 0 } = attachment;
  if (pingWithinMs === undefined) return false;
  const pingedMs = ctx.getWebSocketAutoResponseTimestamp(socket)?.getTime() ?? 0;
  return readClockMs() - Math.max(openedMs, pingedMs) > pingWithinMs;
}

/** The calls on a lease where its key is: the key may have moved since the grant. */
type LeasesAnywhere = Pick<ObjectStub, "renew" | "release" | "releaseCall">;

/** Renews a lease by `ttlMs` from now, by default the lifetime in the acquire. */
export async function renewed(anywhere: LeasesAnywhere, { policy, key }: OfKey, id: string, ttlMs?: number) {
  const sent = ttlMs === undefined ? ([] as const) : ([ttlMs] as const);
  return JSON.parse(await anywhere.renew(policy, key, id, ...sent)) as Lease | Missing;
}

/** Renews a lease for another socket or link. `Missing`: it has ended, or it is a socket's and a link asks. */
export function takenOver(
  ask: AskKey,
  { policy, key, graceMs }: OfKey & Pick<AcquireCall, "graceMs">,
  { id, link }: Link,
  isForSocket = false,
) {
  return ask<Decided | Missing>(policy, key, (operations, keyState, nowMs) => {
    if (!isForSocket && keyState.claims.get(id)?.isSocket === true) return MISSING;
    const to = { link, ...(isForSocket && socketOf(keyState, graceMs)) };
    return andThen(operations.renew(keyState, { id, to }, nowMs), (lease) => {
      if ("missing" in lease) return lease;
      // The lease was admitted before, whatever its rules would decide now.
      const admitted = { success: true, retryAfterMs: 0, reason: "ok" } as const;
      const rules = withoutTaking(keyState.ruleStates, nowMs, 0).map((rule) => ({ ...rule, ...admitted }));
      return { rules, lease };
    });
  });
}

function refuse(
  socket: WebSocket,
  closeCode: number,
  [status, code, title]: ProblemKind,
  detail: string,
): void {
  socket.send(JSON.stringify({ type: `urn:weir:problem:${code}`, title, status, detail }));
  socket.close(closeCode, closeCode === CLOSE_LOST ? detail : code);
}

/** The socket's end does not end its lease any more. */
function withoutLease(socket: WebSocket): void {
  const { id: _, ...rest } = socket.deserializeAttachment() as Attachment;
  socket.serializeAttachment(rest satisfies Attachment);
}

export interface ReleasingHost {
  readonly ask: AskKey;
  readonly sockets: Pick<LeaseSockets, "closeLost">;
}

/** Ends a lease as reported, or after its link. */
export function releaseLease(host: ReleasingHost, call: ReleaseCall): MaybePromise<Released | Missing> {
  const { policy, key } = call;
  return host.ask(policy, key, (operations, keyState, nowMs) => {
    const isSocket = keyState.claims.get(call.id)?.isSocket === true;
    return andThen(endLease(operations, keyState, call, nowMs), (isReleased) => {
      if (isSocket) host.sockets.closeLost(policy, keyState);
      return isReleased ? { released: true } : MISSING;
    });
  });
}
