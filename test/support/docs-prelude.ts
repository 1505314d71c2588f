/** What the examples of the documentation find around them: test/docs.test.ts checks their types with these names. */
import type { Limiter } from "../../worker/rpc/limiter.ts";

export type { Limiter };

/** The caller's bindings. */
export declare const env: { readonly LIMITER: Service<typeof Limiter>; readonly WEIR_TOKEN: string };
/** Who is limited. */
export declare const key: string;
