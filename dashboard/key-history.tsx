/** What was left of a key while its page is open: the limiter keeps no history of single keys. */
import { useState } from "preact/hooks";
import type { KeyReport } from "./answers.ts";
import { readClockMs } from "./clock.ts";
import { Choice, Part } from "./parts.tsx";
import { Plot } from "./plot.tsx";
import { count, instant } from "./words.ts";

/** An hour of readings. */
const MAX_SEEN = 720;

export interface Seen {
  readonly atMs: number;
  readonly report: KeyReport;
}

/** The readings with a new one; the oldest are dropped. */
export function withSeen(seen: readonly Seen[], report: KeyReport): readonly Seen[] {
  return seen.at(-1)?.report === report ? seen : [...seen, { atMs: readClockMs(), report }].slice(-MAX_SEEN);
}

export function KeyHistory({ seen }: { readonly seen: readonly Seen[] }) {
  const [chosen, setChosen] = useState<string>();
  const [first, last] = [seen[0], seen.at(-1)];
  const names = last?.report.rules.map(({ name }) => name) ?? [];
  const name = chosen ?? names[0];
  if (first === undefined || last === undefined || name === undefined) return null;
  const ruleIn = ({ report }: Seen) => report.rules.find((rule) => rule.name === name);
  const now = ruleIn(last);
  const denied = seen.filter(({ report }) => !report.success).length;
  const label = `${count(now?.remaining ?? 0)} of ${count(now?.limit ?? 0)} units remaining now`;
  return (
    <Part title="While this page is open">
      {names.length > 1 && (
        <Choice
          label="Rule"
          among={names.map((each) => ({ name: each, value: each }))}
          chosen={name}
          onChosen={setChosen}
        />
      )}
      <Plot
        of={`${seen.length} ${last.atMs} ${name}`}
        height={160}
        label={label}
        draw={() => ({
          data: [seen.map(({ atMs }) => atMs / 1_000), seen.map((each) => ruleIn(each)?.remaining ?? null)],
          tones: ["admitted"],
          maxY: now?.limit ?? 1,
        })}
      >
        <span class="swatch admitted" /> units remaining; denied at {count(denied)} of {count(seen.length)}{" "}
        readings since {instant(first.atMs)}
      </Plot>
    </Part>
  );
}
