/** `weir-limiter/upstash`: the shape of `Ratelimit` of @upstash/ratelimit. */
export {
  Ratelimit,
  type LimitOptions,
  type RatelimitConfig,
  type RatelimitResponse,
} from "../drop-ins/upstash.ts";
