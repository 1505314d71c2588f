/** The OpenAPI document describes what the code answers: the compiler holds the schemas and the types together. */
import type * as v from "valibot";
import { expectTypeOf, test } from "vitest";
import type { Hold, Lease, RuleDecision } from "../../../core/protocol/answers.ts";
import type * as answers from "../../../core/protocol/decision.ts";
import type * as schemas from "../../../worker/calls/schemas/answer-schemas.ts";

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

/** A union of objects as one object: a field is optional where one of them has it not, or not always. */
type Merged<Union> = Flat<
  { readonly [Field in AlwaysIn<Union>]: Union extends unknown ? Union[Field & keyof Union] : never } & {
    readonly [Field in Exclude<FieldOf<Union>, AlwaysIn<Union>>]?: Union extends unknown
      ? Field extends keyof Union
        ? Exclude<Union[Field], undefined>
        : never
      : never;
  }
>;
type FieldOf<Union> = Union extends unknown ? keyof Union : never;
/** Fields that each of them has always. */
type AlwaysIn<Union> = {
  [Field in FieldOf<Union>]: true extends (Union extends unknown ? IsLackedBy<Union, Field> : never)
    ? never
    : Field;
}[FieldOf<Union>];
type IsLackedBy<One, Field extends PropertyKey> = One extends { readonly [Each in Field]: unknown }
  ? false
  : true;
/** Every decision that the document describes. */
type DescribedDecision = Described<
  typeof schemas.CheckDecision | typeof schemas.HoldDecision | typeof schemas.LeaseDecision
>;

test("every answer is described as it is typed", () => {
  expectTypeOf<Described<typeof schemas.RuleDecision>>().toEqualTypeOf<RuleDecision>();
  expectTypeOf<Described<typeof schemas.Lease>>().toEqualTypeOf<Lease>();
  expectTypeOf<Described<typeof schemas.Hold>>().toEqualTypeOf<Hold>();
  expectTypeOf<Merged<DescribedDecision>>().toEqualTypeOf<answers.Decision>();
  expectTypeOf<Described<typeof schemas.KeyFigures>>().toEqualTypeOf<
    Omit<answers.KeyReport, keyof answers.Decision>
  >();
  expectTypeOf<Described<typeof schemas.AllDecisions>>().toExtend<answers.AllDecisions>();
});
