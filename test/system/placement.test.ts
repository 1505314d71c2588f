/** Where objects are made, served by plain workerd: a jurisdiction where there is none, and the home of a deployment. */
import { expect, test } from "vitest";
import { serve } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const policies = {
  here: { algorithm: "token-bucket", limit: 2, window: "30d", locationHint: "weur", deadlineMs: 20_000 },
  european: { algorithm: "token-bucket", limit: 2, window: "30d", jurisdiction: "eu", deadlineMs: 20_000 },
  /** Objects find each other by their names. */
  moved: {
    algorithm: "token-bucket",
    limit: 2,
    window: "30d",
    jurisdiction: "eu",
    objects: 4,
    objectsBefore: "per-key",
    deadlineMs: 20_000,
  },
};

test("plain workerd goes without jurisdictions: the same policies are served, exactly", async () => {
  const state = makeState();
  const served = await serveBundle(state, policies);
  try {
    for (const policy of Object.keys(policies)) {
      const reasons = [];
      for (let call = 0; call < 3; call += 1) {
        const answered = await fetch(`${served.url}/v1/limit`, {
          method: "POST",
          headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
          body: JSON.stringify({ policy, key: "k" }),
        });
        reasons.push(((await answered.json()) as { reason: string }).reason);
      }
      expect({ policy, reasons }).toEqual({ policy, reasons: ["ok", "ok", "quota"] });
    }
  } finally {
    await served.stop();
    removeState(state);
  }
});

test("a home that is none does not start: it says what is allowed", async () => {
  const state = makeState();
  const starting = serve({ stateDir: state, policies, home: "mars", onOutput: () => undefined });
  await expect(starting).rejects.toThrow(/HOME is "mars": must be one of "wnam", /);
  removeState(state);
});
