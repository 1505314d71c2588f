/** Calls an object directly from inside workerd, reads its storage, and evicts or crashes it. */
import { evictDurableObject, runDurableObjectAlarm, runInDurableObject } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { readAnswer } from "../../client/transports/send-batch.ts";
import { objectName } from "../../core/protocol/names.ts";
import { policies } from "../../durable-objects/deployment.ts";
import type { LimiterObject } from "../../durable-objects/limiter-object.ts";
import { freshKey } from "./limiter.ts";

/** A key that no other test uses, in the same object as another. */
export function keyBeside(policyName: string, key: string): string {
  const policy = policies.get(policyName);
  if (policy === undefined) throw new Error(`no policy ${policyName}`);
  for (;;) {
    const beside = freshKey();
    if (objectName(policy, beside) === objectName(policy, key)) return beside;
  }
}

/** The object that holds a key, and calls to it by that key. */
export function objectOf(policyName: string, key: string) {
  const policy = policies.get(policyName);
  if (policy === undefined) throw new Error(`no policy ${policyName}`);
  const objects = (env as unknown as { OBJECTS: DurableObjectNamespace<LimiterObject> }).OBJECTS;
  // A stub whose object has crashed stays broken, so each use makes a new one.
  const stubNow = () => objects.getByName(objectName(policy, key));
  return {
    get stub() {
      return stubNow();
    },
    async limit(cost = 1, idempotencyKey?: string) {
      const answer = readAnswer(await stubNow().limit(policyName, key, cost, idempotencyKey));
      return "rules" in answer ? answer.rules[0] : answer;
    },
    async refund(units: number, idempotencyKey: string) {
      const answer = readAnswer(await stubNow().refund(policyName, key, units, idempotencyKey));
      return "rules" in answer ? answer.rules[0] : answer;
    },
    async refundCharge(charge: string, units: number, idempotencyKey: string) {
      const call = { policy: policyName, key, units, idempotencyKey, charge };
      const answer = readAnswer(await stubNow().refundCharge(call));
      return "rules" in answer ? answer.rules[0] : answer;
    },
    async remaining(): Promise<number | undefined> {
      return (await stubNow().peek(policyName, key)).rules[0]?.remaining;
    },
    reset: () => stubNow().reset(policyName, key),
    /** Evicts the object, as the runtime evicts an idle one: pending work is done first. */
    evict: () => evictWhenIdle(stubNow),
    /** Kills the object at once: timers and memory are gone, and only written state remains. */
    crash: () =>
      runInDurableObject(stubNow(), (_, state) => state.abort("crashed by a test")).catch(() => undefined),
    /** Everything the object has stored: rows by table, and its alarm. */
    stored: () =>
      runInDurableObject(stubNow(), async (_, { storage }) => {
        const tables = storage.sql
          .exec<{ name: string }>("SELECT name FROM sqlite_master WHERE name NOT LIKE '\\_%' ESCAPE '\\'")
          .toArray();
        // The record of the only key, while there is no table.
        const record = storage.kv.get<object>("record");
        const rows = tables.map(({ name }): [string, object[]] => [
          name,
          storage.sql.exec(`SELECT * FROM ${name}`).toArray(),
        ]);
        return {
          tables: Object.fromEntries<object[]>(record ? [...rows, ["record", [record]]] : rows),
          alarmAtMs: await storage.getAlarm(),
          lead: storage.kv.get("lead"),
        };
      }),
    /** Writes everything to its own table, as when the process ends in an orderly way. */
    rest: () => runInDurableObject(stubNow(), (instance: LimiterObject) => instance.rest()),
    runAlarm: () => runDurableObjectAlarm(stubNow()),
  };
}

/** On a busy machine a message of the object may be in flight for longer than one try waits. */
async function evictWhenIdle(
  stub: () => Parameters<typeof evictDurableObject>[0],
  tries = 10,
): Promise<void> {
  try {
    await evictDurableObject(stub());
  } catch (error) {
    if (tries === 1 || !String(error).includes("active references")) throw error;
    await evictWhenIdle(stub, tries - 1);
  }
}
