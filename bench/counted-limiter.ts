import type { Counted } from "./counting.ts";

/** A limiter that counts what it does (counting.ts), over HTTP. */
export class Limiter {
  readonly #url: string;
  readonly #token: string;
  #requests = 0;

  constructor(url: string, token: string) {
    this.#url = url;
    this.#token = token;
  }

  /** @throws Error when the answer is an error */
  async call(
    method: string,
    path: string,
    body?: object,
  ): Promise<{ readonly lease?: { readonly id: string }; readonly hold?: { readonly id: string } }> {
    this.#requests += 1;
    const headers = { authorization: `Bearer ${this.#token}`, "content-type": "application/json" };
    const response = await fetch(`${this.#url}${path}`, {
      method,
      headers,
      body: JSON.stringify(body) ?? null,
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text === "" ? {} : JSON.parse(text);
  }

  /** Time passes, and alarms come. */
  async later(ms: number): Promise<void> {
    await fetch(`${this.#url}/later?ms=${ms}`);
  }

  async counts(): Promise<Counted & { readonly requests: number }> {
    const counted = (await (await fetch(`${this.#url}/counts`)).json()) as Counted;
    return { ...counted, requests: this.#requests };
  }
}
