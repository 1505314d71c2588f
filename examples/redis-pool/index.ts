/**
 * A program that shares the two pools of `npm run dev:redis` with Weir. Run it while Weir is asked about the same keys:
 * each sees the units that the other has taken.
 */
import { createClient } from "redis";
import { POOL_SCRIPT } from "../../durable-objects/pool/redis/script.ts";
import { RedisPool, type Answer } from "./pool.ts";

const KEY = "user:42";

const url = new URL(process.env["REDIS_URL"] ?? "redis://127.0.0.1:6379");
// By itself the client would try to connect for ever.
const socket = { reconnectStrategy: false, connectTimeout: 5_000 } as const;
const client = createClient({ url: url.href, RESP: 2, socket });
client.on("error", (error) => console.error(String(error)));
try {
  await client.connect();
} catch {
  // Without the address's password.
  console.error(
    `no connection to Redis at ${url.host}: set REDIS_URL to the one that npm run dev:redis prints`,
  );
  process.exit(1);
}

// These rules must be the policies' rules: the script decides by the rules that each program sends.
const demo = new RedisPool(client, POOL_SCRIPT, "redis-demo", [
  { name: "redis-demo", algorithm: "token-bucket", limit: 10, windowMs: 10_000, burst: 10 },
]);
const slots = new RedisPool(client, POOL_SCRIPT, "redis-slots", [
  { name: "redis-slots", algorithm: "concurrency", limit: 3 },
]);

try {
  print("limit, 1 unit", await demo.limit(KEY));
  print("limit, 11 units", await demo.limit(KEY, [11]));

  const held = await demo.hold(KEY, [5], 60_000);
  print("hold, 5 units", held);
  if (held.hold !== undefined) {
    print("limit, 5 units", await demo.limit(KEY, [5]));
    print("settle, 2 were used", await demo.settle(KEY, held.hold.id, [2]));
  }

  const leased = await slots.hold(KEY, [1], 30_000);
  print("lease, 1 slot", leased);
  if (leased.hold !== undefined) {
    console.log(`  until ${leased.hold.expiresAfterMs} ms from now, token ${leased.hold.fencingToken}`);
    print("renew", await slots.renew(KEY, leased.hold.id, 60_000));
    print("release", await slots.settle(KEY, leased.hold.id));
    print("renew, too late", await slots.renew(KEY, leased.hold.id, 60_000));
  }
} finally {
  client.destroy();
}

function print(what: string, { success, rules = [], missing, expiresAfterMs }: Answer): void {
  const said = rules.map(
    ({ remaining, reason, retryAfterMs }) =>
      `${remaining} left` + (success ? "" : `, ${reason}, wait ${retryAfterMs ?? "for ever"}`),
  );
  if (missing === true) said.push("there is no such lease");
  if (expiresAfterMs !== undefined) said.push(`lasts ${expiresAfterMs} ms`);
  console.log(`${what}: ${success ? "yes" : "no"}, ${said.join("; ")}`);
}
