/** Redis' replies, as Upstash's REST API writes them in JSON. */
import { ErrorReply, RESP_TYPES } from "redis";

export interface Answer {
  readonly status: number;
  readonly body: string;
}

/** How node-redis is to read strings: as bytes, when they go on in base64 and need not be text. */
export const AS_BYTES = { [RESP_TYPES.BLOB_STRING]: Buffer, [RESP_TYPES.SIMPLE_STRING]: Buffer };
export const AS_TEXT = {};

const OK = Buffer.from("OK");

/** The answer to one command. */
export function answerOne(reply: unknown): Answer {
  return { status: reply instanceof ErrorReply ? 400 : 200, body: JSON.stringify(member(reply)) };
}

/** The answer to several: that some failed is said in their places. */
export function answerSeveral(replies: readonly unknown[]): Answer {
  return { status: 200, body: JSON.stringify(replies.map(member)) };
}

export function answerError(status: number, error: string): Answer {
  return { status, body: JSON.stringify({ error }) };
}

function member(reply: unknown): { result: unknown } | { error: string } {
  if (reply instanceof ErrorReply) return { error: reply.message };
  // Upstash leaves this one in the clear. Only here: within an array its client decodes every string.
  if (isBytes(reply) && reply.equals(OK)) return { result: "OK" };
  return { result: plain(reply) };
}

/** A reply in JSON's own types: strings in base64 where node-redis gave bytes. */
function plain(reply: unknown): unknown {
  if (isBytes(reply)) return reply.toString("base64");
  if (Array.isArray(reply)) return reply.map(plain);
  if (reply instanceof ErrorReply) return reply.message;
  return reply;
}

/** Says it to the compiler: beside the types of Workers, those of Node's Buffer tell it nothing. */
function isBytes(reply: unknown): reply is Buffer {
  return reply instanceof Uint8Array;
}
