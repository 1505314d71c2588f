/** When an override begins, and how long it lasts. */
import { useEffect, useState } from "preact/hooks";
import { instantText, localText, readClockMs } from "./clock.ts";
import { instant } from "./words.ts";

const HOUR_MS = 3_600_000;
const LIVES = [
  { name: "until I remove it", ms: 0 },
  { name: "1 hour", ms: HOUR_MS },
  { name: "1 day", ms: 24 * HOUR_MS },
  { name: "1 week", ms: 7 * 24 * HOUR_MS },
] as const;
const CHOSEN = -1;

/** The instant at which it begins; `undefined`: at once. */
export type StartsAt = string | undefined;
/** The instant at which it ends; `undefined`: never. */
export type EndsAt = string | undefined;

/** Lets one choose when it begins. */
export function Beginning(props: {
  readonly startsAt: StartsAt;
  readonly onStartsAt: (startsAt: StartsAt) => void;
}) {
  const { startsAt, onStartsAt } = props;
  const choose = (isLater: boolean) => onStartsAt(isLater ? instantText(readClockMs() + HOUR_MS) : undefined);
  return (
    <div class="row">
      <label>
        Starts
        <select
          name="begins"
          value={startsAt === undefined ? "now" : "later"}
          onChange={(event) => choose(event.currentTarget.value === "later")}
        >
          <option value="now">at once</option>
          <option value="later">at a time</option>
        </select>
      </label>
      {startsAt !== undefined && <TimeField label="From" name="from" at={startsAt} onAt={onStartsAt} />}
    </div>
  );
}

/** Lets one choose how long it lasts from its start on, and says until when that is. */
export function Lasting(props: {
  readonly startsAt?: StartsAt;
  readonly endsAt: EndsAt;
  readonly onEndsAt: (endsAt: EndsAt) => void;
}) {
  const { startsAt, endsAt, onEndsAt } = props;
  const [ms, setMs] = useState<number>(endsAt === undefined ? 0 : CHOSEN);
  const choose = (lifeMs: number) => {
    setMs(lifeMs);
    if (lifeMs === 0) onEndsAt(undefined);
    else onEndsAt(instantText(beginsMs() + (lifeMs === CHOSEN ? HOUR_MS : lifeMs)));
  };
  const beginsMs = () => Math.max(readClockMs(), startsAt === undefined ? 0 : Date.parse(startsAt));
  useEffect(() => {
    if (ms > 0) choose(ms);
  }, [startsAt]);
  return (
    <div class="row">
      <label>
        For how long
        <select name="lasts" value={ms} onChange={(event) => choose(Number(event.currentTarget.value))}>
          {[...LIVES, { name: "until a time", ms: CHOSEN }].map((life) => (
            <option value={life.ms} key={life.ms}>
              {life.name}
            </option>
          ))}
        </select>
      </label>
      {ms === CHOSEN && <TimeField label="Until" name="until" at={endsAt} onAt={onEndsAt} />}
      {ms > 0 && endsAt !== undefined && <small>Until {instant(endsAt)}.</small>}
    </div>
  );
}

/** A date and a time, in local time. */
function TimeField(props: {
  readonly label: string;
  readonly name: string;
  readonly at: string | undefined;
  readonly onAt: (at: string) => void;
}) {
  const { label, name, at, onAt } = props;
  return (
    <label>
      {label}
      <input
        type="datetime-local"
        name={name}
        required
        value={at === undefined ? "" : localText(at)}
        onInput={(event) => {
          const atMs = Date.parse(event.currentTarget.value);
          if (!Number.isNaN(atMs)) onAt(instantText(atMs));
        }}
      />
    </label>
  );
}
