import fc from "fast-check";
import { expect, test } from "vitest";
import { EventReader } from "../../../middleware/llm/event-reader.ts";

/** The data of the events in chunks of bytes. */
function read(chunks: readonly Uint8Array[]): string[] {
  const found: string[] = [];
  const reader = new EventReader((data) => void found.push(data));
  for (const chunk of chunks) reader.read(chunk);
  reader.end();
  return found;
}

function cut(bytes: Uint8Array, places: readonly number[]): Uint8Array[] {
  const sorted = [
    0,
    ...places.map((place) => place % (bytes.length + 1)).toSorted((a, b) => a - b),
    bytes.length,
  ];
  return sorted.slice(1).map((end, index) => bytes.slice(sorted[index], end));
}

const encode = (text: string) => new TextEncoder().encode(text);
const line = fc.string({ unit: "grapheme", maxLength: 20 }).map((text) => text.replaceAll(/[\r\n]/g, ""));
const event = fc.array(line, { minLength: 1, maxLength: 3 });
const stream = fc.record({
  events: fc.array(event, { maxLength: 6 }),
  lineEnd: fc.constantFrom("\n", "\r\n", "\r"),
  space: fc.constantFrom("", " "),
});

test("the same events are read, wherever the bytes are cut", () => {
  fc.assert(
    fc.property(stream, fc.array(fc.nat(), { maxLength: 12 }), ({ events, lineEnd, space }, places) => {
      const written = events.map((lines) =>
        [": a comment", "event: x", ...lines.map((text) => `data:${space}${text}`), "", ""].join(lineEnd),
      );
      // A first space belongs to the field, and data without text is none.
      const data = events.map((lines) =>
        lines.map((text) => (space === "" && text.startsWith(" ") ? text.slice(1) : text)).join("\n"),
      );
      const bytes = encode(written.join(""));
      expect(read(cut(bytes, places))).toEqual(data.filter((text) => text !== ""));
      expect(read(Array.from(bytes, (byte) => Uint8Array.of(byte)))).toEqual(read([bytes]));
    }),
  );
});

test("the last event counts without the empty line after it", () => {
  expect(read([encode("data: a\n\ndata: b")])).toEqual(["a", "b"]);
});

test("an event beyond the bound is skipped, and the next is read", () => {
  const long = encode(`data: ${"x".repeat(500_000)}`);
  expect(read([...Array.from({ length: 9 }, () => long), encode("\n\ndata: next\n\n")])).toEqual(["next"]);
});
