/** core/algorithms/gcra.ts in Lua: a token bucket by another name. Their states in a pool are equal. */
export const GCRA = `
return tokenBucket()
`;
