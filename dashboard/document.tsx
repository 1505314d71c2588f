/** Exports and imports the catalog as one document, to keep in git. */
import { useState } from "preact/hooks";
import type { Problem } from "./answers.ts";
import { useSession } from "./context.ts";
import { JsonField, jsonIn } from "./json-field.tsx";
import { Confirm, DoneNote, Part, ProblemNote, type Done, type Question } from "./parts.tsx";
import { SOON } from "./words.ts";

export function DocumentPart() {
  const { ask } = useSession();
  const [text, setText] = useState<string>();
  const [etag, setEtag] = useState<string>();
  const [problem, setProblem] = useState<Problem>();
  const [question, setQuestion] = useState<Question>();
  const [done, setDone] = useState<Done>();
  const read = async () => {
    const answer = await ask<object>("GET", "/v1/catalog");
    setProblem(answer.problem);
    setDone(undefined);
    if (answer.problem !== undefined) return;
    setText(JSON.stringify(answer.value, null, 2));
    setEtag(answer.etag);
  };
  const write = async (isDryRun: boolean): Promise<Problem | undefined> => {
    const parsed = jsonIn(text ?? "");
    if (parsed.problem !== undefined) return parsed.problem;
    const query = isDryRun ? { dryRun: "true" } : {};
    const answer = await ask<object>("PUT", "/v1/catalog", { body: parsed.value, ifMatch: etag, query });
    if (answer.problem !== undefined) return answer.problem;
    if (isDryRun) return undefined;
    setEtag(answer.etag);
    setDone({ says: `The document is written. ${SOON}` });
    return undefined;
  };
  const check = async (): Promise<boolean> => {
    setDone(undefined);
    const refused = await write(true);
    setProblem(refused);
    return refused === undefined;
  };
  const askWrite = async () => {
    if (!(await check())) return;
    setQuestion({
      title: "Make the catalog what this document says?",
      says: "Policies, overrides and tokens that it does not have are deleted. If somebody else has changed the catalog since you read it, nothing is written.",
      yes: "Write",
      act: () => write(false),
    });
  };
  return (
    <Part title="All changes as JSON">
      <p class="quiet">Policies, overrides, candidates and hashes of tokens that were changed at run time.</p>
      <DoneNote done={done} onEnd={() => setDone(undefined)} />
      <div class="row">
        <button type="button" class="outline" onClick={() => void read()}>
          Read
        </button>
        {text !== undefined && (
          <a
            role="button"
            class="outline"
            download="catalog.json"
            href={`data:application/json;charset=utf-8,${encodeURIComponent(text.toWellFormed())}`}
          >
            Download
          </a>
        )}
      </div>
      {text !== undefined && (
        <>
          <JsonField name="document" label="catalog.json" text={text} problem={problem} onText={setText} />
          <div class="row">
            <button
              type="button"
              class="outline"
              onClick={async () => {
                if (await check()) setDone({ says: "This document is valid." });
              }}
            >
              Check document
            </button>
            <button type="button" onClick={() => void askWrite()}>
              Write
            </button>
          </div>
        </>
      )}
      {text === undefined && <ProblemNote problem={problem} />}
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}
