import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { endWithoutTrace } from "../../scripts/end-without-trace.ts";

const TRACE = ["fatal error: all goroutines are asleep - deadlock!", "", "goroutine 1 [chan receive]:"];

/** What is passed on of these lines, when the end is asked for after the first of them. */
async function passed(lines: readonly string[], isAsked: boolean): Promise<string[]> {
  const [stream, printed] = [new PassThrough(), [] as string[]];
  const done = endWithoutTrace(
    stream,
    () => isAsked && printed.length > 0,
    (line) => printed.push(line),
  );
  // Go writes its traces in pieces.
  for (const piece of `${lines.join("\n")}\n`.match(/[\s\S]{1,7}/g) ?? []) stream.write(piece);
  stream.end();
  await done;
  return printed;
}

test("the trace of a service that ends with its parent is not printed", async () => {
  expect(await passed(["up", ...TRACE], true)).toEqual(["up"]);
});

test("errors are, and so is a trace of a limiter that nobody has stopped", async () => {
  expect(await passed(["up", "Error: port in use"], true)).toEqual(["up", "Error: port in use"]);
  expect(await passed(["up", ...TRACE], false)).toEqual(["up", ...TRACE]);
});
