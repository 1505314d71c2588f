import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "./answers.ts";
import type { Answer } from "./api.ts";

export interface Polled<Value> {
  readonly value?: Value;
  readonly etag?: string | undefined;
  readonly problem?: Problem | undefined;
  readonly again: () => Promise<void>;
}

/** Calls every `everyMs` (0: once) while the page is visible. A new `about` drops the last answer. */
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
    const loop = async () => {
      clearTimeout(timer);
      if (!document.hidden) await again();
      // The interval begins with the answer: a slow limiter never gets two calls at a time.
      if (!isOver && everyMs > 0) timer = setTimeout(() => void loop(), everyMs);
    };
    const onVisible = () => {
      if (!document.hidden && everyMs > 0) void loop();
    };
    void loop();
    document.addEventListener("visibilitychange", onVisible);
    return () => {
      isOver = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [about, everyMs, again]);

  const answer = state?.about === about ? state.answer : undefined;
  if (answer === undefined) return { again };
  return answer.problem === undefined
    ? { value: answer.value, etag: answer.etag, again }
    : { problem: answer.problem, again };
}
