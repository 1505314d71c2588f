/** Redis's replies in JSON, as Upstash's REST API writes them. */
import { ErrorReply, RESP_TYPES } from "redis";

/** An answer over HTTP. `body` is JSON. */
export interface Answer {
  readonly status: number;
  readonly body: string;
}

/** The type mapping for node-redis when strings are answered in base64: they are read as bytes, not as text. */
export const AS_BYTES = { [RESP_TYPES.BLOB_STRING]: Buffer, [RESP_TYPES.SIMPLE_STRING]: Buffer };
/** The type mapping when strings are answered as they are. */
export const AS_TEXT = {};

const OK = Buffer.from("OK");

/** The answer to one command. */
export function answerOne(reply: unknown): Answer {
  return { status: reply instanceof ErrorReply ? 400 : 200, body: JSON.stringify(member(reply)) };
}

/** The answer to several commands. A command that failed has its error in its place. */
export function answerSeveral(replies: readonly unknown[]): Answer {
  return { status: 200, body: JSON.stringify(replies.map(member)) };
}

export function answerError(status: number, error: string): Answer {
  return { status, body: JSON.stringify({ error }) };
}

function member(reply: unknown): { result: unknown } | { error: string } {
  if (reply instanceof ErrorReply) return { error: reply.message };
  // Upstash does not encode a reply that is "OK". Within an array it does, and its client decodes every string there.
  if (isBytes(reply) && reply.equals(OK)) return { result: "OK" };
  return { result: plain(reply) };
}

/** A reply in the types of JSON. Bytes become strings in base64. */
function plain(reply: unknown): unknown {
  if (isBytes(reply)) return reply.toString("base64");
  if (Array.isArray(reply)) return reply.map(plain);
  if (reply instanceof ErrorReply) return reply.message;
  return reply;
}

/** For the compiler: beside the types of Workers it does not know that Node's Buffer is a Uint8Array. */
function isBytes(reply: unknown): reply is Buffer {
  return reply instanceof Uint8Array;
}
