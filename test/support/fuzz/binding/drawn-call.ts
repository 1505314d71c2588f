/** Random calls of the service binding: valid ones, and those whose arguments are spoiled. */
import type { WorkerEntrypoint } from "cloudflare:workers";
import type { Limiter } from "../../../../worker/rpc/limiter.ts";
import { pick, whole } from "../../random.ts";
import { oddValue, spoiled, Table, valueOf, type Json } from "../json-text.ts";
import type { Operations } from "../openapi-operations.ts";
import { drawField, drawValid, type LiveIds } from "../valid-calls.ts";
import { foreignValue, planted } from "./foreign-values.ts";

type Random = () => number;
/** A method of the limiter; `catalog` answers with methods of its own. */
export type Method = Exclude<keyof Limiter, keyof WorkerEntrypoint | "catalog">;

/** Every method: a missing one is a type error. Over HTTP an operation has the same name. */
const METHODS = Object.keys({
  limit: true,
  limitAll: true,
  limitAny: true,
  refund: true,
  hold: true,
  settle: true,
  cancel: true,
  acquire: true,
  renew: true,
  release: true,
  peek: true,
  setUsed: true,
  reset: true,
  endWaits: true,
  reserve: true,
  keys: true,
  countKeys: true,
  policies: true,
} satisfies Record<Method, true>) as Method[];

/** Names that must not become methods, without those of the runtime's own stub. */
const STRAY_METHODS = ["nowhere", "env", "ctx", "alarm", "#read", "webSocketClose", "then_", "", "a b"];

export interface DrawnCall {
  readonly method: string;
  readonly args: readonly unknown[];
  readonly isMethod: boolean;
  /** An argument that the runtime may refuse to send. */
  readonly foreign?: string;
}

export function drawnCall(random: Random, operations: Operations, ids: LiveIds): DrawnCall {
  const isMethod = random() < 0.985;
  const method = isMethod ? pick(random, METHODS) : pick(random, STRAY_METHODS);
  const valid = validArgument(random, operations, ids, method);
  const call = { method, isMethod };
  const kind = random();
  if (kind < 0.4) return { ...call, args: [valueOf(valid)] };
  if (kind < 0.7) return { ...call, args: [valueOf(spoiledOften(random, valid))] };
  if (kind < 0.75) return { ...call, args: [valueOf(oddValue(random))] };
  if (kind < 0.8) return { ...call, args: manyArguments(random, valueOf(valid)) };
  const { name, value } = foreignValue(random);
  return { ...call, foreign: name, args: [planted(random, valueOf(valid), value)] };
}

function manyArguments(random: Random, valid: unknown): unknown[] {
  return pick(random, [[], [undefined], [null], [valid, valid], [[valid]], [undefined, valid]]);
}

function spoiledOften(random: Random, valid: Json): Json {
  let json = valid;
  for (let times = 1 + whole(random, 3); times > 0; times -= 1) json = spoiled(random, json);
  return json;
}

/** The fields of HTTP's address and body together. */
function validArgument(random: Random, operations: Operations, ids: LiveIds, method: string): Json {
  const operation = operations.all.find(({ id }) => id === method);
  if (operation === undefined) return new Table([]);
  const inPath = [...operation.path.matchAll(/\{(\w+)\}/g)].map(([, name = ""]): [string, Json] => [
    name,
    drawField(random, ids, name) ?? "text",
  ]);
  const inQuery = operation.query
    .filter(({ name }) => name !== "deny" && random() < 0.3)
    .map(({ name, schema }): [string, Json] => [name, drawValid(random, ids, operations, schema, name)]);
  const body = operation.body && drawValid(random, ids, operations, operation.body);
  const detached: [string, Json][] =
    method === "acquire" && random() < 0.3 ? [["detached", random() < 0.7]] : [];
  return new Table([...inPath, ...inQuery, ...(body instanceof Table ? body.fields : []), ...detached]);
}
