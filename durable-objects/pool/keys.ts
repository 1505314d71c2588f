/**
 * The keys of a pool in Redis. All begin the same up to the first `}`, which is all that a cluster hashes, so they share
 * a slot. They are for ever: a key under another name is another pool.
 */

/**
 * In this order: the hash, the sorted set of holds, a log for each rule (used by those that are logs), and the answers
 * that the call may remember or repeat. Only the first ends with `}`, so no two pools share a key.
 *
 * @param answerNames the id of the hold for `hold`, `settle` and `renew`, then the idempotency key if there is one
 */
export function poolKeys(
  policy: string,
  key: string,
  ruleNames: readonly string[],
  answerNames: readonly string[] = [],
): string[] {
  const pool = `weir:{${policy}/${key}}`;
  return [
    pool,
    `${pool}:holds`,
    ...ruleNames.map((name) => `${pool}:log:${name}`),
    ...answerNames.map((name) => `${pool}:answer:${encodeURIComponent(name)}`),
  ];
}
