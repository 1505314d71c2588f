/** What `npm run serve` says of policies whose new keys each start an object. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { newKeysNote } from "../../scripts/object-bounds.ts";

const rate = { algorithm: "token-bucket", limit: 5, window: "1s" };

test("policies with an object for each key are named, those that share objects are not", () => {
  const note = newKeysNote(parsePolicies({ api: rate, visitor: { ...rate, objects: 64 }, login: rate }));
  expect(note).toContain("Each new key of api, login starts an object");
  expect(note).toContain("objects = 64");
  expect(newKeysNote(parsePolicies({ visitor: { ...rate, objects: 64 } }))).toBeUndefined();
});
