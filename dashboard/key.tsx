/** The page of a key: what is left, its holders, its override, and its actions. */
import { useRef, useState } from "preact/hooks";
import type { KeyReport, Override, RuleDecision } from "./answers.ts";
import { canStandInAddress, path } from "./api.ts";
import { readClockMs } from "./clock.ts";
import { useRights, useSession } from "./context.ts";
import { Groups } from "./groups.tsx";
import { KeyActions } from "./key-actions.tsx";
import { readOverride } from "./key-changes.ts";
import { KeyHistory, withSeen, type Seen } from "./key-history.tsx";
import { DoneNote, Figure, Part, ProblemNote, Rows, To, type Done } from "./parts.tsx";
import { usePoll } from "./poll.ts";
import { retryAfter, count, duration, instant, scheduledLine, startsInMs } from "./words.ts";

const EVERY_MS = 5_000;

export function KeyPage({ policy, name }: { readonly policy: string; readonly name: string }) {
  const { ask } = useSession();
  const rights = useRights();
  const [done, setDone] = useState<Done>();
  const report = usePoll(`${policy} ${name}`, EVERY_MS, () =>
    ask<KeyReport>("GET", path("policies", policy, "keys", name)),
  );
  const seen = useRef<readonly Seen[]>([]);
  if (report.value !== undefined) seen.current = withSeen(seen.current, report.value);
  const { value: found, problem: unread } = useOverride(policy, name.includes("*") ? undefined : name);
  const own = found?.override;
  const wider = report.value?.override === name ? undefined : report.value?.override;
  return (
    <>
      <p>
        Policy <To place={{ at: "policy", policy }}>{policy}</To>
      </p>
      <h1 class="key">{name}</h1>
      {canStandInAddress(name) ? (
        <>
          <DoneNote done={done} onEnd={() => setDone(undefined)} />
          <ProblemNote problem={report.problem} />
          {own !== undefined && <InForce override={own} />}
          {wider !== undefined && hasNotBegun(own) && <Wider policy={policy} pattern={wider} />}
          {report.value !== undefined && <State report={report.value} />}
          {report.value?.groups !== undefined && <Groups groups={report.value.groups} />}
          <KeyHistory seen={seen.current} />
          {/* A change replaces the override that was shown, so it is read first. */}
          {rights.changes && name.startsWith(rights.keyPrefix) && (found ?? unread) !== undefined && (
            <KeyActions policy={policy} name={name} own={own} onDone={setDone} />
          )}
        </>
      ) : (
        <p class="note bad">The keys . and .. cannot be part of an address, so they are not shown here.</p>
      )}
      {rights.calls && (
        <p>
          <To place={{ at: "try", policy, key: name }}>Try a call on this key</To>
        </p>
      )}
    </>
  );
}

function State({ report }: { readonly report: KeyReport }) {
  const { outstanding, holds, leases, reclaimed, queueLength, longestWaitMs } = report;
  const some = (name: string, value: number) => value > 0 && <Figure name={name} value={count(value)} />;
  return (
    <Part title="Now">
      <p class={report.success ? "good-text" : "bad-text"} data-reason={report.reason}>
        {report.success
          ? "A call of cost 1 is admitted now."
          : `A call of cost 1 is denied now: ${report.reason}.`}
      </p>
      <dl class="figures">
        <Figure name="remaining" value={report.remaining === undefined ? "–" : count(report.remaining)} />
        {report.plan !== undefined && <Figure name="plan" value={report.plan} />}
        <Figure name="in use" value={count(outstanding)} />
        {some("holds", holds)}
        {some("leases", leases)}
        {some("expired leases", reclaimed)}
        {some("waiting", queueLength)}
        {longestWaitMs > 0 && <Figure name="longest wait" value={duration(longestWaitMs)} />}
      </dl>
      {report.rules.length > 0 && (
        <Rows
          label="Rules"
          heads={["rule", "remaining", "limit", "full again in", "retry after"]}
          rows={report.rules.map((rule) => ({
            key: rule.name,
            cells: [
              rule.name,
              <Remaining rule={rule} />,
              count(rule.limit),
              duration(rule.resetAfterMs),
              retryAfter(rule),
            ],
          }))}
        />
      )}
    </Part>
  );
}

function Remaining({ rule: { name, limit, remaining } }: { readonly rule: RuleDecision }) {
  return (
    <>
      {count(remaining)}{" "}
      <meter min={0} max={Math.max(1, limit)} value={remaining} aria-label={`${name}: remaining`} />
    </>
  );
}

/** The override of exactly this pattern, as the catalog has it. */
function useOverride(policy: string, pattern: string | undefined) {
  const { ask } = useSession();
  return usePoll<{ readonly override: Override | undefined }>(
    `${policy} ${pattern ?? ""}`,
    EVERY_MS,
    async () => {
      if (pattern === undefined) return { value: { override: undefined }, etag: undefined };
      const { value, problem } = await readOverride(ask, policy, pattern);
      return problem === undefined ? { value: { override: value }, etag: undefined } : { problem };
    },
  );
}

function Wider({ policy, pattern }: { readonly policy: string; readonly pattern: string }) {
  const { value, problem } = useOverride(policy, pattern);
  if (value?.override !== undefined) return <InForce override={value.override} />;
  return <ProblemNote problem={problem} />;
}

function hasNotBegun(own: Override | undefined): boolean {
  return own === undefined || startsInMs(own, readClockMs()) > 0;
}

function InForce({ override }: { readonly override: Override }) {
  const { pattern, expiresAt, note } = override;
  return (
    <p class={`note ${override.blocked === true ? "bad" : ""}`} data-override={pattern}>
      Override of <code>{pattern}</code>: {scheduledLine(override, readClockMs())}
      {expiresAt === undefined ? ", until it is removed" : `, until ${instant(expiresAt)}`}
      {note !== undefined && ` (${note})`}
    </p>
  );
}
