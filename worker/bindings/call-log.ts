import type { LogSettings } from "../../core/policies/parse-policies.ts";
import type { Decision } from "../../core/protocol/decision.ts";

/**
 * Logs calls as the table LOG says: a line of JSON each, which has the part that is logged as `rate`. No line has a token,
 * and none has a key unless the table says so.
 */
export class CallLog {
  readonly #settings: LogSettings;
  readonly #random: () => number;
  readonly #print: (line: string) => void;

  constructor(settings: LogSettings, random: () => number, print: (line: string) => void) {
    this.#settings = settings;
    this.#random = random;
    this.#print = print;
  }

  /** Whether denials are logged at all. */
  get hasDenials(): boolean {
    return this.#settings.denials > 0;
  }

  /** Logs a denial, if it is one and its turn. */
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

  /** Logs that an object did not answer. */
  failed(policy: string, error: unknown): void {
    const { failures, keys } = this.#settings;
    if (this.#random() >= failures) return;
    // An error may quote a key.
    const text = keys ? String(error) : String(error).replaceAll(/"(?:[^"\\]|\\.)*"/g, '"…"');
    this.#write({ event: "failure", policy, message: `no answer from the object: ${text}`, rate: failures });
  }

  #write(line: object): void {
    this.#print(JSON.stringify(line));
  }
}
