import { createInterface } from "node:readline";

/**
 * esbuild's service, which wrangler runs to watch files, ends with its parent. When wrangler takes its folder away at the
 * end, that may be in the middle of a build: then Go finds a deadlock and prints a trace.
 */
const TRACE = /^fatal error: all goroutines are asleep - deadlock!/;

/** Passes lines on, but no such trace once `isStopping` says so: nothing went wrong. */
export async function endWithoutTrace(
  lines: NodeJS.ReadableStream,
  isStopping: () => boolean,
  print: (line: string) => void,
): Promise<void> {
  let isTrace = false;
  for await (const line of createInterface({ input: lines })) {
    isTrace ||= isStopping() && TRACE.test(line);
    // It is the last that esbuild prints, and wrangler has gone by then.
    if (!isTrace) print(line);
  }
}
