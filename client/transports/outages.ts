import type { Time } from "../../core/clock.ts";

/** Calls that were answered without the limiter or an object, since the last report of the same name. */
export interface Outage {
  readonly cause: string;
  /** 0: a message failed that no call waited for. */
  readonly calls: number;
  /** Since the last report; `undefined`: this is the first for a while. */
  readonly seconds: number | undefined;
}

interface Unreported {
  reportedAtMs: number;
  calls: number;
  cause: string;
}

/** The least time between two reports of a name. */
const QUIET_MS = 10_000;

/**
 * Reports an outage at once, and its further calls later with their number: one line for each call would cost more
 * than the calls. It has no timer: in a worker that belongs to one request.
 */
export class Outages {
  readonly #time: Time;
  readonly #report: (outage: Outage, name: string) => void;
  readonly #byName = new Map<string, Unreported>();

  /** @param report Absent: a warning about the limiter on the console */
  constructor(time: Time, report: (outage: Outage, name: string) => void = warn) {
    this.#time = time;
    this.#report = report;
  }

  /** @param name what does not answer: a policy, of which there are few */
  note(cause: string, calls = 1, name = ""): void {
    const nowMs = this.#time.nowMs();
    const last = this.#byName.get(name) ?? { reportedAtMs: -Infinity, calls: 0, cause };
    this.#byName.set(name, last);
    const isFirst = last.calls === 0;
    last.calls += calls;
    last.cause = cause;
    if (isDue(last, nowMs)) this.#say(name, last, nowMs, isFirst);
  }

  /** Reports what was not reported and is due. Called when the limiter answers, or at any other call. */
  flush(): void {
    for (const [name, last] of this.#byName) {
      if (last.calls === 0) continue;
      const nowMs = this.#time.nowMs();
      if (isDue(last, nowMs)) this.#say(name, last, nowMs, false);
    }
  }

  #say(name: string, last: Unreported, nowMs: number, isFirst: boolean): void {
    const { cause, calls, reportedAtMs } = last;
    const seconds = isFirst ? undefined : Math.max(1, Math.round((nowMs - reportedAtMs) / 1_000));
    last.reportedAtMs = nowMs;
    last.calls = 0;
    this.#report({ cause, calls, seconds }, name);
  }
}

function isDue({ reportedAtMs }: Unreported, nowMs: number): boolean {
  // The clock may have been set back.
  return nowMs < reportedAtMs || nowMs - reportedAtMs >= QUIET_MS;
}

function warn({ cause, calls, seconds }: Outage): void {
  const were = calls === 1 ? "1 call was" : `${calls} calls were`;
  console.warn(
    seconds === undefined
      ? `weir: no answer from the limiter: ${cause}`
      : `weir: ${were} answered without the limiter in the last ${seconds} s: ${cause}`,
  );
}
