import { DurableObject } from "cloudflare:workers";
import type { CatalogMethods, WriteCall } from "../../core/catalog/calls.ts";
import { readClockMs } from "../../core/clock.ts";
import { deployed } from "../deployment.ts";
import { Catalog } from "./catalog.ts";

/** An alarm is never later than this: the runtime takes none after 2189, and an override may end in 9999. */
const MOST_ALARM_MS = 365 * 24 * 3_600_000;

/** The object that has what was changed at run time: policies, overrides and tokens. There is one. */
export class CatalogObject extends DurableObject implements CatalogMethods {
  readonly #catalog: Catalog;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    this.#catalog = new Catalog(ctx.storage, deployed, readClockMs);
  }

  async changes(since: number): ReturnType<CatalogMethods["changes"]> {
    return this.#catalog.changes(since);
  }

  async write(call: WriteCall): ReturnType<CatalogMethods["write"]> {
    const written = this.#catalog.write(call);
    await this.#setAlarm();
    return written;
  }

  async policy(name: string): ReturnType<CatalogMethods["policy"]> {
    return this.#catalog.policy(name);
  }

  async candidate(policy: string): ReturnType<CatalogMethods["candidate"]> {
    return this.#catalog.candidate(policy);
  }

  async override(policy: string, pattern: string): ReturnType<CatalogMethods["override"]> {
    return this.#catalog.override(policy, pattern);
  }

  async overrides(policy: string, after?: string): ReturnType<CatalogMethods["overrides"]> {
    return this.#catalog.overrides(policy, after);
  }

  async tokens(): ReturnType<CatalogMethods["tokens"]> {
    return this.#catalog.tokens();
  }

  async document(): ReturnType<CatalogMethods["document"]> {
    return this.#catalog.document();
  }

  async audit(before?: number): ReturnType<CatalogMethods["audit"]> {
    return this.#catalog.audit(before);
  }

  /** Overrides that have ended are taken away. */
  override async alarm(): Promise<void> {
    this.#catalog.endOverrides();
    await this.#setAlarm();
  }

  async #setAlarm(): Promise<void> {
    const nextMs = this.#catalog.nextEndMs;
    if (nextMs === undefined) return;
    await this.ctx.storage.setAlarm(Math.min(nextMs, readClockMs() + MOST_ALARM_MS));
  }
}
