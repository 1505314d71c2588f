/** A worker with the service binding LIMITER that makes random calls on the catalog for one request. */
import type { CatalogService } from "../../../../client/transports/catalog-service.ts";
import type { LimiterService } from "../../../../client/transports/transport.ts";
import type { CatalogDocument } from "../../../../core/catalog/calls.ts";
import { pick, seededRandom, whole } from "../../random.ts";
import {
  drawBody,
  drawCursor,
  drawName,
  drawPattern,
  drawTokenName,
  drawTriedName,
} from "../catalog-draws.ts";
import { oddValue, valueOf } from "../json-text.ts";
import { faultInError } from "./binding-laws.ts";
import type { Asked, Told } from "./driver.ts";
import { foreignValue, planted } from "./foreign-values.ts";

type Random = () => number;
type Method = Exclude<keyof CatalogService, typeof Symbol.dispose>;

/** The arguments of every method: a missing one is a type error. */
const DRAWN: Readonly<Record<Method, (random: Random, document: unknown) => unknown[]>> = {
  policy: (random) => [drawName(random)],
  putPolicy: (random, document) => [drawName(random), drawn(random, "policy", document), condition(random)],
  deletePolicy: (random) => [drawName(random), condition(random)],
  override: (random, document) => there(random, document),
  overrides: (random) => [drawName(random), pick(random, [undefined, drawCursor(random)])],
  putOverride: (random, document) => [
    drawName(random),
    drawPattern(random),
    drawn(random, "override", document),
    condition(random),
  ],
  deleteOverride: (random, document) => [...there(random, document), condition(random)],
  candidate: (random, document) => [tried(random, document)],
  putCandidate: (random, document) => [
    drawTriedName(random),
    drawn(random, "candidate", document),
    condition(random),
  ],
  deleteCandidate: (random, document) => [tried(random, document), condition(random)],
  promoteCandidate: (random, document) => [tried(random, document), condition(random)],
  tokens: () => [],
  issueToken: (random, document) => [drawn(random, "token", document)],
  revokeToken: (random) => [drawTokenName(random)],
  read: () => [],
  write: (random, document) => [drawn(random, "catalog", document), condition(random)],
  audit: (random) => [pick(random, [undefined, drawCursor(random)])],
};
/** A policy: mostly one that has a candidate. */
function tried(random: Random, document: unknown): unknown {
  const all = Object.keys((document as CatalogDocument).candidates ?? {});
  return random() < 0.7 && all.length > 0 ? pick(random, all) : drawTriedName(random);
}

/** A policy and a pattern: mostly those of an existing override. */
function there(random: Random, document: unknown): unknown[] {
  const { overrides } = document as CatalogDocument;
  const all = Object.entries(overrides).flatMap(([policy, its]) =>
    Object.keys(its).map((pattern) => [policy, pattern]),
  );
  return random() < 0.7 && all.length > 0 ? pick(random, all) : [drawName(random), drawPattern(random)];
}

const METHODS = Object.keys(DRAWN) as Method[];

function drawn(random: Random, kind: Parameters<typeof drawBody>[1], document: unknown): unknown {
  return valueOf(drawBody(random, kind, document));
}

function condition(random: Random): unknown {
  return pick<unknown>(random, [
    undefined,
    undefined,
    {},
    { dryRun: true },
    { ifMatch: 0 },
    { ifMatch: whole(random, 60) },
    { ifMatch: "1", dryRun: "yes" },
    { ifNoneMatch: true },
    null,
    "dryRun",
  ]);
}

export default {
  async fetch(request: Request, env: { readonly LIMITER: LimiterService }): Promise<Response> {
    const { seed, from, calls }: Asked = await request.json();
    using catalog = await env.LIMITER.catalog();
    const outcomes: Record<string, Record<string, number>> = {};
    let fault: string | undefined;
    let before = JSON.stringify((await catalog.read()).value);
    for (let number = from; number < from + calls && fault === undefined; number += 1) {
      const random = seededRandom(seed + number);
      const method = pick(random, METHODS);
      const { args, foreign } = spoilt(random, DRAWN[method](random, JSON.parse(before)));
      const thrown = await thrownBy(catalog, method, args);
      const after = JSON.stringify((await catalog.read()).value);
      const call = { method, args, isMethod: true, ...(foreign !== undefined && { foreign }) };
      const wrong =
        thrown === undefined
          ? undefined
          : (faultInError(call, thrown) ??
            (after === before ? undefined : "what was refused has changed something"));
      const outcome = thrown === undefined ? "ok" : codeOf(thrown);
      const ofMethod = (outcomes[method] ??= {});
      ofMethod[outcome] = (ofMethod[outcome] ?? 0) + 1;
      if (wrong !== undefined)
        fault = `call ${number}: ${wrong}: ${printed(method, args, foreign)}: ${String(thrown)}`;
      before = after;
    }
    return Response.json({ outcomes, ...(fault !== undefined && { fault }) } satisfies Told);
  },
};

/** The arguments, sometimes with a spoiled one. */
function spoilt(random: Random, args: unknown[]): { readonly args: unknown[]; readonly foreign?: string } {
  const kind = random();
  if (kind < 0.7 || args.length === 0) return { args };
  const at = whole(random, args.length);
  const replaced = (value: unknown) => args.map((each, index) => (index === at ? value : each));
  if (kind < 0.8) return { args: replaced(valueOf(oddValue(random))) };
  if (kind < 0.84) return { args: args.slice(0, at) };
  const { name, value } = foreignValue(random);
  return { args: replaced(planted(random, args[at], value)), foreign: name };
}

/** The error of a call; `undefined`: it is answered. */
async function thrownBy(catalog: CatalogService, method: Method, args: readonly unknown[]): Promise<unknown> {
  const methods = catalog as unknown as Record<string, (...args: readonly unknown[]) => Promise<unknown>>;
  try {
    await methods[method]?.(...args);
    return undefined;
  } catch (error) {
    return error ?? new Error("nothing was thrown");
  }
}

function codeOf(error: unknown): string {
  const { code, name } = error as { readonly code?: unknown; readonly name?: unknown };
  return typeof code === "string" ? code : String(name);
}

function printed(method: string, args: readonly unknown[], foreign: string | undefined): string {
  let text: string;
  try {
    text = JSON.stringify(args, (_, value: unknown) => (typeof value === "bigint" ? `${value}n` : value));
  } catch (error) {
    text = String(error);
  }
  return `${method}(${text.slice(1, -1).slice(0, 1_500)})${foreign === undefined ? "" : ` with a ${foreign} in it`}`;
}
