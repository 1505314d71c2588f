/** The schemas of requests and answers about all keys of a policy. */
import * as v from "valibot";
import { integer, table } from "../../core/validation.ts";
import { MOST_KEY_BYTES } from "./request-parts.ts";
import { KeyRequest } from "./request-schemas.ts";
import { text } from "./text-schema.ts";

/** The most keys on a page, and how many there are if the request does not say. */
export const MOST_LISTED = 1_000;
const DEFAULT_LISTED = 100;

const { policy } = KeyRequest.entries;
const prefix = v.optional(
  v.pipe(text(MOST_KEY_BYTES), v.description("Only keys that begin with it, compared byte by byte.")),
);
const cursor = v.optional(
  v.pipe(
    v.string("the cursor of an answer"),
    v.description("The `cursor` of the page before; absent: the first page."),
  ),
);

export const KeyCountRequest = table({ policy, prefix, cursor });

export const KeyListRequest = table({
  policy,
  prefix,
  cursor,
  limit: v.optional(
    v.pipe(integer(1, MOST_LISTED), v.description("The most keys on the page.")),
    DEFAULT_LISTED,
  ),
});

const figure = (description: string) =>
  v.pipe(v.number(), v.integer(), v.minValue(0), v.description(description));
const next = v.optional(v.pipe(v.string(), v.description("Absent: this was the last page.")));

export const ListedKey = v.object({
  key: v.string(),
  limit: figure("The most units that can be admitted at once."),
  remaining: figure("The largest cost that would pass now."),
  resetAfterMs: figure("How long until the quota is whole again if no other call comes, in milliseconds."),
  outstanding: figure("Units that are held, reserved or leased at this moment."),
  holds: figure("Callers' holds that have not ended."),
  leases: figure("Leases that have not ended."),
});

export const KeyList = v.object({
  keys: v.pipe(
    v.array(ListedKey),
    v.description(
      "Keys of which something is stored. A page may have few or none, and another one after it.",
    ),
  ),
  cursor: next,
});
export type KeyList = Readonly<v.InferOutput<typeof KeyList>>;

export const KeyCount = v.object({
  count: figure("How many keys something is stored of: of the objects that were asked, 256 at most."),
  cursor: next,
});
export type KeyCount = Readonly<v.InferOutput<typeof KeyCount>>;
