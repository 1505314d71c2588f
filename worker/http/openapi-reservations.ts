import { answer, body, BODY_PROBLEMS, problems } from "./openapi-parts.ts";

/** The address of the OpenAPI document at which a client in its caller's process holds units. */
export function reservationPaths(): object {
  return {
    "/v1/reservations": {
      post: {
        operationId: "reserve",
        summary: "Hold units of many keys in the caller's own process; needs the scope reserve",
        description:
          "One message for many keys. A client says what it has used of each key since it began, what it keeps and " +
          "what it wants, and may ask for decisions. The answer grants units for a lifetime, which the client counts " +
          "from before it sent the message. What a client holds and does not give back counts as used.",
        requestBody: body("ReservationsRequest"),
        responses: {
          200: answer(
            "An answer to each call, and the policies that the client has to know",
            "ReservationsAnswer",
          ),
          ...problems(...BODY_PROBLEMS),
        },
      },
    },
  };
}
