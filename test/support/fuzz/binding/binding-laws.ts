/** The laws of every outcome of a call over the service binding. */
import { faultInDecision, isMadeTwice } from "../http-laws.ts";
import type { DrawnCall } from "./drawn-call.ts";

/** The longest answer or message, in UTF-16 units. */
const MAX_TEXT = 65_536;
const MAX_ERRORS = 20;

export function faultInAnswer({ isMethod, method }: DrawnCall, answer: unknown): string | undefined {
  if (!isMethod) return "an answer of what is no method";
  if (answer === undefined) return undefined;
  if (typeof answer !== "object" || answer === null) return "an answer that is no object";
  const { slot: _, renew: _renew, release: _release, ...fields } = answer as Record<string, unknown>;
  if (JSON.stringify(fields).length > MAX_TEXT) return "an answer of over 64 KiB";
  const decisions = Array.isArray(fields["decisions"])
    ? (fields["decisions"] as Record<string, unknown>[])
    : [];
  const all = "rules" in fields ? [fields, ...decisions] : decisions;
  // A lease is confirmed after its wait. A reset in between leaves nothing to confirm.
  if (method === "acquire" && fields["reason"] === "degraded") return undefined;
  return all.map(faultInDecision).find((wrong) => wrong !== undefined);
}

export function faultInError({ isMethod, foreign }: DrawnCall, thrown: unknown): string | undefined {
  if (!(thrown instanceof Error)) return "what is thrown is no error";
  if (thrown.message.length > MAX_TEXT) return "an error of over 64 KiB";
  const { status, code, errors = [] } = thrown as Error & Record<string, unknown>;
  if (thrown.name !== "LimiterError") {
    // The runtime's own: the method does not exist, or an argument cannot be sent.
    if (!isMethod) return undefined;
    return foreign !== undefined && isUnsent(thrown) ? undefined : "an error that is no LimiterError";
  }
  if (!isMethod) return "a LimiterError of what is no method";
  const isRefusal = Number.isInteger(status) && Number(status) >= 400 && Number(status) < 500;
  if (!isRefusal && !isMadeTwice(thrown.message)) return "a status that is none of 4xx";
  if (typeof code !== "string" || code === "") return "an error without a code";
  return Array.isArray(errors) && errors.length <= MAX_ERRORS ? undefined : "more than 20 errors";
}

/** Whether the runtime refused to send the arguments, or the caller's own code threw while they were read. */
function isUnsent({ name, message }: Error): boolean {
  return name === "DataCloneError" || message.startsWith("thrown by a getter of the caller");
}
