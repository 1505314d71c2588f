/** The candidate of a policy: other fields on trial beside those in force. */
import { useState } from "preact/hooks";
import type { Candidate, PolicyInForce, Problem } from "./answers.ts";
import { path } from "./api.ts";
import { useSession } from "./context.ts";
import { JsonField, jsonIn } from "./json-field.tsx";
import {
  Confirm,
  type Done,
  DoneNote,
  Figure,
  KeyLink,
  Part,
  ProblemNote,
  type Question,
  Rows,
} from "./parts.tsx";
import { bringBack, fieldsOf } from "./policy-editor.tsx";
import { usePoll } from "./poll.ts";
import { count, instant, SOON } from "./words.ts";

const EVERY_MS = 5_000;

export function CandidatePart({ policy }: { readonly policy: string }) {
  const { ask } = useSession();
  const polled = usePoll<Candidate | undefined>(policy, EVERY_MS, async () => {
    const read = await ask<Candidate>("GET", path("policies", policy, "candidate"));
    if (read.problem === undefined) return read;
    return read.problem.status === 404 ? { value: undefined, etag: undefined } : { problem: read.problem };
  });
  const { value: candidate, problem } = polled;
  const [done, setDone] = useState<Done>();
  return (
    <Part title="Candidate">
      <DoneNote done={done} onEnd={() => setDone(undefined)} />
      <ProblemNote problem={problem} />
      {problem === undefined && candidate === undefined && <Begin policy={policy} />}
      {candidate !== undefined && <Trial candidate={candidate} onEnded={setDone} />}
    </Part>
  );
}

function Begin({ policy }: { readonly policy: string }) {
  const { ask } = useSession();
  const [text, setText] = useState<string>();
  const [problem, setProblem] = useState<Problem>();
  const [isValid, setValid] = useState(false);
  const open = async () => {
    const read = await ask<PolicyInForce>("GET", path("policies", policy));
    setProblem(read.problem);
    if (read.problem === undefined) setText(JSON.stringify(fieldsOf(read.value), null, 2));
  };
  const begin = async (isDryRun: boolean) => {
    const read = jsonIn(text ?? "");
    setValid(false);
    if (read.problem !== undefined) return setProblem(read.problem);
    const query = isDryRun ? { dryRun: "true" } : {};
    const options = { body: read.value, query, ifNoneMatch: "*" } as const;
    const put = await ask<Candidate>("PUT", path("policies", policy, "candidate"), options);
    setProblem(put.problem);
    setValid(put.problem === undefined && isDryRun);
  };
  return (
    <>
      <p class="quiet">A candidate decides the same calls in the background, and denies none.</p>
      {text === undefined && (
        <>
          <ProblemNote problem={problem} />
          <button type="button" class="outline" onClick={() => void open()}>
            Try other fields
          </button>
        </>
      )}
      {text !== undefined && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void begin(false);
          }}
        >
          <JsonField
            name="candidate-fields"
            label="Fields to try, as JSON"
            text={text}
            problem={problem}
            onText={setText}
          />
          {isValid && <p role="status">These fields are valid.</p>}
          <div class="row">
            <button type="button" class="outline" onClick={() => void begin(true)}>
              Check candidate
            </button>
            <button type="submit">Start the trial</button>
          </div>
        </form>
      )}
    </>
  );
}

function Trial(props: { readonly candidate: Candidate; readonly onEnded: (done?: Done) => void }) {
  const { candidate, onEnded } = props;
  const { policy, since, version } = candidate;
  const { ask } = useSession();
  const [question, setQuestion] = useState<Question>();
  const address = path("policies", policy, "candidate");
  const ifMatch = `"${version}"`;
  const promote = () =>
    setQuestion({
      title: `Promote the candidate of ${policy}?`,
      says: "Its fields become those of the policy, for all keys, everywhere within 10 s.",
      yes: "Promote",
      act: async () => {
        const before = await ask<PolicyInForce>("GET", path("policies", policy));
        if (before.problem !== undefined) return before.problem;
        const promoted = await ask<PolicyInForce>("POST", `${address}/promote`, { ifMatch });
        if (promoted.problem !== undefined) return promoted.problem;
        const undo = async () => (await bringBack(ask, before.value, promoted.value.version)).problem;
        onEnded({ says: `The candidate of ${policy} is promoted. ${SOON}`, undo });
        return undefined;
      },
    });
  const drop = () =>
    setQuestion({
      title: `End the trial of ${policy}?`,
      says: "The candidate and its comparison are deleted.",
      yes: "End the trial",
      act: async () => {
        const ended = await ask("DELETE", address, { ifMatch });
        if (ended.problem === undefined) onEnded();
        return ended.problem;
      },
    });
  return (
    <>
      <p class="quiet">On trial since {instant(since)}.</p>
      <pre>{JSON.stringify(candidate.candidate, null, 2)}</pre>
      <Compared candidate={candidate} />
      <div class="row">
        <button type="button" onClick={promote}>
          Promote
        </button>
        <button type="button" class="outline" onClick={drop}>
          End the trial
        </button>
      </div>
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </>
  );
}

function Compared({ candidate }: { readonly candidate: Candidate }) {
  const { policy, compared, keys = [] } = candidate;
  return (
    <>
      {compared !== undefined && (
        <dl class="figures">
          <Figure name="calls compared" value={count(compared.calls)} />
          <Figure name="admitted by both" value={count(compared.admittedByBoth)} />
          <Figure name="denied by both" value={count(compared.deniedByBoth)} />
          <Figure name="denied by the policy alone" value={count(compared.deniedByPolicyAlone)} />
          <Figure
            name="denied by the candidate alone"
            value={count(compared.deniedByCandidateAlone)}
            tone={compared.deniedByCandidateAlone > 0 ? "bad" : undefined}
          />
          <Figure name="undecided" value={count(compared.undecided)} />
        </dl>
      )}
      <Rows
        label="Keys that only the candidate denies"
        heads={["key", "denied by the candidate alone"]}
        rows={keys.map((each) => ({
          key: each.key,
          cells: [<KeyLink policy={policy} name={each.key} />, count(each.count)],
        }))}
      />
    </>
  );
}
