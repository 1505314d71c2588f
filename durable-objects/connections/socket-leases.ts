/** The leases of sockets: how they end when their socket does, and how another socket takes them over. */
import { withoutTaking } from "../../core/accounts/joint-decision.ts";
import { readClockMs } from "../../core/clock.ts";
import type { Decided, Lease, Missing, RuleDecision } from "../../core/protocol/answers.ts";
import { CLOSE_LOST, CLOSE_RESUMED } from "../../core/protocol/close-codes.ts";
import type { AcquireCall } from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { PROBLEMS } from "../../core/protocol/problems.ts";
import type { AskAnywhere, AskKey } from "../operations/operations.ts";

/** Why a socket is closed. */
export const LOST = "the lease has ended";
/** What the object has to know of a socket. The runtime keeps it with the socket while the object sleeps. */
export interface Attachment {
  readonly policy: string;
  readonly key: string;
  /** The id of the lease; absent while the caller waits for one. */
  readonly id?: string;
  /** When the connection breaks, the lease stays for so long, in milliseconds. Absent: it ends at once. */
  readonly graceMs?: number;
  /** No `ping` for so long means that the connection is broken, in milliseconds since `openedMs` or the last one. */
  readonly pingWithinMs?: number;
  /** When the socket was opened, by the clock of the runtime, which has the instants of pings too. */
  readonly openedMs?: number;
}

/** When the end of a lease is not known, it is asked for again after this many milliseconds. */
const SOON_MS = 50;
/** And after so many, when the object cannot tell whether it has it. */
const LATER_MS = 60_000;

/** When a lease expires, or an instant soon when the object does not have it. */
export async function endOf(
  { ask, nowMs: clock }: Pick<SocketLeaseHost, "ask"> & { readonly nowMs: () => number },
  { policy, key }: Attachment,
  id: string,
): Promise<number> {
  try {
    return await ask(policy, key, (_, { claims }, nowMs) => claims.get(id)?.expiresAtMs ?? nowMs + SOON_MS);
  } catch {
    return clock() + LATER_MS;
  }
}

/** What a socket's holder asked for. */
export function attachmentOf({ policy, key, graceMs, pingWithinMs }: AcquireCall): Attachment {
  return {
    policy,
    key,
    ...(graceMs !== undefined && { graceMs }),
    ...(pingWithinMs !== undefined && { pingWithinMs, openedMs: readClockMs() }),
  };
}

/**
 * Whether the holder was to ping and has not. TCP tells late of a machine that lost its power, and workerd never of a
 * connection that was reset as the socket was opened.
 */
export function isSilent(ctx: DurableObjectState, socket: WebSocket, attachment: Attachment): boolean {
  const { pingWithinMs, openedMs = 0 } = attachment;
  if (pingWithinMs === undefined) return false;
  const pingedMs = ctx.getWebSocketAutoResponseTimestamp(socket)?.getTime() ?? 0;
  return readClockMs() - Math.max(openedMs, pingedMs) > pingWithinMs;
}

/** Whom a socket's lease is asked of. */
export interface SocketLeaseHost {
  readonly ask: AskKey;
  readonly anywhere: AskAnywhere;
}

/**
 * Renews a lease. The lifetime is that which the acquire asked for, unless `ttlMs` says another.
 *
 * @param ttlMs from now on, in milliseconds
 */
export function renewed(
  { anywhere }: SocketLeaseHost,
  { policy, key }: Attachment,
  id: string,
  ttlMs?: number,
): Maybe<Lease | Missing> {
  return anywhere<Lease | Missing>(
    policy,
    key,
    (operations, keyState, nowMs) => operations.renew(keyState, id, ttlMs, nowMs),
    {
      method: "renew",
      args: ttlMs === undefined ? [policy, key, id] : [policy, key, id, ttlMs],
      read: (returned) => JSON.parse(returned as string) as Lease | Missing,
    },
  );
}

/** Releases a lease. */
export function released(
  { anywhere }: SocketLeaseHost,
  { policy, key }: Attachment,
  id: string,
): Maybe<boolean> {
  return anywhere(policy, key, (operations, keyState, nowMs) => operations.release(keyState, id, nowMs), {
    method: "release",
    args: [policy, key, id],
    read: (returned) => returned === true,
  });
}

/**
 * Renews a lease for another holder: another socket, or the link with this id. `Missing`: it has ended, or a socket's is
 * asked for and it never was one's, or the other way round.
 */
export function takenOver(
  { ask }: Pick<SocketLeaseHost, "ask">,
  { policy, key }: Attachment,
  id: string,
  link?: string,
): Maybe<Decided | Missing> {
  return ask<Decided | Missing>(policy, key, (operations, keyState, nowMs) => {
    const isSocket = keyState.claims.get(id)?.isSocket === true;
    if (isSocket !== (link === undefined)) return { missing: true };
    const decided = (lease: Lease | Missing): Decided | Missing =>
      "missing" in lease ? lease : { rules: admitted(withoutTaking(keyState.ruleStates, nowMs, 0)), lease };
    const lease = operations.renew(keyState, id, undefined, nowMs, { to: link });
    return lease instanceof Promise ? lease.then(decided) : decided(lease);
  });
}

/** The lease was admitted long ago, whatever its rules would say of a call now. */
function admitted(rules: readonly RuleDecision[]): RuleDecision[] {
  return rules.map((rule) => ({ ...rule, success: true, retryAfterMs: 0, reason: "ok" }));
}

/** Tells what is wrong as HTTP tells a problem, and closes the socket. */
export function refuse(
  socket: WebSocket,
  closeCode: number,
  [status, code, title]: (typeof PROBLEMS)[keyof typeof PROBLEMS],
  detail: string,
): void {
  socket.send(JSON.stringify({ type: `urn:weir:problem:${code}`, title, status, detail }));
  socket.close(closeCode, closeCode === CLOSE_LOST ? detail : code);
}

/** Takes a lease away from the sockets that have it: what becomes of them does not end it any more. */
export function leaveToOther(sockets: readonly WebSocket[], id: string): void {
  for (const socket of sockets) {
    if ((socket.deserializeAttachment() as Attachment).id !== id) continue;
    withoutLease(socket);
    socket.close(CLOSE_RESUMED, "the lease was resumed by another socket");
  }
}

/** What becomes of a socket does not end its lease any more. */
export function withoutLease(socket: WebSocket): void {
  const { id: _, ...rest } = socket.deserializeAttachment() as Attachment;
  socket.serializeAttachment(rest satisfies Attachment);
}
