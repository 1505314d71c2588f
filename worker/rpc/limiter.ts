import { RpcTarget, WorkerEntrypoint } from "cloudflare:workers";
import type { UniformCall } from "../../client/local-call.ts";
import { blockedDecision } from "../../client/read-answer.ts";
import type { CatalogService } from "../../client/transports/catalog-service.ts";
import type { AcquireRequest, LimiterService } from "../../client/transports/transport.ts";
import { readClockMs } from "../../core/clock.ts";
import type { Region } from "../../core/policies/policy.ts";
import type { AcquireParams } from "../../core/protocol/calls.ts";
import { type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { AS_VALUE, LimiterError, orThrow, Problem } from "../../core/protocol/problems.ts";
import { type Call, type CallContext, type CatalogCall } from "../api/call.ts";
import { RECORDS } from "../api/records.ts";
import { type BindingCaller, bindingCaller, scopeProblem } from "../auth/tokens.ts";
import { REGION_NAMES, regionNamed, catalogCallerOf, clientOf, freshen } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { acquireCandidate, skipCandidate } from "../calls/candidates.ts";
import { type CatalogCaller, notForAdmin, readConditions } from "../calls/catalog/catalog-calls.ts";
import { type Acquire, acquireOf, CONFIRM_WITHIN_MS, linkedOf, findClaim } from "../calls/claims.ts";
import { onKey } from "../calls/limits.ts";
import { plain } from "../calls/plain-data.ts";
import { BoundAcquireRequest } from "../calls/schemas/request-schemas.ts";
import { parse, badValue } from "../calls/validate.ts";

interface Regional {
  /** The region of a policy with a pool. Absent: that of the isolate's latest HTTP request. */
  readonly region?: string;
}
type InRegion<Calls> = {
  readonly [Name in keyof Calls]: Calls[Name] extends (call: infer Request) => infer Answer
    ? (call: Request & Regional) => Answer
    : never;
};

type BoundAcquire = AcquireRequest &
  Regional & {
    readonly detached?: boolean;
    /** Ignored: a lease over the binding is confirmed for its caller. */
    readonly confirm?: boolean;
  };

type CallOnKeys = "limit" | "limitAll" | "limitAny" | "setUsed" | "keys" | "countKeys" | UniformCall<"key">;

/** The calls over the service binding. `policy` may be left out when the binding's `props` have it. */
type BoundCalls = InRegion<Pick<LimiterService, CallOnKeys>> &
  Omit<LimiterService, CallOnKeys | "acquire" | "catalog">;

/** A class with the calls, which `Limiter` gets from the records. */
const WithCalls = WorkerEntrypoint as new (
  ...args: ConstructorParameters<typeof WorkerEntrypoint<Env, unknown>>
) => WorkerEntrypoint<Env, unknown> & BoundCalls;

/**
 * The limiter as a service binding: the calls and answers of HTTP, without a token. Bad input throws a
 * LimiterError. The binding's `props` may restrict it like a token. With `props = { policy = "api" }`,
 * `limit({ key })` can replace Cloudflare's own rate limit binding.
 */
export class Limiter extends WithCalls {
  static {
    // Workers RPC finds methods on the prototype.
    for (const [name, record] of Object.entries(RECORDS))
      if (record.kind === "call" && record.on !== undefined && !Object.hasOwn(this.prototype, name))
        Object.defineProperty(this.prototype, name, {
          configurable: true,
          writable: true,
          value(this: Limiter, argument: unknown, how?: unknown) {
            return problemsAs(how, this.#call(record, argument));
          },
        });
  }

  /**
   * Leases units within `waitMs`. The lease ends with the caller, or `using`; with `detached` it ends with
   * `release` or expiry. With `graceMs` it outlives its caller, and another acquire may `resume` it by its
   * id.
   */
  acquire(call: BoundAcquire, how?: unknown): Promise<Grant> {
    return problemsAs(how, this.#acquire(call));
  }

  async #acquire(call: BoundAcquire): Promise<Grant> {
    await freshen(this.env, true);
    const { context, input } = this.#read(RECORDS["acquire"] as Call, call);
    return orThrow(await acquireBound(context, input)).answer;
  }

  /** Changes at run time: policies, overrides, tokens. Dispose of it when done (`using`). */
  async catalog(): Promise<CatalogTarget> {
    await freshen(this.env);
    const { context } = this.#read(RECORDS["policies"] as Call, {});
    return new CatalogTarget(orThrow(catalogCallerOf(this.env, context.principal)));
  }

  async #call(record: Call, argument: unknown): Promise<unknown> {
    const late = freshen(this.env);
    if (late !== undefined) await late;
    const { context, input } = this.#read(record, argument);
    return record.answer.value(orThrow(await record.handle(context, input)));
  }

  /** @throws LimiterError when the argument, the props, the scope or the region are not allowed */
  #read({ scopes = [], needed, on }: Call, given: unknown): { context: CallContext; input: unknown } {
    const caller = orThrow(bindingCaller(this.ctx.props, parse));
    orThrow(scopeProblem(caller.principal, scopes, needed));
    const argument = plain(given);
    const { input, region } =
      on === "key" || on === "checks" ? completed(caller, argument, on === "checks") : { input: argument };
    const principal = region === undefined ? caller.principal : { ...caller.principal, region };
    const context = {
      env: this.env,
      client: clientOf(this.env, principal),
      principal,
      waitUntil: (work: Promise<unknown>) => this.ctx.waitUntil(work),
    };
    return { context, input };
  }
}

/** The answer. Its problems are thrown, or are values to a caller that asks for these: see `AS_VALUE`. */
function problemsAs<Answer>(how: unknown, answer: Promise<Answer>): Promise<Answer> {
  if (how !== AS_VALUE) return answer;
  return answer.catch((error: unknown) => {
    if (!(error instanceof LimiterError)) throw error;
    const { message, status, code, errors } = error;
    const [title, ...detail] = message.split(": ");
    return { type: code, title, status, detail: detail.join(": "), errors } as Answer;
  });
}

/** Adds the binding's props and the caller's region. @throws LimiterError when there is no such region */
function completed(
  caller: BindingCaller,
  argument: unknown,
  hasChecks = false,
): { readonly input: unknown; readonly region?: Region } {
  if (typeof argument !== "object" || argument === null) return { input: argument };
  const { region: name = caller.region, ...fields } = argument as Readonly<Record<string, unknown>>;
  const region = regionNamed(name);
  if (region === undefined) throw badValue(["region"], name, `left out, or one of ${REGION_NAMES}`).toError();
  if (!hasChecks) {
    const { policy = caller.policy, ...others } = fields;
    return { input: { policy, ...others }, region };
  }
  const { checks } = fields;
  if (!Array.isArray(checks)) return { input: fields, region };
  return { input: { ...fields, checks: checks.map((check) => completed(caller, check).input) }, region };
}

/** A class with the calls on the catalog, which `CatalogTarget` gets from the records. */
const WithCatalogCalls = RpcTarget as new () => RpcTarget & Omit<CatalogService, keyof Disposable>;

/** The catalog over the service binding: the calls of HTTP, with the same arguments and answers. */
export class CatalogTarget extends WithCatalogCalls {
  readonly #caller: CatalogCaller;

  static {
    for (const record of Object.values(RECORDS))
      if (record.kind === "catalog")
        Object.defineProperty(this.prototype, record.bound, {
          value(this: CatalogTarget, ...args: readonly unknown[]) {
            return this.#call(record, args);
          },
        });
  }

  constructor(caller: CatalogCaller) {
    super();
    this.#caller = caller;
  }

  /** The arguments are the path's parts, the body, and a write's conditions or a list's cursor. */
  async #call(record: CatalogCall, args: readonly unknown[]): Promise<unknown> {
    const { path, body, writes, lists, isOfAll, answer } = record;
    const names = [...path.matchAll(/:(\w+)/g)].map(([, name = ""]) => name);
    const place = Object.fromEntries(names.map((name, at) => [name, text(name, args[at])]));
    const others = args.slice(names.length);
    const sent = body?.schema === undefined ? {} : others.shift();
    const conditions = writes ? orThrow(readConditions(others.shift())) : {};
    const cursor = lists && others[0] !== undefined ? text("cursor", others[0]) : undefined;
    if (isOfAll === true) orThrow(notForAdmin(this.#caller.principal));
    const answered = await record.handle(this.#caller, { place, body: sent, conditions, cursor });
    return answer.value(orThrow(answered));
  }
}

function text(field: string, value: unknown): string {
  if (typeof value === "string") return value;
  throw badValue([field], value, "text").toError();
}

/** A decision with its lease's handle, which releases it when disposed of, or after its caller ends. */
export type Grant = Decision & Omit<Attached, "answer">;

const acquireBound = onKey(BoundAcquireRequest, async (target, request, context: CallContext, input) => {
  const { client } = context;
  const acquire = acquireOf(client, target, request, input);
  if (acquire instanceof Problem) return acquire;
  const { policy, key, params } = acquire;
  const linked = detachedProblem(request) ?? linkedOf(context, acquire, request);
  if (linked instanceof Problem) return linked;
  const blocked = linked.resume === undefined ? blockedDecision(policy, key) : undefined;
  if (blocked !== undefined) return client.recordDecision(blocked);
  if (request.utilization !== undefined) client.report(policy, key, request.utilization);
  if (request.detached) {
    const { decision } = await acquireConfirmed(context, acquire, undefined);
    acquireCandidate(client, acquire, params, decision);
    return client.recordDecision(decision);
  }
  // A lease that ends with its caller ends at its object.
  skipCandidate(client, acquire);
  const isAtOnce = params.waitMs === 0 || linked.resume !== undefined;
  const granted = isAtOnce
    ? await client.claims.acquireAttached(policy, key, { ...params, ...linked })
    : await acquireConfirmed(context, acquire, linked);
  const { decision, attached } = granted ?? { decision: degradedDecision(policy, key) };
  client.recordDecision(decision);
  if (decision instanceof Problem || attached?.slot === undefined) return decision;
  const { slot, renew, release } = attached;
  return { ...decision, slot, ...(renew && { renew }), ...(release && { release }) } as Grant;
});

/** The problem of a lease without a link that has options for the link's end. */
function detachedProblem(request: BoundAcquireRequest): Problem | undefined {
  if (!request.detached) return undefined;
  const field = request.graceMs === undefined ? "resume" : "graceMs";
  if (request[field] === undefined) return undefined;
  return badValue([field], request[field], "left out where detached is true: such a lease has no link");
}

/**
 * Leases units briefly until confirmed, since the caller may have left unnoticed. If the lease ended before
 * that (a reset, a stalled machine), the call is made once more. @param link absent: the lease has no handle
 */
async function acquireConfirmed(
  context: CallContext,
  acquire: Acquire,
  link: Pick<AcquireParams, "graceMs"> | undefined,
): Promise<{ readonly decision: Decision | Problem; readonly attached?: Attached }> {
  const { client } = context;
  const { policy, key, params } = acquire;
  const untilMs = readClockMs() + params.waitMs;
  for (const isLast of [false, true]) {
    const waitMs = isLast ? Math.max(0, untilMs - readClockMs()) : params.waitMs;
    const brief = { ...params, waitMs, confirmWithinMs: CONFIRM_WITHIN_MS };
    const decision = await client.claims.acquire(policy, key, brief);
    if (decision instanceof Problem || decision.lease === undefined) return { decision };
    const secret = findClaim(context, "lease", decision.lease.id)?.secret ?? "";
    const attached =
      link?.graceMs === undefined
        ? await client.claims.confirm(policy, key, secret, params.ttlMs, link !== undefined)
        : await client.claims.takeOver(policy, key, { ...params, ...link, resume: secret });
    if (attached === undefined) break;
    if (attached !== "ended")
      return {
        decision: { ...decision, lease: { ...decision.lease, expiresAfterMs: params.ttlMs } },
        attached,
      };
  }
  return { decision: degradedDecision(policy, key) };
}
