import type { Failure } from "../../client/transports/send-batch.ts";
import type { LogSettings } from "../../core/policies/parse-policies.ts";
import type { Decision } from "../../core/protocol/decision.ts";

/** Logs calls as the table LOG configures: JSON lines without tokens, and by default without keys. */
export function callLog(
  { denials, failures, keys }: Omit<LogSettings, "traces">,
  random: () => number,
  print: (line: string) => void,
) {
  return {
    hasDenials: denials > 0,
    decided({ success, policy, key, reason, source, retryAfterMs }: Decision): void {
      if (success || random() >= denials) return;
      const place = { policy, ...(keys && { key }) };
      print(JSON.stringify({ event: "denial", ...place, reason, source, retryAfterMs, rate: denials }));
    },
    failed(policy: string, { cause, calls, seconds }: Failure): void {
      if (random() >= failures) return;
      // An error may quote a key.
      const text = keys ? cause : cause.replaceAll(/"(?:[^"\\]|\\.)*"/g, '"…"');
      const message = `no answer from the object: ${text}`;
      print(
        JSON.stringify({
          event: "failure",
          policy,
          message,
          calls,
          ...(seconds && { seconds }),
          rate: failures,
        }),
      );
    },
  };
}
