/** The classes of objects: whether a deployment has them, and whether the deployed ones answer. */
import type { Line } from "./changes.ts";

/** The names, which can never change, and the cost of a missing object; absent: all state is lost. */
const OBJECTS = [
  { binding: "OBJECTS", className: "LimiterObject", tag: "v1" },
  {
    binding: "CATALOG",
    className: "CatalogObject",
    tag: "v2",
    without: "nothing can be changed at run time, and policies, overrides, tokens and audit answer 503",
    asks: "/v1/policies/-",
    scopes: "limit or admin",
  },
  {
    binding: "STATS",
    className: "StatsObject",
    tag: "v2",
    without: "only ANALYTICS gets counts, and /metrics, history and top keys answer 503",
    asks: "/metrics",
    scopes: "metrics or admin",
  },
] as const;

export interface Objects {
  readonly migrations: readonly { readonly tag: string; readonly new_sqlite_classes?: readonly string[] }[];
  readonly durable_objects: {
    readonly bindings: readonly { readonly name: string; readonly class_name: string }[];
  };
}

export function objectLines({ migrations, durable_objects: { bindings } }: Objects): Line[] {
  return OBJECTS.map((object): Line => {
    const { binding, className, tag } = object;
    const made = migrations.find(({ new_sqlite_classes: classes = [] }) => classes.includes(className));
    const bound = bindings.find(({ name }) => name === binding)?.class_name;
    const wanted = `${className} of migration ${tag}`;
    if (made?.tag === tag && bound === className)
      return { verdict: "ok", text: `${wanted}, bound as ${binding}` };
    const must = `must be ${wanted} in new_sqlite_classes, bound as ${binding}`;
    if (!("without" in object)) return { verdict: "BAD", text: `${must}: else all state is lost` };
    const isLeftOut = made === undefined && bound === undefined;
    if (isLeftOut)
      return { verdict: "note", text: `no ${wanted}, bound as ${binding}: without it ${object.without}` };
    const found = `the migration is ${made?.tag ?? "missing"}, and ${binding} is bound to ${bound ?? "nothing"}`;
    return { verdict: "BAD", text: `${must}: ${found}. Without it ${object.without}` };
  });
}

export async function reachedLines(against: string | undefined, token: string | undefined): Promise<Line[]> {
  if (against === undefined || token === undefined) return [];
  const lines = OBJECTS.map(async (object): Promise<Line[]> => {
    if (!("asks" in object)) return [];
    const { className, asks, scopes, without } = object;
    const where = `${className} of ${against}`;
    try {
      const answered = await fetch(`${against.replace(/\/+$/, "")}${asks}`, {
        headers: { authorization: `Bearer ${token}` },
        signal: AbortSignal.timeout(10_000),
      });
      const text = await answered.text();
      if (answered.status === 401 || answered.status === 403)
        return [{ verdict: "unknown", text: `${where} was not asked: TOKEN needs the scope ${scopes}` }];
      if (answered.status < 500) return [{ verdict: "ok", text: `${where} answers` }];
      const isUnbound = text.includes("has no binding");
      if (isUnbound)
        return [{ verdict: "note", text: `${where} is not bound there: until it is ${without}` }];
      return [{ verdict: "BAD", text: `${where} does not answer (${answered.status}): ${without}` }];
    } catch (error) {
      return [{ verdict: "BAD", text: `${where} does not answer (${String(error)}): ${without}` }];
    }
  });
  return (await Promise.all(lines)).flat();
}
