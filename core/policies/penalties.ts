import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
import type { ConfigProblem } from "../algorithms/fields.ts";
import { withPenalty } from "../algorithms/penalty.ts";

/** The longest block, unless a rule says otherwise: a day. */
const DEFAULT_MOST_MS = 86_400_000;
/** 2^31 - 1 ms, about 24 days. */
const MOST_MS = 2_147_483_647;

/**
 * An algorithm and its configuration with the penalties that a rule asks for, if it does.
 *
 * @param blockMs `blockFor`: how long the first block lasts, in milliseconds
 * @param mostMs `maxBlock`: the longest block
 */
export function penalised(
  algorithm: AnyAlgorithm,
  config: object,
  blockMs: Duration,
  mostMs: Duration,
): { readonly algorithm: AnyAlgorithm; readonly config: object } | ConfigProblem {
  if (blockMs === undefined) {
    if (mostMs === undefined) return { algorithm, config };
    return { problem: { field: "maxBlock", allowed: "left out, or with blockFor" } };
  }
  const isRate = algorithm.leasing === undefined && algorithm.fields["limit"] !== undefined;
  // Who has no credits left is not let in by waiting, so there is nothing to keep out.
  if (!isRate || algorithm.isLasting === true)
    return { problem: { field: "blockFor", allowed: `left out with algorithm "${algorithm.name}"` } };
  if (Number(blockMs) > MOST_MS) return { problem: { field: "blockFor", allowed: `at most ${MOST_MS} ms` } };
  const longestMs = Number(mostMs ?? Math.max(Number(blockMs), DEFAULT_MOST_MS));
  if (longestMs < Number(blockMs) || longestMs > MOST_MS) {
    const allowed = `at least the blockFor of ${Number(blockMs)} ms and at most ${MOST_MS} ms`;
    return { problem: { field: "maxBlock", allowed } };
  }
  const penal = { inner: config, blockForMs: Number(blockMs), maxBlockMs: longestMs };
  return { algorithm: withPenalty(algorithm), config: penal };
}

/** A duration as it is parsed. */
type Duration = number | boolean | string | undefined;
