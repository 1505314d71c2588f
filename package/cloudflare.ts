/** `weir-limiter/cloudflare`: the shape of Cloudflare's rate limit binding. */
export {
  rateLimitBinding,
  type RateLimitBinding,
  type RateLimitBindingOptions,
} from "../drop-ins/cloudflare.ts";
