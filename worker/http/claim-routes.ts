/** The routes of holds and leases that somebody has, and of a lease that ends with a socket. */
import type { Hono } from "hono";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clientOf } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { callCancel, callSettle } from "../calls/holds.ts";
import { callRelease, callRenew } from "../calls/lease-ends.ts";
import { callSocket } from "../calls/leases.ts";
import { queryInput } from "./addresses.ts";
import { authorized, jsonAnswer, noContent, withBody, withId, withoutQuery } from "./handlers.ts";
import { relayed } from "./relayed-sockets.ts";
import { decisionResponse } from "./responses.ts";

/** Adds the routes of claims. */
export function addClaimRoutes(app: Hono<{ Bindings: Env }>): void {
  app.post(
    "/v1/holds/:id/settle",
    withBody(async (c, principal, body) => {
      const input = withId(c, body);
      if (input instanceof Problem) return input;
      return decisionResponse(await callSettle(clientOf(c.env, principal), principal, input), 200);
    }),
  );
  app.delete(
    "/v1/holds/:id",
    withoutQuery(["limit"], async (c, principal) =>
      noContent(c, await callCancel(clientOf(c.env, principal), principal, { id: c.req.param("id") })),
    ),
  );
  app.get(
    "/v1/leases/socket",
    authorized(["limit"], async (c, principal) => {
      if (c.req.raw.headers.get("upgrade")?.toLowerCase() !== "websocket") {
        const detail = "the Upgrade header must be websocket";
        return new Problem(PROBLEMS.upgradeRequired, detail, { headers: { upgrade: "websocket" } });
      }
      const input = queryInput(c, ["units", "waitMs", "graceMs", "pingWithinMs"]);
      if (input instanceof Problem) return input;
      const answered = await callSocket(clientOf(c.env, principal), principal, input);
      if (answered instanceof Problem) return answered;
      return c.env.SOCKETS === "relayed" ? relayed(c.req.raw, answered.answer) : answered.answer;
    }),
  );
  app.post(
    "/v1/leases/:id/renew",
    withBody(
      async (c, principal, body) => {
        const input = withId(c, body);
        if (input instanceof Problem) return input;
        return jsonAnswer(await callRenew(clientOf(c.env, principal), principal, input));
      },
      { isOptional: true },
    ),
  );
  app.post(
    "/v1/leases/:id/release",
    withBody(
      async (c, principal, body) => {
        const input = withId(c, body);
        if (input instanceof Problem) return input;
        return noContent(c, await callRelease(clientOf(c.env, principal), principal, input));
      },
      { isOptional: true },
    ),
  );
  app.delete(
    "/v1/leases/:id",
    withoutQuery(["limit"], async (c, principal) =>
      noContent(c, await callRelease(clientOf(c.env, principal), principal, { id: c.req.param("id") })),
    ),
  );
}
