/** The first page: all policies, now and in the last hour. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { PolicyDescription } from "./answers.ts";
import { useRights, useSession } from "./context.ts";
import { History } from "./history.tsx";
import { useReadings } from "./live.ts";
import { Figure, ProblemNote, To } from "./parts.tsx";
import { HOUR } from "./plot-series.ts";
import { usePoll } from "./poll.ts";
import { ratesOf, type Reading } from "./rates.ts";
import { count, percent, perSecond, ruleLine } from "./words.ts";

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
      {rights.counts && (
        <p class="quiet">
          Rates are of the last half minute. What happens is counted here some 10 to 20 seconds later.
        </p>
      )}
      <ProblemNote problem={listProblem} />
      <ProblemNote problem={problem} />
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
  return (
    <article class="card" data-policy={name}>
      <h2>{rights.looks ? <To place={{ at: "policy", policy: name }}>{name}</To> : name}</h2>
      {described !== undefined && (
        <p class="quiet">
          {described.rules.map(ruleLine).join("; ")}
          {described.shadow && " (in shadow: denies no call)"}
        </p>
      )}
      {rights.counts && readings !== undefined && <LiveFigures policy={name} readings={readings} />}
      {rights.history && <WhenSeen of={name} />}
    </article>
  );
}

export function LiveFigures(props: { readonly policy: string; readonly readings: readonly Reading[] }) {
  const rates = ratesOf(props.readings, props.policy);
  if (rates === undefined) return <p class="quiet">Loading rates…</p>;
  const { admittedPerSecond, deniedPerSecond, hitRate, degraded } = rates;
  return (
    <dl class="figures">
      <Figure name="admitted / s" value={perSecond(admittedPerSecond)} />
      <Figure
        name="denied / s"
        value={perSecond(deniedPerSecond)}
        tone={deniedPerSecond > 0 ? "bad" : undefined}
      />
      <Figure name="decided without asking" value={hitRate === undefined ? "–" : percent(hitRate)} />
      <Figure name="degraded" value={count(degraded)} tone={degraded > 0 ? "bad" : undefined} />
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
