/** The limiter of a worker that is told by requests what to call (contract-caller.ts). */
import type { FieldError } from "../../core/protocol/problems.ts";
import { LimiterError } from "../../core/protocol/problems.ts";
import type { Told } from "./contract-caller.ts";
import type { Called } from "./limiter-contract.ts";

interface Answered {
  readonly answer?: unknown;
  readonly error?: {
    readonly status: number;
    readonly code: string;
    readonly errors: readonly FieldError[];
    readonly message: string;
  };
}

/** @param url of the worker */
export function toldLimiter(url: string, way: Told["way"]): Called {
  const call = async (method: Told["method"], asked: unknown): Promise<unknown> => {
    const response = await fetch(url, { method: "POST", body: JSON.stringify({ way, method, asked }) });
    const text = await response.text();
    if (!response.ok) throw new Error(`the caller failed: ${text}`);
    const { answer, error } = JSON.parse(text) as Answered;
    if (error === undefined) return answer;
    const { message: title } = error;
    throw new LimiterError({ ...error, title, detail: title }, title);
  };
  return new Proxy({} as Called, {
    // A promise of it must not take it for another promise.
    get: (_, method) =>
      method === "then" ? undefined : (asked: unknown) => call(method as Told["method"], asked),
  });
}
