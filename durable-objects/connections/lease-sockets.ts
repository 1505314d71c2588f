import type { Policies } from "../../core/policies/policy.ts";
import { publicDecision } from "../../core/protocol/decision.ts";
import type { AcquireCall, Decided } from "../../core/protocol/messages.ts";
import type { AskKey } from "../operations/operations.ts";

/** What a socket says of itself while the object sleeps. Kept by the runtime with the socket. */
interface Attachment {
  readonly policy: string;
  readonly key: string;
  /** Of the lease; absent while waiting for it. */
  readonly id?: string;
}

/** What the sockets need of the object. */
export interface SocketHost {
  readonly policies: Pick<Policies, "get">;
  readonly ask: AskKey;
  readonly nowMs: () => number;
  /** Sees to it that `renew` is called by then. */
  renewBy(dueMs: number, nowMs: number): void;
}

/** "Internal error" of RFC 6455. */
const CLOSE_FAILED = 1011;
/** Codes of this protocol, from the range that RFC 6455 leaves to applications. */
const CLOSE_DENIED = 4429;
const CLOSE_LOST = 4408;
const LOST = "the lease has ended";
const SOON_MS = 50;

/**
 * Leases that live as long as a WebSocket. The socket is handed to the runtime, so the object may sleep
 * ("hibernate") meanwhile; an alarm halfway through the lease renews it if the socket is still open, and tells the
 * holder, which also finds out whether the other end is there. A close or a broken connection releases it at once.
 */
export class LeaseSockets {
  readonly #ctx: DurableObjectState;
  readonly #host: SocketHost;
  /** Who waits for a lease: told when its socket closes. */
  readonly #waiting = new Map<WebSocket, AbortController>();

  constructor(ctx: DurableObjectState, host: SocketHost) {
    this.#ctx = ctx;
    this.#host = host;
  }

  /** Takes a socket. Its first message is the decision. */
  accept(call: AcquireCall): Response {
    const { 0: client, 1: socket } = new WebSocketPair();
    this.#ctx.acceptWebSocket(socket);
    socket.serializeAttachment({ policy: call.policy, key: call.key } satisfies Attachment);
    void this.#acquire(socket, call);
    return new Response(null, { status: 101, webSocket: client });
  }

  /** Ends what the socket had, and says goodbye to a client that did: it waits for that. */
  closed(socket: WebSocket): void {
    this.#waiting.get(socket)?.abort();
    socket.close();
    const { policy, key, id } = socket.deserializeAttachment() as Attachment;
    if (id === undefined || this.#host.policies.get(policy) === undefined) return;
    void this.#host.ask(policy, key, (operations, keyState, nowMs) =>
      operations.release(keyState, id, nowMs),
    );
  }

  /**
   * Renews the lease of every open socket, and closes those whose lease has gone (reset, or expired meanwhile).
   *
   * @returns when to look again at leases of which it is not known whether they were renewed; `Infinity`: there are none
   */
  async renew(): Promise<number> {
    let againMs = Infinity;
    for (const socket of this.#ctx.getWebSockets()) {
      const { policy, key, id } = socket.deserializeAttachment() as Attachment;
      if (id === undefined || socket.readyState !== WebSocket.OPEN) continue;
      // A deployment may have taken the policy away.
      if (this.#host.policies.get(policy) === undefined) {
        socket.close(CLOSE_LOST, "there is no such policy any more");
        continue;
      }
      try {
        await this.#renewLease(socket, policy, key, id);
      } catch (error) {
        // A pool that does not answer. The lease stands until it ends, and then this is called again.
        console.warn(`policy ${policy}: a socket's lease was not renewed: ${String(error)}`);
        againMs = Math.min(againMs, await this.#endOf(policy, key, id));
      }
    }
    return againMs;
  }

  async #renewLease(socket: WebSocket, policy: string, key: string, id: string): Promise<void> {
    const sinceMs = this.#host.nowMs();
    const renewed = await this.#host.ask(policy, key, (operations, keyState, nowMs) =>
      operations.renew(keyState, id, undefined, nowMs),
    );
    if ("missing" in renewed) return socket.close(CLOSE_LOST, LOST);
    const { expiresAfterMs } = renewed;
    socket.send(JSON.stringify({ renewed: { expiresAfterMs } }));
    this.#host.renewBy(sinceMs + expiresAfterMs / 2, sinceMs);
  }

  #endOf(policy: string, key: string, id: string): number | Promise<number> {
    return this.#host.ask(
      policy,
      key,
      (_, { claims }, nowMs) => claims.get(id)?.expiresAtMs ?? nowMs + SOON_MS,
    );
  }

  /** Closes the sockets of a key whose leases somebody else has ended. */
  closeLost(policy: string, key: string, isThere: (leaseId: string) => boolean): void {
    for (const socket of this.#ctx.getWebSockets()) {
      const attached = socket.deserializeAttachment() as Attachment;
      const isOfKey = attached.policy === policy && attached.key === key && attached.id !== undefined;
      if (isOfKey && !isThere(attached.id)) socket.close(CLOSE_LOST, LOST);
    }
  }

  async #acquire(socket: WebSocket, { policy, key, ...call }: AcquireCall): Promise<void> {
    const gone = new AbortController();
    this.#waiting.set(socket, gone);
    const asked = { ...call, isSocket: true, signal: gone.signal };
    try {
      const answer = await this.#host.ask(policy, key, (operations, keyState, nowMs) =>
        operations.acquire(keyState, asked, nowMs),
      );
      if ("rules" in answer && answer.rules.length > 0)
        this.#tell(socket, { policy, key }, answer, gone.signal);
    } catch (error) {
      socket.close(CLOSE_FAILED, "the limiter failed");
      throw error;
    } finally {
      this.#waiting.delete(socket);
    }
  }

  #tell(socket: WebSocket, attachment: Attachment, decided: Decided, gone: AbortSignal): void {
    const { lease } = decided;
    if (lease !== undefined) {
      const nowMs = this.#host.nowMs();
      socket.serializeAttachment({ ...attachment, id: lease.id } satisfies Attachment);
      // It may have closed in the moment between.
      if (gone.aborted || socket.readyState !== WebSocket.OPEN) return this.closed(socket);
      this.#host.renewBy(nowMs + lease.expiresAfterMs / 2, nowMs);
    }
    const policy = this.#host.policies.get(attachment.policy);
    if (gone.aborted || policy === undefined) return;
    const decision = publicDecision(policy, attachment.key, decided);
    socket.send(JSON.stringify(decision));
    if (!decision.success) socket.close(CLOSE_DENIED, decision.reason);
  }
}
