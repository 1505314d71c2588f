/** Bodies of requests: valid, spoiled in their structure, or no JSON. */
import { pick, whole } from "../random.ts";
import { oddValue, spoiled, textOf, type Json } from "./json-text.ts";
import type { Operation, Operations } from "./openapi-operations.ts";
import { drawValid, type LiveIds } from "./valid-calls.ts";

type Random = () => number;

/** The largest body that is read, in bytes. */
const MAX_BODY_BYTES = 16_384;

export function bodyBytes(
  random: Random,
  operations: Operations,
  operation: Operation,
  ids: LiveIds,
): Buffer {
  const valid =
    operation.body === undefined ? oddValue(random) : drawValid(random, ids, operations, operation.body);
  const kind = random();
  if (kind < 0.4) return Buffer.from(textOf(valid));
  if (kind < 0.85) {
    let json: Json = valid;
    for (let times = 1 + whole(random, 3); times > 0; times -= 1) json = spoiled(random, json);
    return Buffer.from(textOf(json));
  }
  if (kind < 0.9) return Buffer.from(textOf(oddValue(random)));
  return brokenBody(random, Buffer.from(textOf(valid)));
}

/** Bytes that are hardly JSON, or JSON of an odd size or encoding. */
function brokenBody(random: Random, valid: Buffer): Buffer {
  switch (whole(random, 10)) {
    case 0:
      return Buffer.alloc(0);
    case 1:
      return valid.subarray(0, whole(random, valid.length));
    case 2:
      return Buffer.from(Array.from({ length: whole(random, 80) }, () => whole(random, 256)));
    case 3:
      return Buffer.concat([Buffer.from("\ufeff"), valid]);
    case 4:
      return Buffer.from(valid.toString(), "utf16le");
    case 5:
      // A changed byte often breaks UTF-8, or makes another key.
      return changed(random, valid);
    case 6:
      return Buffer.concat([valid, pick(random, [valid, Buffer.from("\u0000"), Buffer.from("}")])]);
    case 7:
    case 8:
      return padded(valid, MAX_BODY_BYTES - 3 + whole(random, 7));
    default:
      return random() < 0.1 ? padded(valid, 60_000) : Buffer.from(random() < 0.5 ? " " : "\n\n");
  }
}

function changed(random: Random, valid: Buffer): Buffer {
  const bytes = Buffer.from(valid);
  const at = whole(random, bytes.length);
  bytes.fill(pick(random, [0, 0x22, 0x5c, 0x7f, 0x80, 0xc0, 0xed, 0xff]), at, at + 1);
  return bytes;
}

/** The same with spaces at its end, or in front, to be of this size. */
function padded(valid: Buffer, size: number): Buffer {
  return Buffer.concat([valid, Buffer.alloc(Math.max(0, size - valid.length), " ")]);
}
