/**
 * Works while it holds a slot of a policy, from anywhere outside Cloudflare. The slot is a lease that lives as long as a
 * WebSocket, so it is free when this process ends, in whatever way. A connection that is cut (by a deployment of Weir, say)
 * is opened again, and the new one resumes the lease.
 */

/** Where the slot is, and how to get there. */
export interface SlotOptions {
  /** As `https://weir.example.com`. */
  readonly url: string;
  readonly token: string;
  readonly policy: string;
  readonly key: string;
  /** Says something so often, in milliseconds, so that nothing takes the connection for dead. At most 60,000. */
  readonly pingMs?: number;
}

/** What the work gets. */
export interface Slot {
  /** It rises with every lease of the key: send it with each write, and refuse lower ones where they arrive. */
  readonly fencingToken: number;
  /** Aborted when the slot is lost: another holder may have it. */
  readonly lost: AbortSignal;
}

/** When the connection breaks, the slot waits for this long: a connection takes less than a second. */
const GRACE_MS = 5_000;
const AGAIN_MS = 250;
/** A connection that is not there after this long is tried again. */
const PATIENCE_MS = 2_000;
const PING_MS = 30_000;
/** Without a ping for so long the slot is free: this machine has no power, or no network. */
const PING_WITHIN_MS = 90_000;

interface Lease {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
}

/** A message of the socket: the decision comes first, then how long the lease lasts from now on. */
interface Message {
  readonly success?: boolean;
  readonly lease?: Lease;
  readonly renewed?: { readonly expiresAfterMs: number };
}

/** Works in a slot. Returns what the work returns; `undefined`: there is no free slot. */
export async function inSlot<Result>(
  options: SlotOptions,
  work: (slot: Slot) => Promise<Result>,
): Promise<Result | undefined> {
  const lost = new AbortController();
  let socket = await open(options);
  const first = socket?.lease;
  if (socket === undefined || first === undefined) return undefined;
  let isDone = false;
  const keep = async () => {
    while (!isDone && socket !== undefined) {
      const untilMs = await socket.broken;
      socket = isDone ? undefined : await reopen(options, first.id, untilMs);
    }
    if (!isDone) lost.abort(new Error("the slot is lost"));
    socket?.close();
  };
  void keep();
  try {
    return await work({ fencingToken: first.fencingToken, lost: lost.signal });
  } finally {
    isDone = true;
    socket?.close();
  }
}

/** Resumes a lease, until it must have ended. */
async function reopen(options: SlotOptions, id: string, untilMs: number): Promise<Open | undefined> {
  while (Date.now() < untilMs) {
    try {
      // Told that it has ended, we do not try again.
      const socket = await open(options, id);
      return socket?.lease === undefined ? undefined : socket;
    } catch {
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }
  return undefined;
}

/** An open connection. */
interface Open {
  readonly lease: Lease | undefined;
  /** Settles when the connection has ended, with the instant from which the slot is lost. */
  readonly broken: Promise<number>;
  close(): void;
}

/** Node's WebSocket takes headers, which browsers do not. */
const NodeWebSocket = WebSocket as unknown as new (
  url: string,
  options: { readonly headers: Record<string, string> },
) => WebSocket;

/** Opens a socket; `undefined`: denied. @throws Error when there is no connection */
function open(
  { url, token, policy, key, pingMs = PING_MS }: SlotOptions,
  resume?: string,
): Promise<Open | undefined> {
  const query = new URLSearchParams({
    policy,
    key,
    graceMs: `${GRACE_MS}`,
    pingWithinMs: `${PING_WITHIN_MS}`,
  });
  if (resume !== undefined) query.set("resume", resume);
  const address = `${url.replace(/^http/, "ws")}/v1/leases/socket?${query.toString()}`;
  const socket = new NodeWebSocket(address, { headers: { authorization: `Bearer ${token}` } });
  const ping = setInterval(() => socket.readyState === WebSocket.OPEN && socket.send("ping"), pingMs);
  return new Promise((resolve, reject) => {
    let endsAtMs = 0;
    let tell: (untilMs: number) => void = () => undefined;
    const broken = new Promise<number>((done) => (tell = done));
    const patience = setTimeout(() => {
      end();
      socket.close();
    }, PATIENCE_MS);
    // Node says that a socket has closed when its connection is gone too, some seconds after its last message.
    const watch = setInterval(() => socket.readyState > WebSocket.OPEN && end(), AGAIN_MS);
    const end = () => {
      clearInterval(ping);
      clearInterval(watch);
      clearTimeout(patience);
      tell(Math.min(endsAtMs, Date.now() + GRACE_MS));
      reject(new Error("no connection"));
    };
    socket.addEventListener("error", end);
    socket.addEventListener("close", end);
    socket.addEventListener("message", ({ data }) => {
      if (data === "pong") return;
      const { success, lease, renewed } = JSON.parse(String(data)) as Message;
      const { expiresAfterMs } = renewed ?? lease ?? {};
      if (expiresAfterMs !== undefined) endsAtMs = Date.now() + expiresAfterMs;
      if (renewed !== undefined) return;
      clearTimeout(patience);
      // Anything but an admission is the last message of its socket.
      resolve(success === true ? { lease, broken, close: () => socket.close(1_000) } : undefined);
    });
  });
}
