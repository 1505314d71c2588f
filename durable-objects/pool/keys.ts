/**
 * The names of a pool's keys in Redis. All of them begin the same up to the first `}`. A Redis cluster hashes only
 * that part, so the keys of a pool share a slot. The names are for ever: a key under another name is another pool.
 */

/**
 * The keys that one call may touch, in this order: the hash, the sorted set of holds, a log for each rule (only
 * sliding logs use theirs), and the answers that the call may remember or repeat. No two pools share a key, because
 * what follows the pool's own name never contains a `}`.
 *
 * @param answerNames for `hold`, `settle` and `renew` the name of the hold; then the name of the idempotency key, if
 *   there is one
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
