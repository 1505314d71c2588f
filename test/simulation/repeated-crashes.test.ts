import { expect, test } from "vitest";
import { Database } from "./database.ts";
import { crashRepeatedly } from "./repeated-crashes.ts";

test("x", () => {
  const few = { clients: 4, callsPerSecond: 25, everyMs: 2_500, crashes: 6, restMs: 12_000 };
  const fw = { algorithm: "fixed-window", limit: 100, window: "2s" };
  const many = { clients: 6, callsPerSecond: 80, everyMs: 3_000, crashes: 5, restMs: 12_000 };
  for (const [name, c] of Object.entries({
    few: { fields: fw, ...few },
    many: { fields: { ...fw, limit: 500 }, ...many },
    bucket: { fields: { algorithm: "token-bucket", limit: 100, window: "1s" }, ...few },
    bucket16: {
      fields: { algorithm: "token-bucket", limit: 200, window: "1s" },
      ...few,
      clients: 20,
      callsPerSecond: 10,
      crashes: 1,
    },
  }))
    console.log(
      name,
      crashRepeatedly(c, new Database())
        .map((a) => JSON.stringify(a))
        .join("\n"),
    );
});
