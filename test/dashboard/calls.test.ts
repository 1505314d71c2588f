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

/** The arguments that a shell would give to curl, in each of these lines. */
function argumentsOf(lines: readonly string[]): string[][] {
  const curl = `curl() { for each in "$@"; do printf '%s\\0' "$each"; done; printf '\\0'; }; TOKEN=secret`;
  const output = execFileSync("sh", ["-c", [curl, ...lines].join("\n")], { encoding: "utf8" });
  // No argument is empty.
  return output
    .split("\0\0")
    .slice(0, -1)
    .map((each) => each.split("\0"));
}

test("a shell reads the curl line as the call that was made, whatever is in the key", () => {
  const argumentsFor = (each: Call) => {
    const { path, body } = requestOf(each);
    return [
      `https://limits.example.com${path}`,
      "-H",
      "Authorization: Bearer secret",
      "-H",
      "Content-Type: application/json",
      "-d",
      JSON.stringify(body),
    ];
  };
  const holds = (...calls: readonly Call[]) => {
    const lines = calls.map((each) => curlOf(each, "https://limits.example.com"));
    expect(argumentsOf(lines)).toEqual(calls.map(argumentsFor));
  };
  holds({ kind: "limit", policy: "api", key: `o'brien "$TOKEN" \`id\` \\ $(id)`, cost: 1 });
  // A shell takes longer to start than to read a line.
  fc.assert(
    fc.property(fc.array(call, { minLength: 1, maxLength: 20 }), (calls) => holds(...calls)),
    { numRuns: 6 },
  );
});
