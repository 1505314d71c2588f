/** Whether a lease that a socket holds excludes others, and is free again when the socket is closed. */
import { pause, type Calls } from "./calls.ts";
import type { LeasePolicy } from "./policies.ts";
import { type Finding, untested } from "./report.ts";

const OPENS_WITHIN_MS = 10_000;
/** The longest time until a closed socket's slots are free: an object may have to start. */
const FREE_WITHIN_MS = 10_000;
const NO_SOCKET = "no socket was opened, or it was granted no lease";

interface Socket {
  readonly decision: Readonly<Record<string, unknown>> | undefined;
  readonly closed: Promise<number>;
  close(): void;
}

async function open(calls: Calls, { policy, limit }: LeasePolicy, key: string): Promise<Socket> {
  const query = new URLSearchParams({ ...calls.fields.get(policy), policy, key, units: String(limit) });
  const url = `${calls.url.replace(/^http/, "ws")}/v1/leases/socket?${query.toString()}`;
  // Node takes headers, which browsers do not.
  const options = { headers: { authorization: `Bearer ${calls.token}` } } as unknown as string[];
  const socket = new WebSocket(url, options);
  calls.made += 1;
  const closed = new Promise<number>((done) => socket.addEventListener("close", ({ code }) => done(code)));
  const first = new Promise<Record<string, unknown> | undefined>((done) => {
    socket.addEventListener("message", ({ data }) =>
      done(JSON.parse(String(data)) as Record<string, unknown>),
    );
    socket.addEventListener("error", () => done(undefined));
  });
  const decision = await Promise.race([first, pause(OPENS_WITHIN_MS, undefined, { ref: false })]);
  return { decision, closed, close: () => socket.close(1000) };
}

/** Whether all slots are free now. They are released again. */
async function isFree(
  calls: Calls,
  { policy, limit, maxTtlMs }: LeasePolicy,
  key: string,
): Promise<boolean | undefined> {
  const answered = await calls.make("POST", "/v1/leases", {
    policy,
    key,
    units: limit,
    ttlMs: Math.min(1_000, maxTtlMs),
  });
  if (answered?.status !== 200) return undefined;
  const lease = answered.body["lease"] as { id: string } | undefined;
  if (lease !== undefined) await calls.make("DELETE", `/v1/leases/${lease.id}`);
  return lease !== undefined;
}

/** Milliseconds until all slots are free; `undefined`: they are not. */
async function freeAfterMs(calls: Calls, lease: LeasePolicy, key: string, withinMs: number) {
  const beginMs = performance.now();
  while (performance.now() - beginMs < withinMs) {
    if ((await isFree(calls, lease, key)) === true) return Math.round(performance.now() - beginMs);
    await pause(100);
  }
  return undefined;
}

/** Opens a socket, requests its slots elsewhere, closes it, and requests them again. */
export async function verifySockets(calls: Calls, lease: LeasePolicy): Promise<Finding> {
  const name = `a lease of ${lease.policy} that a socket holds ends with the socket`;
  const key = calls.freshKey();
  const socket = await open(calls, lease, key);
  if (socket.decision?.["success"] !== true) {
    socket.close();
    return untested(name, NO_SOCKET);
  }
  const others = await Promise.all([1, 2, 3].map(() => isFree(calls, lease, key)));
  socket.close();
  const afterMs = await freeAfterMs(calls, lease, key, FREE_WITHIN_MS);
  const says = [
    others.includes(true)
      ? "others got its slots in the meantime"
      : "no other call got its slots in the meantime",
    afterMs === undefined
      ? `its slots were not free ${FREE_WITHIN_MS / 1_000} s after it was closed`
      : `its slots were free ${afterMs} ms after it was closed`,
  ];
  return { name, verdict: others.includes(true) || afterMs === undefined ? "BROKEN" : "holds", says };
}

/** Keeps a socket open while the user deploys, and reports what happened to it and to its slots. */
export async function watchRedeployment(calls: Calls, lease: LeasePolicy, lastsMs: number): Promise<Finding> {
  const name = `a socket of ${lease.policy} over a redeployment`;
  const key = calls.freshKey();
  const socket = await open(calls, lease, key);
  if (socket.decision?.["success"] !== true) return untested(name, NO_SOCKET);
  const beginMs = performance.now();
  let code: number | undefined;
  void socket.closed.then((closedWith) => (code = closedWith));
  const isOver = () => code !== undefined || performance.now() - beginMs > lastsMs;
  let isTaken = false;
  while (!isOver()) {
    // A slot that was granted while the socket closed is no second holder.
    if ((await isFree(calls, lease, key)) === true && code === undefined) {
      await pause(1_000);
      isTaken ||= code === undefined;
    }
    await pause(500);
  }
  if (code === undefined) {
    socket.close();
    const says = [`it stayed open for ${lastsMs / 1_000} s: nothing was deployed, or it survived that`];
    return { name, verdict: isTaken ? "BROKEN" : "measured", says };
  }
  const cutAfterS = ((performance.now() - beginMs) / 1_000).toFixed(1);
  const freeMs = await freeAfterMs(calls, lease, key, 2 * FREE_WITHIN_MS);
  const says = [
    isTaken ? "others got its slots while it was open" : "no other call got its slots while it was open",
    `it was cut after ${cutAfterS} s, with code ${code}; its slots were free again after ${freeMs ?? "over 20000"} ms`,
  ];
  return { name, verdict: isTaken ? "BROKEN" : "measured", says };
}
