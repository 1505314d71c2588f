import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "./answers.ts";
import type { Answer } from "./api.ts";
import { readClockMs } from "./clock.ts";
import { intervalMs, isSlow } from "./pace.ts";

export interface Polled<Value> {
  readonly value?: Value;
  readonly etag?: string | undefined;
  readonly problem?: Problem | undefined;
  readonly again: () => Promise<void>;
}

/** What shows that somebody uses the page. */
const INPUTS = ["pointerdown", "pointermove", "wheel", "touchstart", "keydown"] as const;
let lastInputMs = readClockMs();
const idleMs = () => readClockMs() - lastInputMs;
/** The loops of all that is polled: they go on when the page is shown, or used after a pause. */
const loops = new Set<() => void>();

function resume(): void {
  lastInputMs = readClockMs();
  for (const loop of loops) loop();
}
function onInput(): void {
  if (isSlow(idleMs())) resume();
  else lastInputMs = readClockMs();
}
/** All that the page shows now. */
const shown = new Set<() => Promise<void>>();
/** The longest that a change waits for what it changed to be read again, in ms. */
const MAX_REFRESH_MS = 2_000;

/** Reads again all that the page shows: called after each change, so the page never shows what was before it. */
export async function refresh(): Promise<void> {
  const late = new Promise((resolve) => setTimeout(resolve, MAX_REFRESH_MS));
  await Promise.race([Promise.all([...shown].map((again) => again())), late]);
}

for (const kind of INPUTS) addEventListener(kind, onInput, { capture: true, passive: true });
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) resume();
});

/**
 * Calls every `everyMs` (0: once) while the page is visible, less often while nobody uses it. A new `about` drops the
 * last answer.
 */
export function usePoll<Value>(
  about: string,
  everyMs: number,
  ask: () => Promise<Answer<Value>>,
): Polled<Value> {
  const [state, setState] = useState<{ about: string; answer: Answer<Value> }>();
  const latest = useRef({ about, ask });
  latest.current = { about, ask };
  const turns = useRef({ asked: 0, answered: 0 });

  const again = useCallback(async () => {
    const asked = latest.current;
    const turn = (turns.current.asked += 1);
    const answer = await asked.ask();
    // An answer overtaken by a later one describes an earlier state.
    if (asked.about !== latest.current.about || turn < turns.current.answered) return;
    turns.current.answered = turn;
    setState({ about: asked.about, answer });
  }, []);

  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isOver = false;
    const run = async () => {
      clearTimeout(timer);
      // A hidden page has no timer either: it goes on when it is shown.
      if (document.hidden && everyMs > 0) return;
      await again();
      clearTimeout(timer);
      // The interval begins with the answer: a slow limiter never gets two calls at a time.
      if (!isOver && everyMs > 0) timer = setTimeout(loop, intervalMs(everyMs, idleMs()));
    };
    const loop = () => void run();
    shown.add(again);
    if (everyMs > 0) loops.add(loop);
    loop();
    return () => {
      isOver = true;
      shown.delete(again);
      loops.delete(loop);
      clearTimeout(timer);
    };
  }, [about, everyMs, again]);

  const answer = state?.about === about ? state.answer : undefined;
  if (answer === undefined) return { again };
  return answer.problem === undefined
    ? { value: answer.value, etag: answer.etag, again }
    : { problem: answer.problem, again };
}
