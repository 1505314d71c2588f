/** Each request is charged to its API key before SvelteKit looks for its route. */
import type { Handle } from "@sveltejs/kit/hooks";
import { withRateLimit } from "weir-limiter/fetch";
import { keyOf, limiterOf } from "./limiter.server.ts";

type Input = Parameters<Handle>[0];

const limited = withRateLimit(
  {
    limiter: limiterOf,
    policy: "api",
    key: keyOf,
    // What a page fetches from this application on the server passes here too: it would be charged twice.
    skip: (_: Request, { event }: Input) => event.isSubRequest,
  },
  (_: Request, { event, resolve }: Input) => resolve(event),
);

export const handle: Handle = (input) => limited(input.event.request, input);
