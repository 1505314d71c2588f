import * as v from "valibot";
import { table } from "../../core/validation.ts";
import { Cost } from "./request-parts.ts";
import { KeyRequest } from "./request-schemas.ts";

/** Over HTTP policy and key are parts of the address. Over the service binding they are fields. */
export const SetRequest = table({
  ...KeyRequest.entries,
  used: v.pipe(
    Cost,
    v.description(
      "Units that the key counts as used from now on: more than the limit is a debt. A number counts for every rule " +
        "that counts a rate. In a table by unit, a rule whose unit is left out stays as it is.",
    ),
  ),
});
