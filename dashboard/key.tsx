/** The page of a key: what is left, its holders, its override, and its actions. */
import { useState } from "preact/hooks";
import type { KeyReport, RuleDecision } from "./answers.ts";
import { canStandInAddress, path } from "./api.ts";
import { useRights, useSession } from "./context.ts";
import { Groups } from "./groups.tsx";
import { KeyActions } from "./key-actions.tsx";
import { readOverride } from "./key-changes.ts";
import { DoneNote, Figure, Part, ProblemNote, Rows, To, type Done } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { count, duration, instant, overrideLine } from "./words.ts";

const EVERY_MS = 5_000;

export function KeyPage({ policy, name }: { readonly policy: string; readonly name: string }) {
  const { ask } = useSession();
  const rights = useRights();
  const [done, setDone] = useState<Done>();
  const report = usePoll(`${policy} ${name}`, EVERY_MS, () =>
    ask<KeyReport>("GET", path("policies", policy, "keys", name)),
  );
  const changed = (what: Done | undefined) => {
    setDone(what);
    void report.again();
  };
  return (
    <>
      <p>
        <To place={{ at: "policy", policy }}>{policy}</To>
      </p>
      <h1 class="key">{name}</h1>
      {canStandInAddress(name) ? (
        <>
          <DoneNote done={done} onEnd={() => changed(undefined)} />
          <ProblemNote problem={report.problem} />
          {report.value !== undefined && <State report={report.value} policy={policy} />}
          {rights.changes && name.startsWith(rights.keyPrefix) && (
            <KeyActions policy={policy} name={name} onDone={changed} />
          )}
        </>
      ) : (
        <p class="note bad">
          A key that is just . or .. cannot stand in an address, so it cannot be looked at here.
        </p>
      )}
      {rights.calls && (
        <p>
          <To place={{ at: "try", policy, key: name }}>Try a call on this key</To>
        </p>
      )}
    </>
  );
}

function State({ report, policy }: { readonly report: KeyReport; readonly policy: string }) {
  const { outstanding, holds, leases, reclaimed, queueLength, longestWaitMs } = report;
  return (
    <>
      <Part title="Now">
        <p class={report.success ? "good-text" : "bad-text"} data-reason={report.reason}>
          {report.success
            ? "A call of cost 1 would be admitted."
            : `A call of cost 1 would be denied: ${report.reason}.`}
        </p>
        <dl class="figures">
          <Figure name="left" value={report.remaining === undefined ? "–" : count(report.remaining)} />
          {report.plan !== undefined && <Figure name="plan" value={report.plan} />}
          <Figure name="in use" value={count(outstanding)} />
          <Figure name="holds" value={count(holds)} />
          <Figure name="leases" value={count(leases)} />
          <Figure name="leases that expired" value={count(reclaimed)} />
          <Figure name="waiting" value={count(queueLength)} />
          <Figure name="longest wait" value={duration(longestWaitMs)} />
        </dl>
        {report.rules.length > 0 && (
          <Rows label="Rules" heads={["rule", "left", "of", "whole in", "passes in"]}>
            {report.rules.map((rule) => (
              <tr key={rule.name}>
                <td>{rule.name}</td>
                <td>
                  {count(rule.remaining)}{" "}
                  <meter
                    min={0}
                    max={Math.max(1, rule.limit)}
                    value={rule.remaining}
                    aria-label={`${rule.name}: left`}
                  />
                </td>
                <td>{count(rule.limit)}</td>
                <td>{duration(rule.resetAfterMs)}</td>
                <td>{passesIn(rule)}</td>
              </tr>
            ))}
          </Rows>
        )}
      </Part>
      {report.groups !== undefined && <Groups groups={report.groups} />}
      {report.override !== undefined && <InForce policy={policy} pattern={report.override} />}
    </>
  );
}

function passesIn({ success, retryAfterMs }: RuleDecision): string {
  if (success) return "now";
  return retryAfterMs === null ? "never" : duration(retryAfterMs);
}

function InForce({ policy, pattern }: { readonly policy: string; readonly pattern: string }) {
  const { ask } = useSession();
  const { value, problem } = usePoll(`${policy} ${pattern}`, EVERY_MS, async () => {
    const read = await readOverride(ask, policy, pattern);
    return read.problem === undefined ? { value: read.value, etag: undefined } : { problem: read.problem };
  });
  return (
    <Part title="Override">
      <ProblemNote problem={problem} />
      <p>
        <code>{pattern}</code>
        {value !== undefined && `: ${overrideLine(value)}`}
        {value?.expiresAt !== undefined && `, until ${instant(value.expiresAt)}`}
        {value?.note !== undefined && ` (${value.note})`}
      </p>
    </Part>
  );
}
