/** Shared parts of the dashboard. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "./answers.ts";
import { hashOf, type Place } from "./places.ts";

export function To({ place, children }: { readonly place: Place; readonly children: ComponentChildren }) {
  return <a href={hashOf(place)}>{children}</a>;
}

export function ProblemNote({ problem }: { readonly problem: Problem | undefined }) {
  if (problem === undefined) return null;
  const { detail, errors = [] } = problem;
  return (
    <div class="note bad" role="alert">
      <p>{problem.status === 412 ? "It was changed in the meantime. Nothing was changed now." : detail}</p>
      {errors.length > 0 && (
        <ul>
          {errors.map((each) => (
            <li key={each.pointer + each.detail}>{each.detail}</li>
          ))}
        </ul>
      )}
    </div>
  );
}

export function Part(props: {
  readonly title: string;
  readonly beside?: ComponentChildren;
  readonly children: ComponentChildren;
}) {
  const id = `part-${props.title.toLowerCase().replaceAll(/\W+/g, "-")}`;
  return (
    <section aria-labelledby={id} class="part">
      <div class="part-head">
        <h2 id={id}>{props.title}</h2>
        {props.beside}
      </div>
      {props.children}
    </section>
  );
}

export function Figure(props: {
  readonly name: string;
  readonly value: string;
  readonly tone?: "bad" | undefined;
}) {
  return (
    <div class={`figure ${props.tone ?? ""}`} data-figure={props.name}>
      <dt>{props.name}</dt>
      <dd>{props.value}</dd>
    </div>
  );
}

/** A table that scrolls by itself when it is wider than the page. */
export function Rows(props: {
  readonly label: string;
  readonly heads: readonly string[];
  readonly children: ComponentChildren;
}) {
  return (
    // A scrolling region has to be reached by keyboard.
    <div class="scroll" role="region" aria-label={`Table: ${props.label}`} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {props.heads.map((head) => (
              <th scope="col" key={head}>
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}

export interface Question {
  readonly title: string;
  readonly says: string;
  readonly yes: string;
  /** Resolves with the problem, if there is one; then the question stays. */
  readonly act: () => Promise<Problem | undefined>;
}

/** Asks before a change. Escape, and the focused button, change nothing. */
export function Confirm({ question, onEnd }: { readonly question: Question; readonly onEnd: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [problem, setProblem] = useState<Problem>();
  const [isBusy, setBusy] = useState(false);
  useLayoutEffect(() => dialog.current?.showModal(), []);
  const act = async () => {
    setBusy(true);
    const refused = await question.act();
    setBusy(false);
    if (refused === undefined) onEnd();
    else setProblem(refused);
  };
  return (
    <dialog ref={dialog} onClose={onEnd} aria-labelledby="question">
      <article>
        <h3 id="question">{question.title}</h3>
        <p>{question.says}</p>
        <ProblemNote problem={problem} />
        <footer>
          <button type="button" class="secondary outline" autofocus onClick={onEnd}>
            Cancel
          </button>
          <button type="button" aria-busy={isBusy} disabled={isBusy} onClick={() => void act()}>
            {question.yes}
          </button>
        </footer>
      </article>
    </dialog>
  );
}

export interface Done {
  readonly says: string;
  readonly undo?: () => Promise<Problem | undefined>;
}

export function DoneNote({ done, onEnd }: { readonly done: Done | undefined; readonly onEnd: () => void }) {
  const [problem, setProblem] = useState<Problem>();
  const undo = async () => {
    const refused = await done?.undo?.();
    setProblem(refused);
    if (refused === undefined) onEnd();
  };
  return (
    <div role="status">
      {done !== undefined && (
        <div class="note good">
          <span>{done.says}</span>
          <span class="row">
            {done.undo !== undefined && (
              <button type="button" class="small" onClick={() => void undo()}>
                Undo
              </button>
            )}
            <button type="button" class="small secondary outline" onClick={onEnd}>
              Close
            </button>
          </span>
        </div>
      )}
      <ProblemNote problem={problem} />
    </div>
  );
}
