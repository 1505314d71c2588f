/** A table of `wrangler.toml`, as JSON. */
export type Table = Readonly<Record<string, unknown>>;

/** What an override says, as it was given: figures of the policy, or one of `multiply`, `blocked` and `unlimited`. */
export type OverrideFields = Table;
