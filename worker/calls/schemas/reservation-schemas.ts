/** The schemas of a message that holds units of many keys, and of its answer. */
import * as v from "valibot";
import { MAX_UNITS } from "../../../core/algorithms/algorithm.ts";
import {
  MAX_MADE,
  MAX_RESERVING,
  RESERVATIONS_PROTOCOL,
} from "../../../core/protocol/reservation-messages.ts";
import { described, integer, number, table } from "../../../core/validation.ts";
import { Decision, RuleDecision } from "./answer-schemas.ts";
import { ProblemDetails } from "./problem-schemas.ts";
import {
  amount,
  AMOUNT,
  INTEGER,
  LimitRequest,
  list,
  milliseconds,
  optional,
  text,
} from "./request-schemas.ts";

const MAX_HOLDER_BYTES = 64;
const total = integer(0, Number.MAX_SAFE_INTEGER);
const holder = described(
  text(MAX_HOLDER_BYTES),
  "Names the client for this key. It must be random, and another one for each key and each start of the client.",
);
const turn = described(
  integer(1, Number.MAX_SAFE_INTEGER),
  "Rises with each message of the holder. A message with a lower one is late, and changes nothing.",
);
const used = described(total, "Units that the holder has used since it began.");
const left = described(
  integer(0, MAX_UNITS),
  "Of its bucket: units that it returns unused. Others that it does not keep count as used.",
);
const { policy, key, cost, priority, plan, group } = LimitRequest.entries;
const CALL_ALLOWED = "an object with one of the fields giveBack, limit, reserve, slots";
const LEFT_ALLOWED = `a list of 1 to ${MAX_RESERVING} times in milliseconds, one for each call`;
const HOLDER_ALLOWED = "a text of 22 letters, digits, - or _, which is random";
const MADE_ALLOWED = `a table of up to ${MAX_MADE} pairs [admitted, denied] by policy`;
const CALLS_ALLOWED = `a list of 1 to ${MAX_RESERVING} calls`;

const Limit = table({ policy, key, cost, priority, plan, group });
const GiveBack = table({
  policy,
  returned: described(
    list(
      table({
        key,
        holder,
        turn,
        used: v.record(v.string(), used, "a table of units by rule"),
        left: v.optional(v.record(v.string(), left, "a table of units by rule")),
      }),
      MAX_RESERVING,
      CALLS_ALLOWED,
    ),
    "Holders that have ended. Units that they did not use are free again.",
  ),
});
const Reserve = table({
  policy,
  key,
  cost: described(cost, "The cost of a call that waits for a decision; 0: no call does."),
  priority,
  plan,
  group,
  holder,
  turn,
  ttlMs: described(
    integer(0, 60_000),
    "For how long the units are wanted, in milliseconds. The client counts from before it sends the message.",
  ),
  isShort: described(v.boolean("true or false"), "Whether calls wait for units already."),
  takesBucket: optional(
    v.boolean("true or false"),
    "The client takes a bucket of its own (reserved.buckets). true: it is far away. false: if the key has many holders. As demand, rate, level and left only for policies with a rule that is isCuttable.",
  ),
  rules: described(
    v.record(
      v.string(),
      table({
        used,
        kept: described(integer(0, MAX_UNITS), "Units that it keeps. All others are free again."),
        wanted: described(integer(0, MAX_UNITS), "Units that it wants, the kept ones included."),
        demand: optional(number(0, MAX_UNITS), "The units that its calls need in a second."),
        rate: optional(total, "The rate of its bucket, as it was given. Then kept is the most units in it."),
        level: optional(integer(0, MAX_UNITS), "The units in its bucket now."),
        left: v.optional(left),
      }),
      "a table by rule",
    ),
    "By the name of the rule.",
  ),
});

/** An id as other holders have it: what the object makes of such a name has other characters. */
const HOLDER = /^[A-Za-z0-9_-]{22}$/;
const MAX_MEMORY_BYTES = 64;
const Held = table({
  policy,
  key,
  holder: described(
    v.pipe(v.string(HOLDER_ALLOWED), v.regex(HOLDER, HOLDER_ALLOWED)),
    "Names the client for this key. The ids of its leases begin with the same four characters.",
  ),
  turn,
  heard: described(total, "The last turn whose answer was heard; 0: none."),
  memory: optional(text(MAX_MEMORY_BYTES), "As in the last answer. Absent: there was none."),
  kept: described(
    integer(0, MAX_UNITS),
    "Slots that it keeps, the leased ones included. All others are free.",
  ),
  leased: described(integer(0, MAX_UNITS), "Slots of leases that it has granted."),
  wanted: described(integer(0, MAX_UNITS), "Slots that it wants, the kept ones included."),
  granted: described(total, "Leases that it has granted since it began."),
  released: described(total, "And those that were released."),
});

/** Has one of these fields. */
export const ReservationCall = table({
  giveBack: v.optional(GiveBack),
  limit: v.optional(Limit),
  reserve: v.optional(Reserve),
  slots: v.optional(Held),
});

const Sent = described(
  table({
    from: described(text(MAX_HOLDER_BYTES), "Names the process that sends. It must be random."),
    atMs: described(total, "When it was sent, by the sender's own clock."),
    leftMs: described(
      list(total, MAX_RESERVING, LEFT_ALLOWED),
      "For each call, how long its caller waits from then on.",
    ),
  }),
  "A call whose caller has stopped waiting when the message arrives is not decided, and its answer is failed. Only for a limiter that has answered with readsSent.",
);

export const ReservationsRequest = table({
  protocol: described(
    integer(1, RESERVATIONS_PROTOCOL),
    "The version of the message. A limiter refuses one that it does not know.",
  ),
  known: optional(
    v.record(v.string(), v.string("the version of a description"), "a table of versions by policy"),
    "The policies that the client knows, by name: the versions of their descriptions.",
    {},
  ),
  sent: v.optional(Sent),
  made: optional(
    v.pipe(
      v.record(v.string(), v.tuple([total, total], MADE_ALLOWED), MADE_ALLOWED),
      v.maxEntries(MAX_MADE, MADE_ALLOWED),
    ),
    "How many decisions the client has made by itself since it last said so, to be counted: by policy, or policy and plan with a space between, those that were admitted and those that were denied. Only for a limiter that has answered with readsMade.",
    {},
  ),
  calls: list(v.pipe(ReservationCall, v.entries(1, CALL_ALLOWED)), MAX_RESERVING, CALLS_ALLOWED),
});

export const Reserved = v.object({
  ttlMs: milliseconds("The lifetime of the units."),
  isNew: described(v.boolean(), "Units that the client kept were not known any more, and may not be spent."),
  units: described(
    v.record(v.string(), amount("Units.")),
    "By rule: units that are granted in addition to the kept ones.",
  ),
  buckets: optional(
    v.record(
      v.string(),
      v.object({
        rate: v.object({
          units: described(v.number(), "Units that come in windowMs."),
          windowMs: milliseconds("The time in which they come."),
        }),
        most: amount("The most units in the bucket. What was kept beyond is given up with the next message."),
      }),
    ),
    "By rule: a bucket of the client's own until ttlMs is over, or the next answer. Absent: it has units alone.",
  ),
  prospects: v.optional(
    v.record(
      v.string(),
      v.object({ resetAfterMs: milliseconds("As in a decision."), gains: v.optional(v.array(v.number())) }),
    ),
  ),
});

export const Decided = v.object({
  rules: v.array(RuleDecision),
  source: v.optional(v.picklist(["pool", "fallback"])),
  reserved: v.optional(Reserved),
  next: optional(v.array(RuleDecision), "What a call of cost 1 would be answered now, if denied."),
  firmForMs: optional(AMOUNT, "How long a denial stands, unless a refund or a reset lifts it."),
  epoch: optional(
    v.string(),
    "Denials with this text and firmForMs stand for that time from any later message that was answered with the same text.",
  ),
  quietMs: optional(
    AMOUNT,
    "How long the client denies this cost by itself, even if a unit is back sooner: many share the key.",
  ),
});

const heldFor = "How long its slots last, since the message was sent. No lease lasts for longer.";
export const Slots = v.object({
  slots: v.object({
    memory: described(v.string(), "Names the memory that answers."),
    given: optional(
      v.object({
        more: amount("Slots that it has beside the kept ones."),
        isNew: described(
          v.boolean(),
          "The kept ones are not its own any more, and all of its leases are lost.",
        ),
        resetAgoMs: optional(AMOUNT, "The key was reset so long ago: leases granted before are lost."),
        lifeMs: milliseconds(heldFor),
        paceMs: milliseconds("When to send the next message."),
        ttlMs: milliseconds("Of no meaning to clients."),
        tokens: described(v.array(v.number()), "Fencing tokens for leases: the first one, and the end."),
        ended: described(v.array(v.string()), "Leases that were ended elsewhere."),
        isHome: described(v.boolean(), "No lease may be granted, and slots that are free go back."),
        most: amount("The most slots that it may keep, beside those of leases."),
        remaining: amount("Slots that are left at the object."),
      }),
      "Absent: another memory answers, which has applied nothing. The message is sent again for that memory.",
    ),
  }),
});

const describedPolicy = v.objectWithRest(
  { version: v.string(), rules: v.array(v.looseObject({ name: v.string() })) },
  v.unknown(),
);

/** null: units were given back, or nothing is granted by the rules of now. failed: the outcome is not known. */
export const ReservationAnswer = v.union([
  v.null(),
  Decided,
  Slots,
  v.object({ decision: Decision }),
  v.object({
    problem: v.object({ ...ProblemDetails.entries, type: v.optional(v.string()), code: v.string() }),
  }),
  v.object({ failed: v.string() }),
]);

export const ReservationsAnswer = v.object({
  protocol: INTEGER,
  answers: described(
    v.array(ReservationAnswer),
    "One for each call, in their order. null: units were given back, or the key is decided by other rules now, and kept units may not be spent any more. failed: the outcome is not known.",
  ),
  policies: described(
    v.record(v.string(), describedPolicy),
    "Policies of the calls that the client does not know, or that have changed.",
  ),
  readsSent: optional(v.literal(true), "The limiter reads the field sent."),
  readsMade: optional(v.literal(true), "The limiter reads the field made."),
});
