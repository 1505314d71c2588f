/** The address of one key. */
export const KEY_PATH = "/v1/policies/:policy/keys/:key";

/** The methods of each address, for those who used another one. */
export const METHODS: Readonly<Record<string, string>> = {
  "/v1/limit": "POST",
  "/v1/limit/all": "POST",
  "/v1/refund": "POST",
  "/v1/reservations": "POST",
  "/v1/holds": "POST",
  "/v1/holds/:id": "DELETE",
  "/v1/holds/:id/settle": "POST",
  "/v1/leases": "POST",
  "/v1/leases/socket": "GET",
  "/v1/leases/:id": "DELETE",
  "/v1/leases/:id/release": "POST",
  "/v1/leases/:id/renew": "POST",
  "/v1/policies": "GET, HEAD",
  "/v1/policies/:policy/keys": "GET, HEAD",
  "/v1/policies/:policy/key-count": "GET, HEAD",
  [KEY_PATH]: "GET, HEAD, PUT, DELETE",
  "/v1/policies/:policy": "GET, HEAD, PUT, DELETE",
  "/v1/policies/:policy/overrides": "GET, HEAD",
  "/v1/policies/:policy/overrides/:pattern": "GET, HEAD, PUT, DELETE",
  "/v1/tokens": "GET, HEAD, POST",
  "/v1/tokens/:name": "DELETE",
  "/v1/catalog": "GET, HEAD, PUT",
  "/v1/audit": "GET, HEAD",
  "/v1/stats": "GET, HEAD",
  "/v1/stats/keys": "GET, HEAD",
  "/metrics": "GET, HEAD",
  "/healthz": "GET, HEAD",
  "/openapi.json": "GET, HEAD",
};
