/** Callers with tokens of their own, and their calls. */
import { createHash, randomUUID } from "node:crypto";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Serving } from "../../scripts/workerd.ts";
import { HttpClient, type TimedAnswer } from "./http-client.ts";

/** The token of a caller; API_TOKENS has only its SHA-256. */
export function tokenOf(name: string): string {
  return `weir_test_${name}`;
}

/** An entry of API_TOKENS for the token of this name, with the scope limit and further fields. */
export function tokenEntry(name: string, grant: object = {}): object {
  const sha256 = createHash("sha256").update(tokenOf(name)).digest("hex");
  return { name, sha256, scopes: ["limit"], ...grant };
}

/** The calls over HTTP, by the names of the contract. */
export class HttpCaller extends HttpClient {
  readonly url: string;

  constructor(url: string, name: string, connections = 64) {
    super(url, connections, { authorization: `Bearer ${tokenOf(name)}` });
    this.url = url;
  }

  post(path: string, body: unknown): Promise<TimedAnswer> {
    return this.call("POST", `/v1/${path}`, body);
  }

  hold(policy: string, key: string, fields: object = {}): Promise<TimedAnswer> {
    return this.post("holds", { policy, key, units: 1, ...fields });
  }

  settle(id: string, used: unknown): Promise<TimedAnswer> {
    return this.post(`holds/${id}/settle`, { used });
  }

  cancel(id: string): Promise<TimedAnswer> {
    return this.call("DELETE", `/v1/holds/${id}`);
  }

  acquire(policy: string, key: string, fields: object = {}): Promise<TimedAnswer> {
    return this.post("leases", { policy, key, ...fields });
  }

  release(id: string): Promise<TimedAnswer> {
    return this.call("DELETE", `/v1/leases/${id}`);
  }

  renew(id: string): Promise<TimedAnswer> {
    return this.post(`leases/${id}/renew`, {});
  }
}

/** The id of the hold or lease in an answer. */
export function idOf({ body }: Pick<TimedAnswer, "body">): string {
  const claim = (body["hold"] ?? body["lease"]) as { readonly id: string } | undefined;
  if (claim === undefined) throw new Error(`a hold or a lease was expected: ${JSON.stringify(body)}`);
  return claim.id;
}

/** Makes `count` calls, `atOnce` at a time. */
export async function manyTimes<Result>(
  count: number,
  atOnce: number,
  call: (index: number) => Promise<Result>,
): Promise<Result[]> {
  const results: Result[] = [];
  let begun = 0;
  const worker = async () => {
    while (begun < count) {
      const index = begun;
      begun += 1;
      results[index] = await call(index);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  return results;
}

/** The number of answers by status. */
export function byStatus(answers: readonly { readonly status: number }[]): Record<number, number> {
  const counts: Record<number, number> = {};
  for (const { status } of answers) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

/** The limiter process's used memory in MiB; 0 where the system has no /proc. */
export function memoryOf(serving: Serving): number {
  const path = `/proc/${serving.process.pid}/status`;
  if (!existsSync(path)) return 0;
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(path, "utf8"))?.[1] ?? 0) / 1_024;
}

/** The size of all that is stored, in MiB. */
export function storedIn(stateDir: string): number {
  const files = readdirSync(stateDir, { recursive: true, withFileTypes: true }).filter((entry) =>
    entry.isFile(),
  );
  const bytes = files.map((entry) => statSync(join(entry.parentPath, entry.name)).size);
  return bytes.reduce((sum, size) => sum + size, 0) / 2 ** 20;
}

/** The answers to fixed calls on a caller's own key, so every round has the same values. */
export async function quietRound(caller: HttpCaller, policy: string, key: string): Promise<unknown[]> {
  const taken = await caller.limit(policy, key, { cost: 3 });
  const held = await caller.hold(policy, key, { units: 2, idempotencyKey: "quiet" });
  const again = await caller.hold(policy, key, { units: 2, idempotencyKey: "quiet" });
  const settled = await caller.settle(idOf(held), 1);
  const looked = await caller.peek(policy, key);
  return [
    idOf(again) === idOf(held),
    ...[taken, held, settled, looked].map(({ status, body }) => [
      status,
      body["success"],
      body["reason"],
      body["remaining"],
      body["outstanding"],
    ]),
  ];
}

/** Makes a quiet caller's rounds beside an attack. Throws when the values differ from before it. */
export async function beside<Result>(
  caller: HttpCaller,
  policy: string,
  attack: () => Promise<Result>,
): Promise<Result> {
  const before = await settledRound(caller, policy);
  const attacking = attack();
  let isOver = false;
  const over = () => void (isOver = true);
  attacking.then(over, over);
  do {
    const round = JSON.stringify(await quietRound(caller, policy, quietKey()));
    if (round !== before) throw new Error(`beside the attack ${round}, before it ${before}`);
  } while (!isOver);
  return await attacking;
}

/** A round on an object that presumes nothing any more. After a start it presumes units for some seconds. */
async function settledRound(caller: HttpCaller, policy: string): Promise<string> {
  const untilMs = Date.now() + 60_000;
  for (;;) {
    const round = await quietRound(caller, policy, quietKey());
    const outstanding = (round.at(-1) as readonly unknown[]).at(-1);
    if (outstanding === 0 || Date.now() > untilMs) return JSON.stringify(round);
    await new Promise((done) => setTimeout(done, 500));
  }
}

const quietKey = () => `quiet-${randomUUID()}`;
