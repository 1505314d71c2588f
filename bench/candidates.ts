/**
 * `npm run bench:candidates`: what it costs that a policy has a candidate. One limiter has a policy with one and a policy
 * without; both are loaded in turn, ROUNDS times for SECONDS, on plain workerd: one hot key, and 10,000 keys. What is
 * compared is the processor time that a request takes.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { BUNDLE, build, installedVersion } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { load, requestsFor } from "./load.ts";
import { processorSeconds } from "./processor-time.ts";

const ROUNDS = Number(process.env["ROUNDS"] ?? 16);
const SECONDS = Number(process.env["SECONDS"] ?? 1);
const KEYS = { "one hot key": 1, "10,000 keys": 10_000 };
const BUCKET = { algorithm: "token-bucket", limit: 1_000_000, window: "1s", objects: 16, deadlineMs: 10_000 };

const median = (values: readonly number[]) =>
  values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;

const folder = mkdtempSync(join(tmpdir(), "weir-bench-candidates-"));
const { token, entry } = makeToken({ name: "bench", scopes: ["limit", "admin"] });
build();
const serving = await serve({
  stateDir: join(folder, "state"),
  policies: { alone: BUCKET, tried: BUCKET },
  apiTokens: JSON.stringify([entry]),
  main: BUNDLE,
  hasDeploymentObjects: true,
});
try {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const put = await fetch(`${serving.url}/v1/policies/tried/candidate`, {
    method: "PUT",
    headers,
    body: JSON.stringify({ ...BUCKET, limit: 500_000 }),
  });
  if (!put.ok) throw new Error(await put.text());
  for (const [what, count] of Object.entries(KEYS)) {
    const requests = ["alone", "tried"].map((policy) => {
      const bodies = Array.from({ length: count }, (_, key) =>
        JSON.stringify({ policy, key: `${count}:${key}` }),
      );
      return requestsFor(`${serving.url}/v1/limit`, token, bodies);
    });
    for (const each of requests) await load(each, 4);
    const used = requests.map((): number[] => []);
    for (let round = 0; round < ROUNDS; round += 1)
      for (const which of round % 2 === 0 ? [0, 1] : [1, 0]) {
        const [asked, all, { pid }] = [requests[which], used[which], serving.process];
        if (asked === undefined || all === undefined || pid === undefined) continue;
        const before = processorSeconds(pid);
        const done = await load(asked, SECONDS);
        all.push(((processorSeconds(pid) - before) / done.count) * 1e6);
      }
    const [alone = [], tried = []] = used;
    const ratios = tried.map((each, round) => each / (alone[round] ?? Number.NaN));
    console.log(
      `${what}: ${median(alone).toFixed(1)} µs of processor time a request, ${median(tried).toFixed(1)} with a candidate ` +
        `(median of ${ROUNDS} ratios ${median(ratios).toFixed(2)})`,
    );
  }
  console.log(`${cpus()[0]?.model}, ${cpus().length} cores, workerd ${installedVersion("workerd")}`);
} finally {
  await serving.stop("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}
