/** The names that examples in the documentation may use: test/docs.test.ts checks their types. */
import type { Limiter } from "../../worker/rpc/limiter.ts";

export type { Limiter };

export declare const env: { readonly LIMITER: Service<typeof Limiter>; readonly WEIR_TOKEN: string };
export declare const key: string;
