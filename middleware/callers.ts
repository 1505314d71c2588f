/** Callers that may leave while the middleware waits for their turn. */
import type { Time } from "../core/clock.ts";

/** A request. Its signal is read only for a wait: some runtimes make it then. */
export interface Caller {
  /** Aborted when the caller has left. Absent: the runtime does not tell. */
  readonly signal?: AbortSignal | undefined;
}

/** Waits for some milliseconds. @throws the signal's reason as soon as it is aborted */
export async function sleep(time: Time, ms: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  if (ms <= 0) return;
  await new Promise<void>((resolve, reject) => {
    const leave = () => {
      cancel();
      reject(signal?.reason as Error);
    };
    const cancel = time.after(ms, () => {
      signal?.removeEventListener("abort", leave);
      resolve();
    });
    signal?.addEventListener("abort", leave, { once: true });
  });
}

/** Whether a call of these options may wait in the limiter's queue. */
export function waits({ waitMs = 0 }: { readonly waitMs?: number }): boolean {
  return waitMs > 0;
}
