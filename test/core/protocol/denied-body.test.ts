import { expect, test } from "vitest";
import { DENIAL_REASONS } from "../../../core/algorithms/algorithm.ts";
import { CALL_REASONS, type Decision } from "../../../core/protocol/decision.ts";
import { deniedBody } from "../../../core/protocol/denied-body.ts";

const denied = (reason: Decision["reason"]): Decision => ({
  success: false,
  policy: "api",
  key: "k",
  limit: 1,
  retryAfterMs: null,
  reason,
  source: "isolate",
  rules: [],
});

test("only a cost over the limit is called that, and a blocked key is called blocked", () => {
  for (const reason of [...DENIAL_REASONS, ...CALL_REASONS].filter(
    (each) => each !== "degraded" && each !== "shed",
  ))
    expect(deniedBody(denied(reason)).detail.includes("over the limit"), reason).toBe(
      reason === "cost-over-limit",
    );
  expect(deniedBody(denied("blocked")).detail).toBe("the key is blocked, and no wait ends that");
});
