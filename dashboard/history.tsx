import { useState } from "preact/hooks";
import type { HistoryPoint } from "./answers.ts";
import { readClockMs } from "./clock.ts";
import { useSession } from "./context.ts";
import { Choice, ProblemNote, Rows } from "./parts.tsx";
import { HOUR, seriesOf, SPANS, type Span, sumsByPlan } from "./plot-series.ts";
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
  const { points } = value;
  const sum = (field: "admitted" | "denied") => count(points.reduce((all, point) => all + point[field], 0));
  const [admitted, denied] = [sum("admitted"), sum("denied")];
  return (
    <>
      <Plot
        of={value}
        height={height}
        label={`In ${span.name}: ${admitted} admitted, ${denied} denied`}
        draw={() => {
          const [times, admittedByBar, allByBar] = seriesOf(span, points, readClockMs());
          return {
            data: [times, allByBar, admittedByBar],
            tones: ["denied", "admitted"],
            barSeconds: span.barSeconds,
          };
        }}
      >
        <span class="swatch admitted" /> {admitted} admitted
        <span class="swatch denied" /> {denied} denied, by {span.bar}
      </Plot>
      {hasPlans && <ByPlan points={points} />}
    </>
  );
}

function ByPlan({ points }: { readonly points: readonly HistoryPoint[] }) {
  const plans = sumsByPlan(points);
  return (
    <div data-part="plans">
      <Rows
        label="Decisions by plan"
        heads={["plan", "admitted", "denied"]}
        rows={plans.map(({ plan, admitted, denied }) => ({
          key: plan,
          cells: [plan === "" ? "(none)" : plan, count(admitted), count(denied)],
        }))}
      />
    </div>
  );
}

const AMONG_SPANS = SPANS.map((span) => ({ name: span.name, value: span }));

export function HistoryWithSpans({ policy }: { readonly policy: string }) {
  const [span, setSpan] = useState(HOUR);
  return (
    <>
      <Choice label="How far back" among={AMONG_SPANS} chosen={span} onChosen={setSpan} />
      <History policy={policy} span={span} height={220} hasPlans />
    </>
  );
}
