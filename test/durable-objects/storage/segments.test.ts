import { expect, test } from "vitest";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { Database } from "../../simulation/database.ts";

test("segments come back as they were written, in their order, without those that are not needed any more", () => {
  const storage = new Storage(new Database().storage);
  const segment = (from: number, entries: number[], keepFromMs = 0) => ({
    log: 7,
    from,
    toMs: entries.at(-2) ?? 0,
    keepFromMs,
    entries,
  });
  storage.writeSegment("key", "rule", segment(0, [1e12, 1, 1e12 + 1, 5]));
  storage.writeSegment("key", "rule", segment(4, [1e12 + 9, 6]));
  storage.writeSegment("key", "rule", segment(2, [1e12 + 2, 2 ** 40, 1e12 + 3, 2 ** 40 + 1], 1e12 + 2));
  const found = storage
    .segments("key", "rule")
    .map((each) => ({ ...each, entries: Array.from(each.entries) }));
  expect(found).toEqual([
    { log: 7, from: 2, entries: [1e12 + 2, 2 ** 40, 1e12 + 3, 2 ** 40 + 1] },
    { log: 7, from: 4, entries: [1e12 + 9, 6] },
  ]);
});
