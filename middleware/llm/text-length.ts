/** The length of a model's input and output, in bytes of UTF-8, from which tokens are estimated. */
import { type Json, objectIn } from "./dialects.ts";

/** Tokens of an image, a sound or a file, whose bytes say nothing about them. */
const MEDIA_TOKENS = 2_000;
const MEDIA_TYPES = ["image", "image_url", "input_image", "input_audio", "input_file", "file", "document"];
/** Base64 of media begins with its type, or stands under this name. */
const isMediaText = (name: string, value: string) =>
  value.startsWith("data:") || (name === "data" && value.length > 256);

const encoder = new TextEncoder();

/** Tokens of a request, estimated from its JSON: its syntax stands for what providers add to each message. */
export function estimatedInput(request: unknown, bytesPerToken: number): number {
  let media = 0;
  const text = JSON.stringify(request, (name, value: unknown) => {
    // A Buffer of Node comes here as its own JSON.
    if (ArrayBuffer.isView(value) || objectIn(value)?.["type"] === "Buffer") return "";
    if (typeof value === "string") return isMediaText(name, value) ? "" : value;
    if (MEDIA_TYPES.includes(String(objectIn(value)?.["type"]))) media += 1;
    return value;
  });
  return Math.ceil(bytesOf(text) / bytesPerToken) + media * MEDIA_TOKENS;
}

export function bytesOf(text: string): number {
  return encoder.encode(text).length;
}

/** Where an event has new output, or an answer all of it. */
const OUTPUT_FIELDS = ["delta", "choices", "output", "content"];
/** Texts beside the output. */
const OTHER_FIELDS = ["type", "role", "id", "object", "finish_reason", "stop_reason", "status", "logprobs"];

/** Bytes of the output in an event or an answer. */
export function outputBytes(answer: Json): number {
  return OUTPUT_FIELDS.reduce((bytes, field) => bytes + textBytes(answer[field]), 0);
}

function textBytes(value: unknown): number {
  if (typeof value === "string") return bytesOf(value);
  if (typeof value !== "object" || value === null) return 0;
  return Object.entries(value)
    .filter(([name]) => !OTHER_FIELDS.includes(name))
    .reduce((bytes, [, each]) => bytes + textBytes(each), 0);
}
