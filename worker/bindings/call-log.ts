import type { Outage } from "../../client/transports/outages.ts";
import type { LogSettings } from "../../core/policies/parse-policies.ts";
import type { Decision } from "../../core/protocol/decision.ts";

/** Logs calls as the table LOG configures: JSON lines without tokens, and by default without keys. */
export class CallLog {
  readonly #settings: LogSettings;
  readonly #random: () => number;
  readonly #print: (line: string) => void;

  constructor(settings: LogSettings, random: () => number, print: (line: string) => void) {
    this.#settings = settings;
    this.#random = random;
    this.#print = print;
  }

  get hasDenials(): boolean {
    return this.#settings.denials > 0;
  }

  decided({ success, policy, key, reason, source, retryAfterMs }: Decision): void {
    const { denials, keys } = this.#settings;
    if (success || this.#random() >= denials) return;
    this.#write({
      event: "denial",
      policy,
      ...(keys && { key }),
      reason,
      source,
      retryAfterMs,
      rate: denials,
    });
  }

  failed(policy: string, { cause, calls, seconds }: Outage): void {
    const { failures, keys } = this.#settings;
    if (this.#random() >= failures) return;
    // An error may quote a key.
    const text = keys ? cause : cause.replaceAll(/"(?:[^"\\]|\\.)*"/g, '"…"');
    const message = `no answer from the object: ${text}`;
    this.#write({ event: "failure", policy, message, calls, ...(seconds && { seconds }), rate: failures });
  }

  #write(line: object): void {
    this.#print(JSON.stringify(line));
  }
}
