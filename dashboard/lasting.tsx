/** How long an override lasts. */
import { useState } from "preact/hooks";
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

/** The instant at which it ends; `undefined`: never. */
export type EndsAt = string | undefined;

/** Lets one choose, and says until when that is. */
export function Lasting(props: { readonly endsAt: EndsAt; readonly onEndsAt: (endsAt: EndsAt) => void }) {
  const { endsAt, onEndsAt } = props;
  const [ms, setMs] = useState<number>(endsAt === undefined ? 0 : CHOSEN);
  const choose = (lifeMs: number) => {
    setMs(lifeMs);
    if (lifeMs === 0) onEndsAt(undefined);
    else onEndsAt(instantText(readClockMs() + (lifeMs === CHOSEN ? HOUR_MS : lifeMs)));
  };
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
      {ms === CHOSEN && (
        <label>
          Until
          <input
            type="datetime-local"
            name="until"
            required
            value={endsAt === undefined ? "" : localText(endsAt)}
            onInput={(event) => {
              const atMs = Date.parse(event.currentTarget.value);
              if (!Number.isNaN(atMs)) onEndsAt(instantText(atMs));
            }}
          />
        </label>
      )}
      {ms > 0 && endsAt !== undefined && <small>Until {instant(endsAt)}.</small>}
    </div>
  );
}
