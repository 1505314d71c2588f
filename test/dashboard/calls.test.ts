import fc from "fast-check";
import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import { curlOf, requestOf, type Call } from "../../dashboard/calls.ts";

const call = fc.record({
  kind: fc.constantFrom("limit" as const, "acquire" as const),
  policy: fc.constant("api"),
  // No argument of a program has a zero in it; as JSON it is an escape.
  key: fc.string({ unit: "grapheme", minLength: 1, maxLength: 30 }).map((text) => text.toWellFormed()),
  cost: fc.integer({ min: 0, max: 1_000 }),
});

/** The arguments that a shell would give to curl. */
function argumentsOf(line: string): string[] {
  const script = `curl() { for each in "$@"; do printf '%s\\0' "$each"; done; }; TOKEN=secret; ${line}`;
  return execFileSync("sh", ["-c", script], { encoding: "utf8" }).split("\0").slice(0, -1);
}

test("a shell reads the curl line as the call that was made, whatever is in the key", () => {
  const holds = (each: Call) => {
    const { path, body } = requestOf(each);
    expect(argumentsOf(curlOf(each, "https://limits.example.com"))).toEqual([
      `https://limits.example.com${path}`,
      "-H",
      "Authorization: Bearer secret",
      "-H",
      "Content-Type: application/json",
      "-d",
      JSON.stringify(body),
    ]);
  };
  holds({ kind: "limit", policy: "api", key: `o'brien "$TOKEN" \`id\` \\ $(id)`, cost: 1 });
  fc.assert(fc.property(call, holds), { numRuns: 50 });
});
