/** The first page: all policies, now and in the last hour. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { HistoryPoint, PolicyDescription } from "./answers.ts";
import { readClockMs } from "./clock.ts";
import { useRights, useSession } from "./context.ts";
import { History } from "./history.tsx";
import { LimitedPart } from "./limited.tsx";
import { useReadings } from "./live.ts";
import { Figure, ProblemNote, To } from "./parts.tsx";
import { HOUR } from "./plot-series.ts";
import { usePoll } from "./poll.ts";
import { ratesOf, READ_EVERY_MS, recentRates, type Rates, type Reading } from "./rates.ts";
import { count, percent, perSecond, policyLine } from "./words.ts";

const POLICIES_EVERY_MS = 30_000;
/** With more policies than this there is a search field. */
const FEW = 8;

export function Overview() {
  const { ask, token } = useSession();
  const rights = useRights();
  const [wanted, setWanted] = useState("");
  const { value: readings, problem } = useReadings(rights.counts);
  const { value: list, problem: listProblem } = usePoll("policies", POLICIES_EVERY_MS, async () =>
    rights.looks
      ? await ask<{ policies: PolicyDescription[] }>("GET", "/v1/policies")
      : { value: { policies: [] }, etag: undefined },
  );
  if (!rights.looks && !rights.counts)
    return (
      <>
        <h1>Overview</h1>
        <p>
          The token {token.name} may make calls, and see nothing here: that needs the scope limit, metrics or
          admin.
        </p>
      </>
    );
  const known = list?.policies ?? [];
  const counted = [...(readings?.at(-1)?.totals.keys() ?? [])].filter((name) => !name.startsWith("_"));
  const names = known.length > 0 ? known.map(({ name }) => name) : counted;
  const shown = names.filter((name) => name.includes(wanted));
  return (
    <>
      <h1>Overview</h1>
      <ProblemNote problem={listProblem} />
      <ProblemNote problem={problem} />
      {rights.counts && rights.changes && problem === undefined && <LimitedPart readings={readings ?? []} />}
      <h2 class="part">Policies</h2>
      {rights.counts && (
        <p class="quiet">
          Rates are of the last half minute, when the page was just opened of the last minute or two. Counts
          are up to 12 s late.
        </p>
      )}
      {names.length > FEW && (
        <label class="find">
          Find a policy
          <input type="search" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
        </label>
      )}
      <div class="cards">
        {shown.map((name) => (
          <Card
            key={name}
            name={name}
            described={known.find((each) => each.name === name)}
            readings={problem === undefined ? (readings ?? []) : undefined}
          />
        ))}
      </div>
    </>
  );
}

function Card(props: {
  readonly name: string;
  readonly described: PolicyDescription | undefined;
  /** Absent: they cannot be had, as the page says. */
  readonly readings: readonly Reading[] | undefined;
}) {
  const { name, described, readings } = props;
  const rights = useRights();
  const wasUnused = useRef(false);
  const isUsed = readings?.at(-1)?.totals.has(name);
  if (isUsed === false) wasUnused.current = true;
  return (
    <article class="card" data-policy={name}>
      <h3>{rights.looks ? <To place={{ at: "policy", policy: name }}>{name}</To> : name}</h3>
      {described !== undefined && <p class="quiet">{policyLine(described)}</p>}
      {rights.counts && readings !== undefined && <LiveFigures policy={name} readings={readings} />}
      {/* Read again at the first calls, so that the plot is not empty beside their rates. */}
      {rights.history && <WhenSeen key={String(wasUnused.current && isUsed)} of={name} />}
    </article>
  );
}

/** The rates of a policy; until they are measured those of its history, if that may be read. */
export function LiveFigures(props: { readonly policy: string; readonly readings: readonly Reading[] }) {
  const { policy, readings } = props;
  const rights = useRights();
  const rates = ratesOf(readings, policy);
  if (rates !== undefined) return <RateFigures rates={rates} />;
  return rights.history ? <FirstRates policy={policy} /> : <Measuring />;
}

function FirstRates({ policy }: { readonly policy: string }) {
  const { ask } = useSession();
  const { value } = usePoll(`first ${policy}`, READ_EVERY_MS, () =>
    ask<{ points: HistoryPoint[] }>("GET", "/v1/stats", { query: { policy, since: "3m" } }),
  );
  const rates = recentRates(value?.points ?? [], readClockMs());
  return rates === undefined ? <Measuring /> : <RateFigures rates={rates} />;
}

function Measuring() {
  return (
    <p class="quiet" data-measuring>
      Measuring…
    </p>
  );
}

function RateFigures({ rates }: { readonly rates: Rates }) {
  const { admittedPerSecond, deniedPerSecond, hitRate, degraded } = rates;
  return (
    <dl class="figures">
      <Figure name="admitted / s" value={perSecond(admittedPerSecond)} />
      <Figure
        name="denied / s"
        value={perSecond(deniedPerSecond)}
        tone={deniedPerSecond > 0 ? "bad" : undefined}
      />
      {hitRate !== undefined && <Figure name="decided locally" value={percent(hitRate)} />}
      {degraded > 0 && <Figure name="degraded" value={count(degraded)} tone="bad" />}
    </dl>
  );
}

/** Loads a plot when it comes into view: there may be a thousand policies. */
function WhenSeen({ of }: { readonly of: string }) {
  const place = useRef<HTMLDivElement>(null);
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    if (place.current === null) return undefined;
    const observer = new IntersectionObserver((entries) => {
      if (entries.some(({ isIntersecting }) => isIntersecting)) setSeen(true);
    });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return (
    <div ref={place} class="plot-place">
      {isSeen && <History policy={of} span={HOUR} height={120} />}
    </div>
  );
}
