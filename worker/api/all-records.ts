/** All calls, by the ids of their operations. */
import type { Call, CatalogCall } from "./call.ts";
import { catalogRecords } from "./catalog-records.ts";
import { claimRecords } from "./claim-records.ts";
import { keyRecords, statsRecords } from "./key-records.ts";
import { limitRecords } from "./limit-records.ts";

/** In the order in which they are routed: what is at a fixed address stands before what may have any name there. */
export const RECORDS: Readonly<Record<string, Call | CatalogCall>> = {
  ...limitRecords,
  ...claimRecords,
  ...keyRecords,
  ...catalogRecords,
  ...statsRecords,
};
