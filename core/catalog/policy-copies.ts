/** Copies of policies with other fields. */
import type { Policy } from "../policies/policy.ts";

/** The policy with these fields, also as calls of each priority see it. */
export function withAll(policy: Policy, more: Partial<Policy>): Policy {
  const { priorities } = policy;
  const seen = new Map([...priorities.seen].map(([name, each]) => [name, { ...each, ...more }]));
  return { ...policy, ...more, priorities: { ...priorities, seen } };
}

/** The policy, and its candidate, of keys of which an override ended at this instant. */
export function since(policy: Policy, sinceMs: number): Policy {
  const { inForce, candidate } = policy;
  return withAll(policy, {
    ...(inForce && { inForce: { ...inForce, sinceMs } }),
    ...(candidate && { candidate: { ...candidate, policy: since(candidate.policy, sinceMs) } }),
  });
}
