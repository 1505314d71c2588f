/** The candidate of a policy: other fields on trial beside those in force. */
import { useState } from "preact/hooks";
import type { Candidate, PolicyInForce, Problem } from "./answers.ts";
import { path } from "./api.ts";
import { useSession } from "./context.ts";
import { jsonIn } from "./json.ts";
import {
  Confirm,
  type Done,
  DoneNote,
  Figure,
  Part,
  ProblemNote,
  type Question,
  Rows,
  To,
} from "./parts.tsx";
import { bringBack, fieldsOf } from "./policy-editor.tsx";
import { usePoll } from "./poll.ts";
import { count, instant } from "./words.ts";

const EVERY_MS = 5_000;

interface Props {
  readonly policy: string;
  readonly onPromoted: () => Promise<void>;
}

export function CandidatePart({ policy, onPromoted }: Props) {
  const { ask } = useSession();
  const polled = usePoll<Candidate | undefined>(policy, EVERY_MS, async () => {
    const read = await ask<Candidate>("GET", path("policies", policy, "candidate"));
    if (read.problem === undefined) return read;
    return read.problem.status === 404 ? { value: undefined, etag: undefined } : { problem: read.problem };
  });
  const { value: candidate, problem, again } = polled;
  const [done, setDone] = useState<Done>();
  return (
    <Part title="Candidate">
      <DoneNote
        done={done}
        onEnd={() => {
          setDone(undefined);
          void onPromoted();
        }}
      />
      <ProblemNote problem={problem} />
      {problem === undefined && candidate === undefined && <Begin policy={policy} onBegun={again} />}
      {candidate !== undefined && (
        <Trial
          candidate={candidate}
          onEnded={async (what) => {
            setDone(what);
            await again();
            await onPromoted();
          }}
        />
      )}
    </Part>
  );
}

function Begin({ policy, onBegun }: { readonly policy: string; readonly onBegun: () => Promise<void> }) {
  const { ask } = useSession();
  const [text, setText] = useState<string>();
  const [problem, setProblem] = useState<Problem>();
  const open = async () => {
    const read = await ask<PolicyInForce>("GET", path("policies", policy));
    setProblem(read.problem);
    if (read.problem === undefined) setText(JSON.stringify(fieldsOf(read.value), null, 2));
  };
  const begin = async (isDryRun: boolean) => {
    const read = jsonIn(text ?? "");
    if (read.problem !== undefined) return setProblem(read.problem);
    const query = isDryRun ? { dryRun: "true" } : {};
    const put = await ask<Candidate>("PUT", path("policies", policy, "candidate"), {
      body: read.value,
      query,
    });
    setProblem(put.problem);
    if (put.problem === undefined && !isDryRun) await onBegun();
  };
  return (
    <>
      <p class="quiet">
        Other fields can be tried beside those in force: they decide nothing, and what they would have decided
        is counted.
      </p>
      {text === undefined && (
        <button type="button" class="outline" onClick={() => void open()}>
          Try other fields
        </button>
      )}
      {text !== undefined && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void begin(false);
          }}
        >
          <label>
            Fields to try, in JSON
            <textarea
              name="candidate-fields"
              class="code"
              rows={Math.min(20, text.split("\n").length + 1)}
              value={text}
              onInput={(event) => setText(event.currentTarget.value)}
            />
          </label>
          <div class="row">
            <button type="button" class="outline" onClick={() => void begin(true)}>
              Check candidate
            </button>
            <button type="submit">Begin the trial</button>
          </div>
        </form>
      )}
      <ProblemNote problem={problem} />
    </>
  );
}

function Trial(props: { readonly candidate: Candidate; readonly onEnded: (done?: Done) => Promise<void> }) {
  const { candidate, onEnded } = props;
  const { policy, since, version } = candidate;
  const { ask } = useSession();
  const [question, setQuestion] = useState<Question>();
  const address = path("policies", policy, "candidate");
  const ifMatch = `"${version}"`;
  const promote = () =>
    setQuestion({
      title: `Promote the candidate of ${policy}?`,
      says: "Its fields become those of the policy, for all keys, everywhere within 10 seconds.",
      yes: "Promote",
      act: async () => {
        const before = await ask<PolicyInForce>("GET", path("policies", policy));
        if (before.problem !== undefined) return before.problem;
        const promoted = await ask<PolicyInForce>("POST", `${address}/promote`, { ifMatch });
        if (promoted.problem !== undefined) return promoted.problem;
        const undo = async () => (await bringBack(ask, before.value, promoted.value.version)).problem;
        await onEnded({ says: `The candidate of ${policy} is in force.`, undo });
        return undefined;
      },
    });
  const drop = () =>
    setQuestion({
      title: `End the trial of ${policy}?`,
      says: "The candidate is deleted, and what was compared with it.",
      yes: "End the trial",
      act: async () => {
        const ended = await ask("DELETE", address, { ifMatch });
        if (ended.problem === undefined) await onEnded();
        return ended.problem;
      },
    });
  return (
    <>
      <p class="quiet">On trial since {instant(since)}</p>
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

export function Compared({ candidate }: { readonly candidate: Candidate }) {
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
          <Figure name="not decided by one of them" value={count(compared.undecided)} />
        </dl>
      )}
      {keys.length > 0 && (
        <Rows
          label="Keys that the candidate alone would deny"
          heads={["denied by the candidate alone", "calls"]}
        >
          {keys.map((each) => (
            <tr key={each.key}>
              <td class="key">
                <To place={{ at: "key", policy, key: each.key }}>{each.key}</To>
              </td>
              <td>{count(each.count)}</td>
            </tr>
          ))}
        </Rows>
      )}
    </>
  );
}
