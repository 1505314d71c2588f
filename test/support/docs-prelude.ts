/** The names that examples in the documentation may use. test/docs.test.ts checks the examples' types with them. */
import type { Limiter } from "../../worker/rpc/limiter.ts";

export type { Limiter };

/** The caller's bindings. */
export declare const env: { readonly LIMITER: Service<typeof Limiter>; readonly WEIR_TOKEN: string };
/** The key that is limited. */
export declare const key: string;
