/**
 * A call as a record: where it is, who may make it, what it reads, does and answers, and how it is described. The HTTP
 * routes, the answers 405, the service binding and the OpenAPI document are made from these records.
 */
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import type { Principal, Scope } from "../auth/tokens.ts";
import type { Env } from "../bindings/env.ts";
import type { CatalogCaller, CatalogInput } from "../calls/catalog/catalog-calls.ts";
import type { SchemaName } from "./openapi-schemas.ts";
import type { AnswerKind } from "./responses.ts";

export type Method = "GET" | "POST" | "PUT" | "DELETE";

/** Who makes a call, and what is there to carry it out. */
export interface CallContext {
  readonly env: Env;
  readonly client: LimiterClient;
  readonly principal: Principal;
  /** Absent: the call came over the service binding. */
  readonly request?: Request;
  /** Keeps that work going after the call has been answered. */
  readonly waitUntil: (work: Promise<unknown>) => void;
}

/** A field of the query, as the OpenAPI document has it. A field of type `integer` is read as a number. */
export interface QueryField {
  readonly name: string;
  readonly in: "query";
  readonly required: boolean;
  readonly schema: { readonly type: string } & Readonly<Record<string, unknown>>;
}

/** How the OpenAPI document describes a call. */
export interface CallDescription {
  readonly tag: string;
  readonly summary: string;
  readonly description?: string;
  /** What is answered with 200. Absent: 204, and nothing. */
  readonly ok?: { readonly says: string; readonly schema: SchemaName; readonly headers?: object };
  /** Instead of `ok`: all that is answered with success, as OpenAPI has it. */
  readonly responses?: Readonly<Record<number, object>>;
  /** What a denial is answered with under `?deny=429`: when the quota is used up, and when it is not the caller's doing. */
  readonly denials?: readonly [exceeded: SchemaName, reduced: SchemaName, headers: object];
  /** Problems beside those that each call with such an input has, and those of them that this one never has. */
  readonly alsoProblems?: readonly number[];
  readonly neverProblems?: readonly number[];
  readonly example?: CallExample;
}

/** What a call is sent and answers, by the names of the examples. */
export interface CallExample {
  readonly request?: object;
  readonly answers?: Readonly<Record<string, object>>;
  /** Under `?deny=429`. */
  readonly denied?: object;
}

/** What records of both kinds have. */
interface Place extends CallDescription {
  readonly method: Method;
  readonly path: string;
  /** The caller has one of these. Absent: no token is needed. */
  readonly scopes?: readonly Scope[];
  /** The JSON body. Without a schema it has to be empty, or `{}`. */
  readonly body?: { readonly schema?: SchemaName; readonly isOptional?: true };
}

/** A call on keys, holds and leases, or on what was counted. */
export interface Call<Answer = unknown> extends Place {
  readonly kind: "call";
  /** Fields of the query. Absent: there are none, but `deny` beside a body. */
  readonly query?: readonly QueryField[];
  /** The call may stand in the query instead of the body: it does if that has one of `beginning`. */
  readonly orQuery?: { readonly beginning: readonly string[]; readonly numbers: readonly string[] };
  /**
   * How the service binding reads the argument: `key` when its `props` add what is left out, `checks` when they add it
   * to each check, `alone` when nothing is added. Absent: the binding does not have the call.
   */
  readonly bound?: "key" | "checks" | "alone";
  handle(context: CallContext, input: unknown): MaybePromise<Answer | Problem>;
  readonly answer: AnswerKind<Answer>;
}

/** A call on the catalog. */
export interface CatalogCall<Answer = unknown> extends Place {
  readonly kind: "catalog";
  /** It writes: the query may have `dryRun`, and the headers conditions. */
  readonly writes?: true;
  /** It is a list: the query may have `cursor`. */
  readonly lists?: true;
  /** It concerns all policies and keys. Who may not do that is refused before the body is read. */
  readonly isOfAll?: true;
  readonly mostBytes?: number;
  /** The name over the service binding, whose arguments are the parts of the path, the body, and conditions or a cursor. */
  readonly bound: string;
  handle(caller: CatalogCaller, input: CatalogInput): Promise<Answer | Problem>;
  readonly answer: AnswerKind<Answer>;
}

type MaybePromise<Value> = Value | Promise<Value>;

/** The record of a call. */
export function call<Answer>(record: Omit<Call<Answer>, "kind">): Call {
  return { ...record, kind: "call" };
}

/** The record of a call on the catalog. */
export function catalogCall<Answer>(record: Omit<CatalogCall<Answer>, "kind">): CatalogCall {
  return { ...record, kind: "catalog" };
}

/** A field of the query. */
export function query(name: string, schema: QueryField["schema"], required = false): QueryField {
  return { name, in: "query", required, schema };
}
