/** The call of a form, and the `curl` for it. */

export interface Call {
  readonly kind: "limit" | "acquire";
  readonly policy: string;
  readonly key: string;
  readonly cost: number;
}

export function requestOf({ kind, policy, key, cost }: Call): {
  readonly path: string;
  readonly body: object;
} {
  return kind === "limit"
    ? { path: "/v1/limit", body: { policy, key, cost } }
    : { path: "/v1/leases", body: { policy, key, units: cost } };
}

/** The same for a shell. The token is a variable, because it must not be in a history. */
export function curlOf(call: Call, origin: string): string {
  const { path, body } = requestOf(call);
  return [
    `curl ${quoted(origin + path)}`,
    `  -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json'`,
    `  -d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n");
}

/** A text in single quotes; a quote in it ends them, is escaped, and begins them again. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}
