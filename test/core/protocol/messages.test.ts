import { expect, test } from "vitest";
import { readAnswer } from "../../../client/transports/send-batch.ts";
import { KNOWN_PROTOCOL, unsupportedOf } from "../../../core/protocol/messages.ts";

test("a message without a number is of the first protocol, and known for ever", () => {
  expect(unsupportedOf({})).toBeUndefined();
  expect(unsupportedOf({ protocol: 1 })).toBeUndefined();
});

test("a message of a higher protocol is refused with the highest that is known", () => {
  expect(unsupportedOf({ protocol: KNOWN_PROTOCOL })).toBeUndefined();
  expect(unsupportedOf({ protocol: KNOWN_PROTOCOL + 1 })).toEqual({
    unsupported: { protocol: KNOWN_PROTOCOL },
  });
});

test("a refusal is no answer", () => {
  const refused = JSON.stringify({ unsupported: { protocol: 1 } });
  expect(() => readAnswer(refused)).toThrow("the object knows the protocol up to version 1 only");
});
