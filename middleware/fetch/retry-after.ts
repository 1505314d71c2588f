/** What a response says of when to come again. */

/** The statuses with which servers ask to be left alone for a while. */
const LATER = [429, 503];
/** Methods that do the same when they are done twice. A 503 does not say whether anything was done. */
const IDEMPOTENT = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"];

/** The three forms of RFC 9110 begin with a day of the week, and have a time. */
const HTTP_DATE = /^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? .*\d\d:\d\d:\d\d/;

/** How long the server asks to be left alone, in milliseconds; `undefined`: it does not ask, or does not say. */
export function askedPauseMs(
  response: Pick<Response, "status" | "headers">,
  nowMs: number,
): number | undefined {
  if (!LATER.includes(response.status)) return undefined;
  const said = response.headers.get("retry-after")?.trim() ?? "";
  if (/^\d{1,12}$/.test(said)) return Number(said) * 1_000;
  // `Date.parse` takes "-5" and "1.5" for days in 2001.
  const atMs = HTTP_DATE.test(said) ? Date.parse(said) : Number.NaN;
  if (Number.isNaN(atMs)) return undefined;
  // The server's clock may be another: its own date beside it says how much of that is left.
  const serverMs = Date.parse(response.headers.get("date") ?? "");
  const leftMs = atMs - (Number.isNaN(serverMs) ? nowMs : serverMs);
  // An instant that is over says nothing: whoever takes it for "now" asks again and again.
  return leftMs < 0 ? undefined : leftMs;
}

/** Whether a request that was answered with this status can be made again: its body is still there, and it may be. */
export function isRepeatable(
  input: string | URL | Request,
  init: RequestInit | undefined,
  status: number,
): boolean {
  const request = typeof input === "object" && "method" in input ? input : undefined;
  const method = (init?.method ?? request?.method ?? "GET").toUpperCase();
  if (status === 503 && !IDEMPOTENT.includes(method)) return false;
  const body: unknown = init?.body ?? request?.body ?? null;
  return body === null || typeof body === "string" || HELD_WHOLE.some((type) => body instanceof type);
}

/** Bodies that can be sent again. Of anything else, streams above all, nobody knows what is left. */
const HELD_WHOLE = [
  ArrayBuffer,
  Blob,
  FormData,
  URLSearchParams,
  Object.getPrototypeOf(Uint8Array) as typeof Uint8Array,
];
