import { blake2s } from "@noble/hashes/blake2.js";
import fc from "fast-check";
import { expect, test } from "vitest";
import { claimId, readClaimId } from "../../../core/protocol/names.ts";
import { claimProofs } from "../../../worker/auth/claim-proofs.ts";

const secret = fc.stringMatching(/^[A-Za-z0-9_-]{22}$/);
const kind = fc.constantFrom("hold" as const, "lease" as const);
const place = fc.record({
  policy: fc.stringMatching(/^[a-z]{1,8}$/),
  key: fc.string({ minLength: 1, maxLength: 20 }),
});
const prove = claimProofs("the text of API_TOKENS");
const isProven = (by: typeof prove, ...claim: Parameters<typeof prove>) => by(...claim) === claim[2];

test("a proven secret is read as any other, and is proven for its own claim alone", () => {
  fc.assert(
    fc.property(kind, place, secret, place, (is, at, id, elsewhere) => {
      const proven = prove(is, at, id);
      expect(readClaimId(is, claimId(is, at, proven))).toEqual({ ...at, secret: proven });
      expect(isProven(prove, is, at, proven)).toBe(true);
      expect(isProven(claimProofs("another text"), is, at, proven)).toBe(false);
      expect(isProven(prove, is === "hold" ? "lease" : "hold", at, proven)).toBe(false);
      if (at.policy !== elsewhere.policy || at.key !== elsewhere.key)
        expect(isProven(prove, is, elsewhere, proven)).toBe(false);
    }),
  );
});

test("a proof is the keyed hash of what is claimed, so that ids of older versions stay proven", () => {
  const bytes = new TextEncoder();
  const key = blake2s(bytes.encode("the text of API_TOKENS"));
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  fc.assert(
    fc.property(kind, place, secret, (is, at, id) => {
      const text = bytes.encode([is, at.policy, id.slice(0, 16), at.key].join("\u0001"));
      const proof = [...blake2s(text, { key, dkLen: 6 })].map((byte) => digits[byte & 63]).join("");
      expect(prove(is, at, id)).toBe(id.slice(0, 16) + proof);
    }),
  );
});

test("whoever changes one character of it has proven nothing", () => {
  fc.assert(
    fc.property(kind, place, secret, fc.nat(21), (is, at, id, index) => {
      const proven = prove(is, at, id);
      const other = proven[index] === "A" ? "B" : "A";
      expect(isProven(prove, is, at, proven.slice(0, index) + other + proven.slice(index + 1))).toBe(false);
    }),
  );
});
