/** The names that examples in the documentation may use: test/docs.test.ts checks their types. */
import type { LimiterService } from "weir-limiter";
import type { Limiter } from "../../worker/rpc/limiter.ts";

/** The package's type, which promises no more than the entrypoint has. */
type Bound = Service<typeof Limiter> extends LimiterService ? LimiterService : never;

export declare const env: { readonly LIMITER: Bound; readonly WEIR_TOKEN: string };
export declare const key: string;
