/** Shared parts of the dashboard. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "./answers.ts";
import { Lasting, type EndsAt } from "./lasting.tsx";
import { hashOf, type Place } from "./places.ts";

export function To({ place, children }: { readonly place: Place; readonly children: ComponentChildren }) {
  return <a href={hashOf(place)}>{children}</a>;
}

export function ProblemNote({ problem }: { readonly problem: Problem | undefined }) {
  if (problem === undefined) return null;
  const { detail, errors: [, ...further] = [] } = problem;
  return (
    <div class="note bad" role="alert">
      <p>{problem.status === 412 ? "Somebody else changed it first. Your change was not made." : detail}</p>
      {/* The detail has the first error. */}
      {further.length > 0 && (
        <ul>
          {further.map((each) => (
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

export interface Row {
  readonly key: string | number;
  /** In the order of the heads. */
  readonly cells: readonly ComponentChildren[];
}

/** A table. On a phone each row is a block, in which every cell has its head: roles keep it a table for readers. */
export function Rows(props: {
  readonly label: string;
  readonly heads: readonly string[];
  readonly rows: readonly Row[];
}) {
  const { label, heads, rows } = props;
  if (rows.length === 0) return null;
  return (
    <table role="table" aria-label={label}>
      <thead role="rowgroup">
        <tr role="row">
          {heads.map((head) => (
            <th role="columnheader" scope="col" key={head}>
              {head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody role="rowgroup">
        {rows.map(({ key, cells }) => (
          <tr role="row" key={key}>
            {cells.map((cell, index) => (
              <td role="cell" key={heads[index]} data-head={heads[index]}>
                {cell}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A key, as a link to its page. */
export function KeyLink({ policy, name }: { readonly policy: string; readonly name: string }) {
  return (
    <span class="key">
      <To place={{ at: "key", policy, key: name }}>{name}</To>
    </span>
  );
}

/** Buttons of which one is pressed. */
export function Choice<Value>(props: {
  readonly label: string;
  readonly among: readonly { readonly name: string; readonly value: Value }[];
  readonly chosen: Value;
  readonly onChosen: (value: Value) => void;
}) {
  const { label, among, chosen, onChosen } = props;
  return (
    <div class="row" role="group" aria-label={label}>
      {among.map(({ name, value }) => (
        <button
          type="button"
          key={name}
          class={`small ${value === chosen ? "" : "outline secondary"}`}
          aria-pressed={value === chosen}
          onClick={() => onChosen(value)}
        >
          {name}
        </button>
      ))}
    </div>
  );
}

export interface Question {
  readonly title: string;
  readonly says: string;
  readonly yes: string;
  /** Whether it asks for how long. */
  readonly lasts?: boolean;
  /** Resolves with the problem, if there is one; then the question stays. */
  readonly act: (endsAt: EndsAt) => Promise<Problem | undefined>;
}

/** Asks before a change. Escape, and the focused button, change nothing. */
export function Confirm({ question, onEnd }: { readonly question: Question; readonly onEnd: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [problem, setProblem] = useState<Problem>();
  const [isBusy, setBusy] = useState(false);
  const [endsAt, setEndsAt] = useState<EndsAt>();
  useLayoutEffect(() => dialog.current?.showModal(), []);
  const act = async () => {
    setBusy(true);
    const refused = await question.act(endsAt);
    setBusy(false);
    if (refused === undefined) onEnd();
    else setProblem(refused);
  };
  return (
    <dialog ref={dialog} onClose={onEnd} aria-labelledby="question">
      <article>
        <h3 id="question">{question.title}</h3>
        <p>{question.says}</p>
        {question.lasts === true && <Lasting endsAt={endsAt} onEndsAt={setEndsAt} />}
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
