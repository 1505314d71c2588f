/** GET /export: ten exports of an API key run at once. The slot is free when the answer is sent, or the caller has gone. */
import type { RequestHandler } from "@sveltejs/kit";
import { decisionsOf, withConcurrency } from "weir-limiter/fetch";
import { keyOf, limiterOf } from "../../limiter.server.ts";

const exported = withConcurrency({ limiter: limiterOf, policy: "export", key: keyOf }, (request: Request) =>
  Response.json({ rows: 1_000, remaining: decisionsOf(request)["api"]?.remaining }),
);

export const GET: RequestHandler = ({ request }) => exported(request);
