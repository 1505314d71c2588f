/** Exports and imports the catalog as one document, to keep in git. */
import { useState } from "preact/hooks";
import type { Problem } from "./answers.ts";
import { useSession } from "./context.ts";
import { jsonIn } from "./json.ts";
import { Confirm, DoneNote, Part, ProblemNote, type Done, type Question } from "./parts.tsx";

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
    if (!isDryRun) setEtag(answer.etag);
    setDone({
      says: isDryRun ? "This document would be accepted." : "The catalog is what the document says.",
    });
    return undefined;
  };
  const check = async () => {
    setDone(undefined);
    setProblem(await write(true));
  };
  const askWrite = () =>
    setQuestion({
      title: "Make the catalog what this document says?",
      says: "What it does not have is deleted: policies, overrides and tokens. It is refused if the catalog has changed since you read it.",
      yes: "Write",
      act: () => write(false),
    });
  return (
    <Part title="Document">
      <p class="quiet">All policies, overrides and hashes of tokens that were changed at run time.</p>
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
          <label>
            catalog.json
            <textarea
              name="document"
              class="code"
              rows={14}
              value={text}
              onInput={(event) => setText(event.currentTarget.value)}
            />
          </label>
          <div class="row">
            <button type="button" class="outline" onClick={() => void check()}>
              Check document
            </button>
            <button type="button" onClick={askWrite}>
              Write
            </button>
          </div>
        </>
      )}
      <ProblemNote problem={problem} />
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}
