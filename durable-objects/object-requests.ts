import { unsupportedOf, type AcquireCall, type IdleCall, type LimitCall } from "../core/protocol/messages.ts";
import type { ObjectParts } from "./object-parts.ts";

type Message = AcquireCall | IdleCall | LimitCall;

/** The message of a request: in its address when it opens a socket, else in its body. */
export async function messageOf(request: Request): Promise<Message> {
  const text = new URL(request.url).searchParams.get("call") ?? (await request.text());
  return JSON.parse(text) as Message;
}

/** Answers the calls that come as requests and not over RPC: those that wait, and sockets. */
export async function answerRequest(
  request: Request,
  message: Message,
  { sockets, waiting, hear }: Pick<ObjectParts, "sockets" | "waiting" | "hear">,
): Promise<Response> {
  const { pathname } = new URL(request.url);
  const unsupported = unsupportedOf(message);
  if (unsupported !== undefined) return Response.json(unsupported);
  hear(message.policy, message.key, message);
  if (pathname === "/socket") return sockets.accept(message as AcquireCall);
  return Response.json(await waiting.answer(pathname, message, request.signal));
}
