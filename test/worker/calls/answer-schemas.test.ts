/** The OpenAPI document describes what the code answers: the compiler holds the schemas and the types together. */
import type * as v from "valibot";
import { expectTypeOf, test } from "vitest";
import type { Hold, Lease, RuleDecision } from "../../../core/protocol/answers.ts";
import type * as answers from "../../../core/protocol/decision.ts";
import type * as schemas from "../../../worker/calls/answer-schemas.ts";

type DeepReadonly<Value> = Value extends object
  ? { readonly [Field in keyof Value]: DeepReadonly<Value[Field]> }
  : Value;
/** What a schema describes, written as the types are: nobody changes an answer, and what is left out is not `undefined`. */
type Described<Schema extends v.GenericSchema> = DeepReadonly<Exactly<v.InferOutput<Schema>>>;
type Exactly<Value> = Value extends readonly (infer Item)[]
  ? readonly Exactly<Item>[]
  : Value extends object
    ? { [Field in keyof Value]: Exactly<Exclude<Value[Field], undefined>> }
    : Value;
/** An intersection as one object. */
type Flat<Value> = { [Field in keyof Value]: Value[Field] };

test("every answer is described as it is typed", () => {
  expectTypeOf<Described<typeof schemas.RuleDecision>>().toEqualTypeOf<RuleDecision>();
  expectTypeOf<Described<typeof schemas.Lease>>().toEqualTypeOf<Lease>();
  expectTypeOf<Described<typeof schemas.Hold>>().toEqualTypeOf<Hold>();
  expectTypeOf<Described<typeof schemas.Decision>>().toEqualTypeOf<answers.Decision>();
  expectTypeOf<Described<typeof schemas.KeyReport>>().toEqualTypeOf<Flat<answers.KeyReport>>();
  expectTypeOf<Described<typeof schemas.AllDecisions>>().toEqualTypeOf<answers.AllDecisions>();
});
