/** The schema of what a look at a key answers. */
import * as v from "valibot";
import { figure, milliseconds } from "./answer-schemas.ts";
import { Decision } from "./decision-schemas.ts";

/** What a key has besides its decision. */
export const KeyFigures = v.object({
  outstanding: figure("Units that are held, reserved or leased at this moment."),
  holds: figure("Callers' holds that have not ended."),
  leases: figure("Leases that have not ended."),
  reclaimed: figure("Leases that expired instead of being released, since the key was last forgotten."),
  queueLength: figure("Callers who wait for units."),
  longestWaitMs: milliseconds("How long the first caller in the queue has waited so far."),
  shedding: v.optional(
    v.pipe(
      v.object({
        utilization: v.pipe(
          v.nullable(v.number()),
          v.description("How busy the machines are, from 0 to 1; null: nobody has reported lately."),
        ),
        chances: v.pipe(
          v.record(v.string(), v.number()),
          v.description("By priority: the chance, from 0 to 1, with which a call is shed."),
        ),
      }),
      v.description("Of a policy that sheds calls while machines are too busy."),
    ),
  ),
});
export const KeyReport = v.intersect([Decision, KeyFigures]);
