/** Random calls on the catalog and on the statistics, one after the other: a refused call changes nothing. */
import { TOKENS } from "../fixtures.ts";
import { pick, seededRandom, whole } from "../random.ts";
import { RawConnection, type RawAnswer } from "../raw-connection.ts";
import { drawBody, drawCursor, drawName, drawPattern, drawTokenName } from "./catalog-draws.ts";
import { faultIn } from "./http-laws.ts";
import { percentEncoded } from "./http-paths.ts";
import { textOf } from "./json-text.ts";
import { ODD_TEXTS } from "./odd-values.ts";
import type { Operations } from "./openapi-operations.ts";

type Random = () => number;

export interface CatalogFuzz {
  readonly port: number;
  readonly operations: Operations;
  readonly seed: number;
  readonly calls: number;
}

interface Drawn {
  readonly method: string;
  readonly target: string;
  readonly headers: readonly string[];
  readonly body?: string;
}

/** The number of answers by operation and status. */
export type CatalogAnswers = Map<string, Map<number, number>>;

/** @throws Error that names the seed and the call, at the first answer that breaks a law */
export async function fuzzCatalog({ port, operations, seed, calls }: CatalogFuzz): Promise<CatalogAnswers> {
  const connection = new RawConnection(port);
  const answers: CatalogAnswers = new Map();
  const exported = () => ask(connection, { method: "GET", target: "/v1/catalog", headers: [] });
  let before = await exported();
  for (let number = 0; number < calls; number += 1) {
    const drawn = drawCall(seededRandom(seed + number), before.body);
    const { method, target } = drawn;
    const answer = await ask(connection, drawn);
    const request = { ...drawn, bytes: bytesOf(drawn), kind: "whole", isExact: true } as const;
    const after = method === "GET" ? before : await exported();
    const wrong =
      (isText(answer) ? undefined : faultIn(operations, request, answer, number % 5 === 0)) ??
      faultInChange(drawn, answer, before, after);
    if (wrong !== undefined) {
      const told = JSON.stringify({ ...drawn, answer, before: before.body, after: after.body });
      throw new Error(`SEED=${seed} call ${number}: ${wrong}: ${told.slice(0, 6_000)}`);
    }
    const operation = operations.at(method, target.split("?")[0] ?? "")?.id ?? "none";
    const counts = answers.get(operation) ?? new Map<number, number>();
    answers.set(operation, counts.set(answer.status, (counts.get(answer.status) ?? 0) + 1));
    before = after;
  }
  connection.close();
  return answers;
}

/** Prometheus's format is no JSON. */
function isText({ status, contentType }: RawAnswer): boolean {
  return status === 200 && contentType.startsWith("application/openmetrics-text");
}

/** A forbidden change of the catalog by a call. */
function faultInChange(
  { target }: Drawn,
  { status, body }: RawAnswer,
  before: RawAnswer,
  after: RawAnswer,
): string | undefined {
  if (after.status !== 200) return "the catalog is not told any more";
  const isChanged = after.body !== before.body;
  if (status >= 400 && isChanged) return "what was refused has changed something";
  if (/dryRun=true/.test(target) && isChanged) return "what was only to be checked has changed something";
  const token = /"token":"(weir_[^"]+)"/.exec(body)?.[1];
  if (token !== undefined && after.body.includes(token)) return "a token is kept as it is";
  return undefined;
}

function drawCall(random: Random, document: string): Drawn {
  const [policy, pattern, name] = [drawName(random), drawPattern(random), drawTokenName(random)].map(
    (text) => (text === "" || /^\.+$/.test(text) ? "k" : percentEncoded(random, text)),
  );
  const current: unknown = JSON.parse(document);
  const body = (kind: Parameters<typeof drawBody>[1]) => textOf(drawBody(random, kind, current));
  const written = (method: string, path: string, kind?: Parameters<typeof drawBody>[1]): Drawn => ({
    method,
    target: `${path}${pick(random, ["", "", "", "?dryRun=true", "?dryRun=false", "?dryRun=1", "?dryrun=true"])}`,
    headers: conditions(random),
    ...(kind !== undefined && { body: body(kind) }),
  });
  const read = (path: string, fields: readonly [string, string][] = []): Drawn => {
    const given = fields
      .filter(() => random() < 0.8)
      .map(([field, value]) => `${field}=${percentEncoded(random, value)}`);
    return { method: "GET", target: `${path}${given.length > 0 ? `?${given.join("&")}` : ""}`, headers: [] };
  };
  const overrides = `/v1/policies/${policy}/overrides`;
  const named = drawName(random);
  return pick<() => Drawn>(random, [
    () => written("PUT", `${overrides}/${pattern}`, "override"),
    () => written("PUT", `${overrides}/${pattern}`, "override"),
    () => written("PUT", `${overrides}/${pattern}`, "override"),
    () => written("DELETE", `${overrides}/${pattern}`),
    () => written("PUT", `/v1/policies/${policy}`, "policy"),
    () => written("DELETE", `/v1/policies/${policy}`),
    () => written("PUT", `/v1/policies/${policy}/candidate`, "policy"),
    () => written("PUT", "/v1/policies/api/candidate", "candidate"),
    () => written("DELETE", `/v1/policies/${policy}/candidate`),
    () => written("POST", `/v1/policies/${policy}/candidate/promote`),
    () => read(`/v1/policies/${policy}/candidate`),
    () => written("PUT", "/v1/catalog", "catalog"),
    () => ({ ...written("POST", "/v1/tokens", "token"), target: "/v1/tokens" }),
    () => ({ ...written("DELETE", `/v1/tokens/${name}`), target: `/v1/tokens/${name}` }),
    () => read(`/v1/policies/${policy}`),
    () => read(overrides, [["cursor", drawCursor(random)]]),
    () => read(`${overrides}/${pattern}`),
    () => read("/v1/audit", [["cursor", drawCursor(random)]]),
    () => read("/v1/tokens"),
    () => read("/metrics"),
    () =>
      read("/v1/stats", [
        ["policy", named],
        [
          "since",
          pick(random, [
            "1h",
            "2d",
            "0",
            "-1h",
            "2999-01-31T12:00:00Z",
            "1970-01-01T00:00:00Z",
            ...ODD_TEXTS,
          ]),
        ],
        ["step", pick(random, ["minute", "hour", "day", ...ODD_TEXTS])],
      ]),
    () =>
      read(pick(random, ["/v1/stats/keys", "/v1/stats/groups"]), [
        ["policy", named],
        ["by", pick(random, ["denied", "asked", "all", ...ODD_TEXTS])],
      ]),
  ])();
}

function conditions(random: Random): string[] {
  const tags = [
    `"${whole(random, 60)}"`,
    '"0"',
    "*",
    'W/"1"',
    '"1", "2"',
    "1",
    "",
    '"',
    '"__proto__"',
    `"${"1".repeat(3_000)}"`,
  ];
  return [
    ...(random() < 0.25 ? [`If-Match: ${pick(random, tags)}`] : []),
    ...(random() < 0.1 ? [`If-None-Match: ${pick(random, ["*", '"1"', ""])}`] : []),
  ];
}

function bytesOf({ method, target, headers, body }: Drawn): Buffer {
  const lines = [
    `${method} ${target} HTTP/1.1`,
    "Host: weir.test",
    `Authorization: Bearer ${TOKENS.full}`,
    ...headers,
    ...(body === undefined
      ? []
      : ["Content-Type: application/json", `Content-Length: ${Buffer.byteLength(body)}`]),
  ];
  return Buffer.from(`${lines.join("\r\n")}\r\n\r\n${body ?? ""}`);
}

function ask(connection: RawConnection, drawn: Drawn): Promise<RawAnswer> {
  return connection.exchange(bytesOf(drawn));
}
