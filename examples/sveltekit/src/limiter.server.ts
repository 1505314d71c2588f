import { createLimiter, type Limiter } from "weir-limiter/client";

const { WEIR_URL = "http://127.0.0.1:8787", WEIR_TOKEN = "" } = process.env;
let limiter: Limiter | undefined;

/** One for the process, as two reserve units separately. Made late: the build loads this file too, without a token. */
export const limiterOf = () => (limiter ??= createLimiter({ url: WEIR_URL, token: WEIR_TOKEN }));

/** A name stands for the API key here. A real one is a credential: take `hashedKey` of weir-limiter/fetch. */
export const keyOf = (request: Request) => `customer:${request.headers.get("x-api-key") ?? "anonymous"}`;
