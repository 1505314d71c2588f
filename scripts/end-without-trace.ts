import { createInterface } from "node:readline";

/** If wrangler removes its folder while esbuild's service builds, Go finds a deadlock and prints this. */
const TRACE = /^fatal error: all goroutines are asleep - deadlock!/;

/** Prints lines, but not such a trace while `isStopping`, because nothing went wrong. */
export async function endWithoutTrace(
  lines: NodeJS.ReadableStream,
  isStopping: () => boolean,
  print: (line: string) => void,
): Promise<void> {
  let isTrace = false;
  for await (const line of createInterface({ input: lines })) {
    isTrace ||= isStopping() && TRACE.test(line);
    // It is the last that esbuild prints, and wrangler has ended by then.
    if (!isTrace) print(line);
  }
}
