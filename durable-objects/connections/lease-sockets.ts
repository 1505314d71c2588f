import { publicDecision } from "../../core/protocol/decision.ts";
import { objectPolicies } from "../deployment.ts";
import type { Desk } from "../call-router.ts";
import type { KeyState } from "../keys/key-state.ts";
import { readAnswer, type AcquireCall, type Decided } from "../../core/protocol/messages.ts";

/** What a socket says of itself while the object sleeps. Kept by the runtime with the socket. */
interface Attachment {
  readonly policy: string;
  readonly key: string;
  /** Of the lease; absent while waiting for it. */
  readonly id?: string;
}

/** What the sockets need of the object. */
export interface SocketHost {
  open(policy: string, key: string): [keyState: KeyState, nowMs: number];
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
/** A pool that does not answer. */
const NOT_KNOWN = "not known";

/**
 * Leases that live as long as a WebSocket. The socket is handed to the runtime, so the object may sleep
 * ("hibernate") meanwhile; an alarm halfway through the lease renews it if the socket is still open, and tells the
 * holder, which also finds out whether the other end is there. A close or a broken connection releases it at once.
 */
export class LeaseSockets {
  readonly #ctx: DurableObjectState;
  readonly #desk: Desk;
  readonly #host: SocketHost;
  /** Who waits for a lease: told when its socket closes. */
  readonly #waiting = new Map<WebSocket, AbortController>();

  constructor(ctx: DurableObjectState, desk: Desk, host: SocketHost) {
    this.#ctx = ctx;
    this.#desk = desk;
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
    if (id === undefined || objectPolicies.get(policy) === undefined) return;
    const [keyState, nowMs] = this.#host.open(policy, key);
    void this.#desk.release(keyState, id, nowMs);
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
      if (objectPolicies.get(policy) === undefined) {
        socket.close(CLOSE_LOST, "there is no such policy any more");
        continue;
      }
      const [keyState, nowMs] = this.#host.open(policy, key);
      const expiresAfterMs = await this.#renewed(keyState, id, nowMs);
      if (expiresAfterMs === NOT_KNOWN) {
        // Until it ends it stands, and then this is called again. The clock has moved meanwhile.
        const [later, laterMs] = this.#host.open(policy, key);
        againMs = Math.min(againMs, later.claims.get(id)?.expiresAtMs ?? laterMs + SOON_MS);
        continue;
      }
      if (expiresAfterMs === undefined) {
        socket.close(CLOSE_LOST, LOST);
        continue;
      }
      socket.send(JSON.stringify({ renewed: { expiresAfterMs } }));
      this.#host.renewBy(nowMs + expiresAfterMs / 2, nowMs);
    }
    return againMs;
  }

  /** How long the lease lasts now; `undefined`: it has ended. */
  async #renewed(
    keyState: KeyState,
    id: string,
    nowMs: number,
  ): Promise<number | undefined | typeof NOT_KNOWN> {
    try {
      const answer = await this.#desk.renew(keyState, id, undefined, nowMs);
      return (JSON.parse(answer) as { expiresAfterMs?: number }).expiresAfterMs;
    } catch (error) {
      console.warn(`policy ${keyState.policy.name}: a socket's lease was not renewed: ${String(error)}`);
      return NOT_KNOWN;
    }
  }

  /** Closes the sockets of a key whose leases somebody else has ended. */
  closeLost({ policy, key, claims }: KeyState): void {
    for (const socket of this.#ctx.getWebSockets()) {
      const attached = socket.deserializeAttachment() as Attachment;
      const isOfKey = attached.policy === policy.name && attached.key === key && attached.id !== undefined;
      if (isOfKey && !claims.has(attached.id)) socket.close(CLOSE_LOST, LOST);
    }
  }

  async #acquire(socket: WebSocket, { policy, key, ...call }: AcquireCall): Promise<void> {
    const [keyState, nowMs] = this.#host.open(policy, key);
    const gone = new AbortController();
    this.#waiting.set(socket, gone);
    try {
      const asked = { ...call, isSocket: true, signal: gone.signal };
      const answer = readAnswer(await this.#desk.acquire(keyState, asked, nowMs));
      if ("rules" in answer && answer.rules.length > 0) this.#tell(socket, keyState, answer, gone.signal);
    } catch (error) {
      socket.close(CLOSE_FAILED, "the limiter failed");
      throw error;
    } finally {
      this.#waiting.delete(socket);
    }
  }

  #tell(socket: WebSocket, keyState: KeyState, decided: Decided, gone: AbortSignal): void {
    const { policy, key } = keyState;
    const { lease } = decided;
    if (lease !== undefined) {
      const [, nowMs] = this.#host.open(policy.name, key);
      const attachment = { policy: policy.name, key, id: lease.id } satisfies Attachment;
      socket.serializeAttachment(attachment);
      // It may have closed in the moment between.
      if (gone.aborted || socket.readyState !== WebSocket.OPEN) return this.closed(socket);
      this.#host.renewBy(nowMs + lease.expiresAfterMs / 2, nowMs);
    }
    if (gone.aborted) return;
    const decision = publicDecision(policy, key, decided);
    socket.send(JSON.stringify(decision));
    if (!decision.success) socket.close(CLOSE_DENIED, decision.reason);
  }
}
