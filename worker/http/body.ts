import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";

/** The largest body that is read, in bytes. */
export const MAX_BODY_BYTES = 16_384;

/** How a body is read. */
interface Reading {
  /** It may be empty, also without a type, and is `{}` then. */
  readonly isOptional?: boolean | undefined;
  /** Absent: 16 KiB. */
  readonly mostBytes?: number | undefined;
}

/** Reads a JSON body. */
export async function readJson(
  request: Request,
  { isOptional = false, mostBytes = MAX_BODY_BYTES }: Reading,
): Promise<{ readonly value: unknown } | Problem> {
  const contentType = request.headers.get("content-type");
  if (contentType !== "application/json" && !isJson(contentType)) {
    // Only reading shows whether there is a body: an empty one may be announced as a stream.
    if (isOptional && contentType === null && (await isEmpty(request))) return NOTHING;
    const detail = `content-type is ${contentType === null ? "missing" : JSON.stringify(contentType)}: must be application/json`;
    return new Problem(PROBLEMS.unsupportedMediaType, detail, { headers: { accept: "application/json" } });
  }
  const encoding = request.headers.get("content-encoding");
  if (encoding !== null && encoding !== "identity") {
    return new Problem(
      PROBLEMS.unsupportedMediaType,
      `content-encoding is ${JSON.stringify(encoding)}: must be left out`,
    );
  }
  try {
    const bytes = await readBytes(request, mostBytes);
    if (bytes === undefined) return new Problem(PROBLEMS.tooLarge, `the body is over ${mostBytes} bytes`);
    if (isOptional && bytes.byteLength === 0) return NOTHING;
    return { value: decode(bytes) };
  } catch (error) {
    return malformed(error);
  }
}

/** @throws Error when the bytes are not JSON, or not UTF-8 */
export function decode(bytes: ArrayBuffer | Uint8Array): unknown {
  return JSON.parse(decoder.decode(bytes));
}

/** The problem of a body that is not JSON or not UTF-8, or that broke off. */
export function malformed(error: unknown): Problem {
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem(PROBLEMS.malformed, "the body must be JSON", { errors: [{ pointer: "", detail }] });
}

// Fatal, so that broken UTF-8 is an error and not another key.
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function isJson(contentType: string | null): boolean {
  return contentType !== null && /^application\/json\s*(;\s*charset="?utf-8"?\s*)?$/i.test(contentType);
}

const NOTHING = { value: {} };

/** Whether a request has no body. Only reading shows it: an empty one may be announced as a stream. */
export async function isEmpty(request: Request): Promise<boolean> {
  try {
    return (await readBytes(request, MAX_BODY_BYTES))?.byteLength === 0;
  } catch {
    return false;
  }
}

async function readBytes(request: Request, mostBytes: number): Promise<ArrayBuffer | Uint8Array | undefined> {
  const declared = request.headers.get("content-length");
  if (declared !== null) return Number(declared) > mostBytes ? undefined : request.arrayBuffer();
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of request.body ?? []) {
    if (length + chunk.length > mostBytes) return undefined;
    chunks.push(chunk);
    length += chunk.length;
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}
