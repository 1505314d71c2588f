/** Calls of a limiter over HTTP, with the instants between which each was decided. */
export { setTimeout as pause } from "node:timers/promises";

/** An answered call. Its decision lies between the two instants, in milliseconds of this machine's clock. */
export interface Answered {
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>>;
  readonly sentAtMs: number;
  readonly receivedAtMs: number;
}

/** Longer than any call that waits here, in milliseconds. */
const PATIENCE_MS = 20_000;
/** The most attempts of a call whose answer must be known. */
const ATTEMPTS = 5;

export class Calls {
  readonly url: string;
  readonly token: string;
  readonly #keyPrefix: string;
  /** By policy: what each of its calls names besides. */
  readonly fields = new Map<unknown, Readonly<Record<string, string>>>();
  made = 0;
  lost = 0;

  constructor(url: string, token: string, keyPrefix: string) {
    this.url = url.replace(/\/+$/, "");
    this.token = token;
    this.#keyPrefix = keyPrefix;
  }

  /** Makes the key as new, if the token may. */
  async reset(policy: string, key: string): Promise<void> {
    await this.make("DELETE", `/v1/policies/${policy}/keys/${encodeURIComponent(key)}`);
  }

  freshKey(): string {
    return `${this.#keyPrefix}verify-${crypto.randomUUID()}`;
  }

  async make(method: string, path: string, body?: object): Promise<Answered | undefined> {
    this.made += 1;
    const fields = body && "policy" in body ? this.fields.get(body.policy) : {};
    const sentAtMs = Math.floor(performance.now());
    try {
      const response = await fetch(this.url + path, {
        method,
        headers: { authorization: `Bearer ${this.token}`, "content-type": "application/json" },
        signal: AbortSignal.timeout(PATIENCE_MS),
        ...(body && { body: JSON.stringify({ ...fields, ...body }) }),
      });
      const text = await response.text();
      const receivedAtMs = Math.ceil(performance.now());
      return { status: response.status, body: parsed(text), sentAtMs, receivedAtMs };
    } catch {
      this.lost += 1;
      return undefined;
    }
  }

  /** Repeats a call until it is answered. It takes effect once. */
  async makeOnce(method: string, path: string, body: object): Promise<Answered | undefined> {
    const asked = { ...body, idempotencyKey: crypto.randomUUID() };
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      const answered = await this.make(method, path, asked);
      if (answered !== undefined) return answered;
    }
    return undefined;
  }
}

function parsed(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
