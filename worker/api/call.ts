/**
 * A call as a record: its address, who may make it, its input, handler and answer, and its description. The HTTP routes,
 * the answers 405, the service binding and the OpenAPI document are made from these records.
 */
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { Problem, Answered } from "../../core/protocol/problems.ts";
import type { Scope } from "../auth/tokens.ts";
import type { Env } from "../bindings/env.ts";
import type { CatalogCaller, CatalogInput } from "../calls/catalog/catalog-calls.ts";
import type { CallContext as Context } from "../calls/limits.ts";
import type { Component, SchemaName } from "./openapi-schemas.ts";
import type { AnswerKind } from "./responses.ts";

export type Method = "GET" | "POST" | "PUT" | "DELETE";

/** The caller of a call, and what carries it out. */
export interface CallContext extends Context {
  readonly env: Env;
  /** Absent: the call came over the service binding. */
  readonly request?: Request;
  /** Keeps that work going after the call has been answered. */
  readonly waitUntil: (work: Promise<unknown>) => void;
}

/** A field of the query, as the OpenAPI document has it. A field of type `integer` is read as a number. */
interface QueryField {
  readonly name: string;
  readonly in: "query";
  readonly required: boolean;
  readonly description?: string;
  readonly schema: { readonly type: string } & Readonly<Record<string, unknown>>;
}

/** An example of a call: its request, and its answers by the names of the examples. */
export interface CallExample {
  readonly request?: object;
  readonly answers?: Readonly<Record<string, object>>;
  /** Under `?deny=429`. */
  readonly denied?: object;
}

/** How the OpenAPI document describes a call. */
interface CallDescription {
  readonly tag: string;
  readonly summary: string;
  readonly description?: string;
  readonly example?: CallExample;
  /** What is answered with 200. Absent: 204, and nothing. */
  readonly ok?: { readonly says: string; readonly schema: Component; readonly headers?: object };
  /** Instead of `ok`: all that is answered with success, as OpenAPI has it. */
  readonly responses?: Readonly<Record<number, object>>;
  /** The answers to denials under `?deny=429`: when the quota is used up, and when it is not the caller's doing. */
  readonly denials?: readonly [exceeded: SchemaName, reduced: SchemaName, headers: object];
  /** Problems beside those of each call with such an input, and those that this call never has. */
  readonly alsoProblems?: readonly number[];
  readonly neverProblems?: readonly number[];
}

interface Place extends CallDescription {
  readonly method: Method;
  readonly path: string;
  /** The caller has one of these. Absent: no token is needed. */
  readonly scopes?: readonly Scope[];
  /** What is said without any of them, if the body decides which. */
  readonly needed?: string;
  /** The JSON body. Without a schema it has to be empty, or `{}`. */
  readonly body?: { readonly schema?: Component; readonly isOptional?: true };
}

/** A call on keys, holds and leases, or on what was counted. */
export interface Call<Answer = unknown> extends Place {
  readonly kind: "call";
  /** Fields of the query. Absent: there are none, but `deny` beside a body. */
  readonly query?: readonly QueryField[];
  /** The call may stand in the query instead of the body: it does if that has one of `beginning`. `typed`: no text. */
  readonly orQuery?: Readonly<Record<"beginning" | "known" | "typed", readonly string[]>>;
  /**
   * What the call is on, over the service binding: its `props` add what is left out of a key, or of each check. Absent:
   * the binding does not have the call.
   */
  readonly on?: "key" | "checks" | "hold" | "lease" | "none" | undefined;
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
  /** It concerns all policies and keys, and needs the right to them, also before the body is read. */
  readonly isOfAll?: true;
  readonly maxBytes?: number;
  /** The name over the service binding, whose arguments are the parts of the path, the body, and conditions or a cursor. */
  readonly bound: string;
  handle(caller: CatalogCaller, input: CatalogInput): Answered<Answer>;
  readonly answer: AnswerKind<Answer>;
}

export function call<Answer>(record: Omit<Call<Answer>, "kind">): Call {
  return { ...record, kind: "call" };
}

export function catalogCall<Answer>(record: Omit<CatalogCall<Answer>, "kind">): CatalogCall {
  return { ...record, kind: "catalog" };
}

export function query(
  name: string,
  schema: QueryField["schema"],
  required = false,
  description?: string,
): QueryField {
  return { name, in: "query", required, ...(description !== undefined && { description }), schema };
}

/* Headers that several calls answer with, as the OpenAPI document has them. */

export function header(description: string): object {
  return { description, schema: { type: "string" } };
}

export const DECISION_HEADERS = {
  "RateLimit-Policy": header('The limits, one member for each rule: `"api";q=100;w=1`'),
  RateLimit: header(
    'What is left, one member for each rule: `"api";r=499;t=1`. Absent when no rule was asked. A policy may name an older style ' +
      "for both (`headers`).",
  ),
  "X-RateLimit-Limit": header("The most units at once. This and the two others only if the policy says so."),
  "X-RateLimit-Remaining": header("The largest cost that would pass now."),
  "X-RateLimit-Reset": header(
    "When the quota is whole, or a denied call may come again: Unix time, or seconds.",
  ),
};
export const RETRY_AFTER = {
  "Retry-After": header("Whole seconds, rounded up. Only when denied, and when waiting helps."),
};
/** Of decisions that may be denials. */
export const DENIAL_HEADERS = { ...DECISION_HEADERS, ...RETRY_AFTER };
export const ETAG = { ETag: header("Its version, for `If-Match`.") };
