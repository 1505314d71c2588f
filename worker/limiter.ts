import { WorkerEntrypoint } from "cloudflare:workers";
import type { Env } from "./app.ts";
import { callLimit, callPeek, callRefund, callReset, listPolicies, type Answered } from "./calls.ts";
import { LimiterClient } from "./limiter-client.ts";
import { parse } from "./parse.ts";
import { Problem } from "./problems.ts";
import { Props, type Decision, type KeyReport, type PolicyList } from "./schemas.ts";
import type { Principal } from "./tokens.ts";

/** A call that may leave out what the binding's `props` say. */
type Call<Fields> = Fields & { readonly policy?: string; readonly key: string };

/**
 * The limiter as a service binding: the same calls as over HTTP, the same answers, no token (whoever is bound
 * may call). Bad input throws a LimiterError that says what HTTP would.
 *
 * With `props = { policy = "api" }` on the binding, `policy` may be left out, so `limit({ key })` is enough and
 * the binding drops in for Cloudflare's own rate limit binding.
 */
export class Limiter extends WorkerEntrypoint<Env, unknown> {
  /** Takes `cost` units (default 1; 0 looks) if they fit. A denial is an answer, not an error. */
  async limit(call: Call<{ readonly cost?: number; readonly idempotencyKey?: string }>): Promise<Decision> {
    return answerOf(await callLimit(this.#client, BOUND, this.#complete(call)));
  }

  /** Gives units back that were taken and not used, once per `idempotencyKey`. */
  async refund(call: Call<{ readonly units: number; readonly idempotencyKey: string }>): Promise<Decision> {
    return answerOf(await callRefund(this.#client, BOUND, this.#complete(call)));
  }

  /** What `limit({ key })` would be answered; takes nothing. */
  async peek(call: Call<object>): Promise<KeyReport> {
    return answerOf(await callPeek(this.#client, BOUND, this.#complete(call)));
  }

  /** Makes the key as new. */
  async reset(call: Call<object>): Promise<void> {
    return answerOf(await callReset(this.#client, BOUND, this.#complete(call)));
  }

  /** The policies of this deployment. */
  policies(): PolicyList {
    return listPolicies(BOUND);
  }

  get #client(): LimiterClient {
    return new LimiterClient(this.env.OBJECTS);
  }

  #complete(call: unknown): unknown {
    const props = parse(Props, this.ctx.props ?? {});
    if (props instanceof Problem) throw props.toError();
    if (typeof call !== "object" || call === null) return call;
    const { policy = props.policy, ...rest } = call as { readonly policy?: unknown };
    return { policy, ...rest };
  }
}

/** Whoever is bound to the worker; the binding is the permission. */
const BOUND: Principal = { name: "service binding", scopes: ["limit", "admin"] };

function answerOf<Answer>(answered: Answered<Answer> | Problem): Answer {
  if (answered instanceof Problem) throw answered.toError();
  return answered.answer;
}
