/** A lease that ends with a WebSocket: the handshake, and what is passed on between a caller and an object. */
import { readClockMs } from "../../core/clock.ts";
import { CLOSE_BROKEN, CLOSE_FAILED, CLOSE_NORMAL } from "../../core/protocol/messages.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { callSocket } from "../calls/leases.ts";
import type { CallContext } from "./call.ts";

/** Opens the socket, if the request asks for one. */
export async function openSocket(
  { env, client, principal, request }: CallContext,
  input: unknown,
): Promise<Response | Problem> {
  if (request?.headers.get("upgrade")?.toLowerCase() !== "websocket") {
    const detail = "the Upgrade header must be websocket";
    return new Problem(PROBLEMS.upgradeRequired, detail, { headers: { upgrade: "websocket" } });
  }
  const answered = await callSocket(client, principal, input);
  if (answered instanceof Problem) return answered;
  return env.SOCKETS === "relayed" ? relayed(request, answered.answer) : answered.answer;
}

/** What a socket is said to have been closed with when it broke, and when no code came: RFC 6455, section 7.1.5. */
const BROKEN = 1006;
const WITHOUT_CODE = 1005;
/** All that a caller has to say. */
const PING = "ping";
/** Of pings that are closer one is passed on, in milliseconds: a caller that reads no answers would fill the memory with them. */
const PINGS_APART_MS = 100;

/**
 * Whether the runtime will write the 101: a handshake over HTTP has a key and this version (RFC 6455, section 4.2.1). The
 * runtime refuses others after the worker has answered, and tells only whoever has the end that the worker answered with.
 */
function isHandshake({ headers }: Request): boolean {
  return headers.has("sec-websocket-key") && headers.get("sec-websocket-version") === "13";
}

/**
 * Passes on what a caller and an object say to each other on a socket, rather than the socket itself.
 *
 * When the runtime cannot write the 101 because the connection was reset, workerd (2026-10-23) keeps a socket that was
 * passed on open for ever, and tells its object nothing; of one that ends here it tells.
 */
function relayed(request: Request, answer: Response): Response {
  const { webSocket: object } = answer;
  if (object === null || !isHandshake(request)) return answer;
  const { 0: client, 1: caller } = new WebSocketPair();
  object.accept();
  caller.accept();
  let pingedMs = -Infinity;
  caller.addEventListener("message", ({ data }) => {
    const nowMs = readClockMs();
    if (data !== PING || nowMs - pingedMs < PINGS_APART_MS) return;
    pingedMs = nowMs;
    if (object.readyState === WebSocket.OPEN) object.send(PING);
  });
  object.addEventListener("message", ({ data }) => {
    if (caller.readyState === WebSocket.OPEN) caller.send(data as string);
  });
  // A caller may say any code, also one that nobody may say on.
  caller.addEventListener("close", ({ wasClean }) => object.close(wasClean ? CLOSE_NORMAL : CLOSE_BROKEN));
  caller.addEventListener("error", () => object.close(CLOSE_BROKEN));
  const failed = () => caller.close(CLOSE_FAILED, "the limiter failed");
  object.addEventListener("close", ({ code, reason }) => {
    if (code === BROKEN) failed();
    else if (code === WITHOUT_CODE) caller.close();
    else caller.close(code, reason);
  });
  object.addEventListener("error", failed);
  return new Response(null, { status: 101, webSocket: client });
}
