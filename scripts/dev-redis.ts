/**
 * Runs the limiter locally as `npm start` does, with a pool in a private redis-server behind a bridge that
 * speaks Upstash's REST protocol. Redis's data is lost at the end; the state of `npm start` stays.
 */
import { randomBytes } from "node:crypto";
import { parseDeployment } from "../core/policies/parse-policies.ts";
import type { Policies } from "../core/policies/policy.ts";
import { runCommand } from "./call.ts";
import { startLimiter } from "./local-limiter.ts";
import { readWranglerToml } from "./project.ts";
import { startRedis } from "./redis-server.ts";
import { startBridge, type Bridge, type BridgeOptions } from "./upstash-bridge.ts";

/** A fixed port, so that a pasted address still works; a free one if it is taken. */
const BRIDGE_PORT = 8079;

/** Added when no policy of wrangler.toml has a pool in Redis. */
const REDIS_POLICIES = {
  "redis-demo": { algorithm: "token-bucket", limit: 10, window: "10s", pool: "redis" },
  "redis-slots": { algorithm: "concurrency", limit: 3, pool: "redis" },
};

async function main(): Promise<void> {
  const { policies: ofToml, regions } = readWranglerToml();
  const { policies, name } = policiesWithRedis(ofToml);
  // The worker would refuse bad policies too, but later and with a stack.
  const parsed = parseDeployment({ policies, regions }).policies;
  // Signals are handled from here on, so one during the start also stops what has been started.
  const signalled = new Promise<NodeJS.Signals>((done) => {
    for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, done);
  });
  const redis = await startRedis();
  try {
    const bridge = await startBridgeOnFreePort({
      redisUrl: `redis://127.0.0.1:${redis.port}`,
      token: randomBytes(24).toString("base64url"),
      port: BRIDGE_PORT,
      log: (line) => console.log(line),
    });
    try {
      process.exitCode = await runLimiter({ policies, parsed }, name, bridge, redis.port, signalled);
    } finally {
      await bridge.stop();
    }
  } finally {
    await redis.stop();
  }
}

/** Runs the limiter until a signal ends it or it ends by itself. Returns its exit code. */
async function runLimiter(
  { policies, parsed }: { policies: object; parsed: Policies },
  policy: string,
  bridge: Bridge,
  redisPort: number,
  signalled: Promise<NodeJS.Signals>,
): Promise<number> {
  const limiter = await startLimiter(parsed, {
    POLICIES: JSON.stringify(policies),
    UPSTASH_REDIS_REST_URL: bridge.url,
    UPSTASH_REDIS_REST_TOKEN: bridge.token,
  });
  void signalled.then((signal) => limiter.stop(signal));
  if (await limiter.isUp) console.log(instructions(limiter.curl(policy), bridge, redisPort));
  return await limiter.exited;
}

function instructions(limiterLine: string, { url, token }: Bridge, redisPort: number): string {
  return `
The limiter is up, with Redis. Paste this in another terminal:

${limiterLine}

What it keeps in Redis:

redis-cli -p ${redisPort} --scan

The bridge to Redis, that stands in for Upstash. It is for development only:

UPSTASH_REDIS_REST_URL=${url}
UPSTASH_REDIS_REST_TOKEN=${token}
curl -s ${url} -H 'Authorization: Bearer ${token}' -d '["PING"]'
`;
}

function policiesWithRedis(given: unknown): { policies: object; name: string } {
  const policies = { ...(given as Readonly<Record<string, { pool?: unknown }>>) };
  const [name] = Object.entries(policies).find(([, { pool }]) => pool === "redis") ?? [];
  if (name !== undefined) return { policies, name };
  return { policies: { ...policies, ...REDIS_POLICIES }, name: "redis-demo" };
}

async function startBridgeOnFreePort(options: BridgeOptions): Promise<Bridge> {
  try {
    return await startBridge(options);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EADDRINUSE") throw error;
    return await startBridge({ ...options, port: 0 });
  }
}

await runCommand(main);
