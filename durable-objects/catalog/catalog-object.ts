import { DurableObject } from "cloudflare:workers";

/** The object that has what was changed at run time: policies, overrides, candidates and tokens. There is one. */
export class CatalogObject extends DurableObject {}
