/** core/algorithms/gcra.ts in Lua: the token bucket by another name. Their states in a pool are the same text. */
export const GCRA = `
return tokenBucket()
`;
