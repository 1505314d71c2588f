/** Calls over the service bindings of bound-caller.mjs. */
import type { TimedAnswer } from "./http-client.ts";

export class BoundClient {
  readonly #url: string;
  readonly #binding: string;

  /** @param url of the caller's worker */
  constructor(url: string, binding: string) {
    this.#url = url;
    this.#binding = binding;
  }

  /** An error that the binding threw is an answer with its status. */
  async call(method: string, argument: object, unusually: object = {}): Promise<TimedAnswer> {
    const sentAtMs = Date.now();
    const body = JSON.stringify({ binding: this.#binding, method, argument, unusually });
    const response = await fetch(this.#url, { method: "POST", body });
    const answer = (await response.json()) as Pick<TimedAnswer, "status" | "body">;
    return { ...answer, sentAtMs, receivedAtMs: Date.now() };
  }
}
