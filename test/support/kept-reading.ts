/** Reads a kept state folder with the present bundle, at a later time that the test chooses. */
import { cpSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Serving } from "../../scripts/workerd.ts";
import { HttpClient, type TimedAnswer } from "./http-client.ts";
import { KEPT, KEPT_POLICIES, pathOf, readKept, STEPS, type KeptState } from "./kept-state.ts";
import { makeState, removeState, serveBundle } from "./served.ts";

/** An instant between these bounds. */
export interface Span {
  readonly fromMs: number;
  readonly toMs: number;
}

export interface Decided {
  readonly name: string;
  readonly success: boolean;
  readonly remaining: number;
  readonly resetAfterMs: number;
  readonly retryAfterMs: number;
  readonly reason: string;
}

/** An answer, and when it was decided. */
export interface Read {
  readonly status: number;
  readonly body: Record<string, unknown>;
  readonly now: Span;
  /** The values of each rule, by its name. */
  readonly rules: Readonly<Record<string, Decided>>;
}

/** A copy of the folder, served with a clock that shows `laterMs` after the folder was written. */
export class Reading {
  readonly kept: KeptState;
  readonly #version: string;
  readonly #laterMs: number;
  readonly #policies: object;
  #folder = "";
  #shiftMs = 0;
  #serving: Serving | undefined;
  #client: HttpClient | undefined;

  constructor(version: string, laterMs: number, policies: object = KEPT_POLICIES) {
    this.kept = readKept(version);
    this.#laterMs = laterMs;
    this.#policies = policies;
    this.#version = version;
  }

  async start(): Promise<void> {
    this.#folder = makeState();
    cpSync(join(KEPT, this.#version), join(this.#folder, "state"), { recursive: true });
    mkdirSync(join(this.#folder, "main"));
    this.#shiftMs = this.kept.writtenAtMs + this.#laterMs - Date.now();
    await this.#serve();
  }

  /** Kills the process and serves its state. The clock continues. */
  async crash(): Promise<void> {
    await this.#end();
    await this.#serve();
  }

  async stop(): Promise<void> {
    await this.#end();
    removeState(this.#folder);
  }

  async call(method: string, path: string, body?: unknown): Promise<Read> {
    if (this.#client === undefined) throw new Error("it is not served");
    const answer: TimedAnswer = await this.#client.call(method, `/v1/${path}`, body);
    const now = { fromMs: answer.sentAtMs + this.#shiftMs, toMs: answer.receivedAtMs + this.#shiftMs };
    const rules = (answer.body["rules"] ?? []) as readonly Decided[];
    const byName = Object.fromEntries(rules.map((rule) => [rule.name, rule]));
    return { status: answer.status, body: answer.body, now, rules: byName };
  }

  limit(policy: string, key: string, cost: unknown): Promise<Read> {
    return this.call("POST", "limit", { policy, key, cost });
  }

  peek(policy: string, key: string): Promise<Read> {
    return this.call("GET", `policies/${policy}/keys/${encodeURIComponent(key)}`);
  }

  /** Makes a step's call again, with `others` in place of its fields of the same names. */
  again(name: string, others: object = {}): Promise<Read> {
    const step = STEPS[name];
    if (step === undefined) throw new Error(`there is no step ${name}`);
    const path = pathOf(step, this.kept.answers).slice("/v1/".length);
    return this.call(step.method, path, { ...step.body, ...others });
  }

  /** The answer to a step when the folder was written. */
  answered(name: string): Record<string, unknown> {
    return this.kept.answers[name]?.body ?? {};
  }

  /** When a call of a step was made; by default its first call. */
  when(name: string, call = 0): Span {
    const [fromMs = NaN, toMs = NaN] = this.kept.answers[name]?.times[call] ?? [];
    return { fromMs, toMs };
  }

  async #serve(): Promise<void> {
    const main = join(this.#folder, "main", "later.js");
    writeFileSync(main, laterModule(this.#shiftMs));
    this.#serving = await serveBundle(join(this.#folder, "state"), this.#policies, { main });
    this.#client = new HttpClient(this.#serving.url, 1);
  }

  async #end(): Promise<void> {
    this.#client?.close();
    await this.#serving?.stop("SIGKILL");
  }
}

export function laterBy({ fromMs, toMs }: Span, ms: number): Span {
  return { fromMs: fromMs + ms, toMs: toMs + ms };
}

/** The time from `now` until `then` in milliseconds, at least and at most. */
export function until(then: Span, now: Span): { readonly least: number; readonly most: number } {
  return { least: then.fromMs - now.toMs, most: then.toMs - now.fromMs };
}

export interface Rate {
  readonly limit: number;
  readonly window: number;
  readonly burst?: number;
}

/** A bucket's values, at least and at most: `units` were taken since `first`, and it was not full since. */
export function bucketFigures(
  { limit, window, burst = limit }: Rate,
  units: number,
  first: Span,
  now: Span,
): { readonly remaining: [number, number]; readonly resetAfterMs: [number, number] } {
  const { least, most } = until(now, first);
  const spent = [units * window - limit * least, units * window - limit * most] as const;
  const left = (parts: number) => Math.max(0, Math.floor((burst * window - parts) / window));
  return {
    remaining: [left(spent[0]), left(spent[1])],
    resetAfterMs: [Math.ceil(spent[1] / limit), Math.ceil(spent[0] / limit)],
  };
}

/** A module to serve: the built bundle with a clock that is `shiftMs` later. Alarms use the real clock. */
function laterModule(shiftMs: number): string {
  return `import * as weir from "weir.js";

const readMs = Date.now;
Date.now = () => readMs() + ${shiftMs};

export class LimiterObject extends weir.LimiterObject {
  constructor(ctx, env) {
    const { storage } = ctx;
    const setAlarm = storage.setAlarm.bind(storage);
    const getAlarm = storage.getAlarm.bind(storage);
    storage.setAlarm = (atMs) => setAlarm(atMs - ${shiftMs});
    storage.getAlarm = async () => {
      const atMs = await getAlarm();
      return atMs === null ? null : atMs + ${shiftMs};
    };
    super(ctx, env);
  }
}

export const Limiter = weir.Limiter;
export default weir.default;
`;
}
