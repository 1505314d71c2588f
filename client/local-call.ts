/** The calls that all clients make in the same way, and the arguments of calls in a client's own process. */
import { publicName } from "../core/policies/policy.ts";
import { type ClaimKind, readClaimId } from "../core/protocol/names.ts";
import { Problem, PROBLEMS } from "../core/protocol/problems.ts";
import { violation } from "../core/violations.ts";
import {
  type Abortable,
  type Address,
  ADDRESSES,
  type LimiterCalls,
  type Signal,
} from "./transports/transport.ts";

/** The signal of a call. @throws LimiterError when the call is no object, or its signal no `AbortSignal` */
export function signalOf(call: Abortable): Signal | undefined {
  requireObject(call);
  const signal: Partial<Signal> | undefined = call.signal;
  if (signal === undefined || typeof signal?.addEventListener === "function") return call.signal;
  const detail = violation(["signal"], signal, "an AbortSignal");
  throw new Problem(PROBLEMS.notAllowed, detail, { errors: [{ pointer: "/signal", detail }] }).toError();
}

/** @throws LimiterError when the argument of a call is not an object */
export function requireObject(argument: unknown): void {
  if (typeof argument === "object" && argument !== null) return;
  const detail = `the argument is ${JSON.stringify(argument) ?? typeof argument}: must be an object, as { policy, key }`;
  throw new Problem(PROBLEMS.notAllowed, detail).toError();
}

/** The names of the calls that every client makes in the same way. */
export type UniformCall<On extends Address["on"] = "key" | "hold" | "lease"> = {
  [Name in keyof LimiterCalls]: (typeof ADDRESSES)[Name] extends { readonly on: On } ? Name : never;
}[keyof LimiterCalls];

abstract class CallsByName {
  static {
    for (const [name, { on }] of Object.entries<Address>(ADDRESSES))
      if (on !== undefined)
        Object.defineProperty(this.prototype, name, {
          configurable: true,
          writable: true,
          value(this: CallsByName, request: object) {
            return this.callByName(name as UniformCall, request);
          },
        });
  }

  abstract close(): Promise<void>;

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  protected abstract callByName(name: UniformCall, request: object): Promise<unknown>;
}

/** A client with the calls that all clients make in the same way, by one method. */
export const UniformClient = CallsByName as abstract new () => CallsByName & Pick<LimiterCalls, UniformCall>;

/** The answer, unless `signal` is aborted before: then its reason is thrown. */
export function unlessAborted<Answer>(answer: Promise<Answer>, signal: Signal | undefined): Promise<Answer> {
  if (signal === undefined) return answer;
  return new Promise((resolve, reject) => {
    const leave = () => reject(signal.reason);
    if (signal.aborted) leave();
    signal.addEventListener("abort", leave, { once: true });
    answer.then(resolve, reject).finally(() => signal.removeEventListener("abort", leave));
  });
}

/** The key that the id in a request names. */
export function keyOfClaim(kind: ClaimKind, { id }: { readonly id?: unknown }) {
  const place = typeof id === "string" ? readClaimId(kind, id) : undefined;
  return { policy: publicName(place?.policy ?? ""), key: place?.key ?? "" };
}

/** @throws LimiterError: the limiter did not answer a call that is no decision */
export function throwUnavailable(error: unknown): never {
  const { message = String(error), cause } = Object(error) as Partial<Error>;
  // That of `fetch` says only that it failed.
  const why = cause instanceof Error ? `${message}: ${cause.message}` : message;
  const detail = `whether the call was carried out is not known: the limiter did not answer (${why})`;
  throw Object.assign(new Problem(PROBLEMS.unavailable, detail).toError(), { cause: error });
}

/** An error as text. That of `fetch` has its cause apart. */
export function causeOf(error: unknown): string {
  const { cause } = Object(error) as Partial<Error>;
  return cause instanceof Error ? `${String(error)} (${cause.message})` : String(error);
}
