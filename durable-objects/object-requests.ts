import { unsupportedOf, type AcquireCall, type IdleCall, type LimitCall } from "../core/protocol/messages.ts";
import type { ObjectParts } from "./object-parts.ts";

/** Answers the calls that come as requests and not over RPC: those that wait, and sockets. */
export async function answerRequest(
  request: Request,
  { sockets, waiting }: Pick<ObjectParts, "sockets" | "waiting">,
): Promise<Response> {
  const { pathname, searchParams } = new URL(request.url);
  const message = searchParams.get("call") ?? (await request.text());
  const call = JSON.parse(message) as AcquireCall | IdleCall | LimitCall;
  const unsupported = unsupportedOf(call);
  if (unsupported !== undefined) return Response.json(unsupported);
  if (pathname === "/socket") return sockets.accept(call as AcquireCall);
  return Response.json(await waiting.answer(pathname, call, request.signal));
}
