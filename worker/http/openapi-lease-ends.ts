import { body, BODY_PROBLEMS, idParameter, problems } from "./openapi-parts.ts";

/** The addresses of the OpenAPI document at which leases are ended. */
export function leaseEndPaths(): object {
  return {
    "/v1/leases/{id}/release": {
      post: {
        operationId: "releaseWithReport",
        summary:
          "End a lease, and report how the call went; the next caller in the queue gets its units at once",
        parameters: [idParameter("lease")],
        requestBody: { ...body("ReleaseRequest"), required: false },
        responses: { 204: { description: "Done" }, ...problems(...BODY_PROBLEMS) },
      },
    },
    "/v1/leases/{id}": {
      delete: {
        operationId: "release",
        summary: "End a lease; the next caller in the queue gets its units at once",
        parameters: [idParameter("lease")],
        responses: { 204: { description: "Done" }, ...problems(401, 403, 404, 429, 503) },
      },
    },
  };
}
