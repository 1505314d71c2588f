/** Prints the Lua script that decides about a pool: `node examples/redis-pool/print-script.ts > pool.lua`. */
import { POOL_SCRIPT } from "../../durable-objects/pool/redis/script.ts";

process.stdout.write(POOL_SCRIPT);
