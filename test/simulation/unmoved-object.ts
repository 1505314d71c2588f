import type { Policies } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { HoldCall, LimitCall } from "../../core/protocol/calls.ts";
import { Database } from "./database.ts";
import { law } from "./laws.ts";
import type { MovingMethod } from "./moving-object.ts";
import { SimulatedObject } from "./simulated-object.ts";

/** An object that keeps all keys: the answers of others have to equal its own. */
export class UnmovedObject {
  readonly #object: SimulatedObject;
  /** Its own ids of holds, by the others': both are random. */
  readonly #ids = new Map<string, string>();

  constructor(policies: Policies, clockMs: () => number) {
    this.#object = new SimulatedObject(new Database(), policies, clockMs);
  }

  /** @throws BrokenLaw when this object answers the call differently */
  compare(who: string, method: MovingMethod, args: readonly unknown[], answer: unknown): void {
    const own = this.#make(method, args);
    const [was, shouldBe] = [withoutIds(answer), withoutIds(own)];
    const inWords = () => `${who} answers ${method} ${JSON.stringify(args)} with ${was}, not ${shouldBe}`;
    law(was === shouldBe, inWords);
    const [id, ownId] = [holdIn(answer), holdIn(own)];
    if (id !== undefined && ownId !== undefined) this.#ids.set(id, ownId);
  }

  #make(method: MovingMethod, args: readonly unknown[]): unknown {
    const [policy, key] = args as [string, string];
    if (method === "limitCall") return this.#object.limitCall(args[0] as LimitCall);
    if (method === "refund") return this.#object.refund(policy, key, Number(args[2]), String(args[3]));
    if (method === "hold") return this.#hold(args[0] as HoldCall);
    const id = this.#ids.get(String(args[2])) ?? String(args[2]);
    return JSON.stringify(
      this.#object.ask(policy, key, (operations, keyState, nowMs) =>
        operations.settle(keyState, { id, used: Number(args[3]) }, nowMs),
      ),
    );
  }

  #hold({ policy, key, ...call }: HoldCall): string {
    return JSON.stringify(
      this.#object.ask(policy, key, (operations, keyState, nowMs) => operations.hold(keyState, call, nowMs)),
    );
  }
}

function holdIn(answer: unknown): string | undefined {
  return (JSON.parse(String(answer)) as Partial<Decided>).hold?.id;
}

/** Nor are epochs the same. */
function withoutIds(answer: unknown): string {
  return String(answer).replaceAll(/"id":"[^"]*"|,"epoch":"[^"]*"/g, "");
}
