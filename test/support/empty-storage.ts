/**
 * Before each file: no object is in memory, none has stored anything, and the isolate has neither units nor counts of an
 * earlier file: it sends counts after 10 s, into the middle of another one. A process of its own takes 1.7 s instead.
 */
import { reset } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { beforeAll } from "vitest";
import { giveBackAll } from "../../worker/bindings/client.ts";
import type { Env } from "../../worker/bindings/env.ts";

beforeAll(async () => {
  await giveBackAll(env as unknown as Env);
  await reset();
});
