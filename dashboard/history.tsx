import { useState } from "preact/hooks";
import type { HistoryPoint } from "./answers.ts";
import { useSession } from "./context.ts";
import { ProblemNote, Rows } from "./parts.tsx";
import { HOUR, SPANS, type Span, sumsByPlan } from "./plot-series.ts";
import { Plot } from "./plot.tsx";
import { usePoll } from "./poll.ts";
import { count } from "./words.ts";

const EVERY_MS = 20_000;

export function History(props: {
  readonly policy: string;
  readonly span: Span;
  readonly height: number;
  readonly hasPlans?: boolean;
}) {
  const { policy, span, height, hasPlans = false } = props;
  const { ask } = useSession();
  const { value, problem } = usePoll(`${policy} ${span.since}`, EVERY_MS, () =>
    ask<{ points: HistoryPoint[] }>("GET", "/v1/stats", {
      query: { policy, since: span.since, step: span.step },
    }),
  );
  if (problem !== undefined) return <ProblemNote problem={problem} />;
  // Before there is an answer, it is unknown whether there were calls.
  if (value === undefined) return <div class="plot-place" aria-busy="true" />;
  return (
    <>
      <Plot span={span} points={value.points} height={height} />
      {hasPlans && <ByPlan points={value.points} />}
    </>
  );
}

function ByPlan({ points }: { readonly points: readonly HistoryPoint[] }) {
  const plans = sumsByPlan(points);
  if (plans.length === 0) return null;
  return (
    <div data-part="plans">
      <Rows label="Decisions by plan" heads={["plan", "admitted", "denied"]}>
        {plans.map(({ plan, admitted, denied }) => (
          <tr key={plan}>
            <td>{plan === "" ? "(none)" : plan}</td>
            <td>{count(admitted)}</td>
            <td>{count(denied)}</td>
          </tr>
        ))}
      </Rows>
    </div>
  );
}

export function HistoryWithSpans({ policy }: { readonly policy: string }) {
  const [span, setSpan] = useState(HOUR);
  return (
    <>
      <div class="row" role="group" aria-label="How far back">
        {SPANS.map((each) => (
          <button
            type="button"
            key={each.since}
            class={`small ${each === span ? "" : "outline secondary"}`}
            aria-pressed={each === span}
            onClick={() => setSpan(each)}
          >
            {each.name}
          </button>
        ))}
      </div>
      <History policy={policy} span={span} height={220} hasPlans />
    </>
  );
}
