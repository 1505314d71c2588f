/** Creates a policy at run time, and removes run-time changes of one. */
import { useState } from "preact/hooks";
import type { PolicyInForce, Problem } from "./answers.ts";
import { path } from "./api.ts";
import { useSession } from "./context.ts";
import { jsonIn } from "./json.ts";
import { Confirm, Part, ProblemNote, type Question } from "./parts.tsx";
import { hashOf } from "./places.ts";

const FIELDS = { algorithm: "token-bucket", limit: 100, window: "1m" };

export function NewPolicyPart() {
  const { ask } = useSession();
  const [name, setName] = useState("");
  const [text, setText] = useState(JSON.stringify(FIELDS, null, 2));
  const [problem, setProblem] = useState<Problem>();
  const make = async () => {
    const read = jsonIn(text);
    if (read.problem !== undefined) return setProblem(read.problem);
    const address = path("policies", name);
    // A policy of the file has the version 0 too.
    const there = await ask("GET", address);
    if (there.problem === undefined) return setProblem(thereAlready(name));
    const made = await ask("PUT", address, { body: read.value, ifMatch: '"0"' });
    // The name of a deleted policy has a version.
    const again = made.problem?.status === 412 && there.problem.status === 404;
    const { problem: refused } = again ? await ask("PUT", address, { body: read.value }) : made;
    setProblem(refused);
    if (refused === undefined) location.hash = hashOf({ at: "policy", policy: name });
  };
  return (
    <Part title="A new policy">
      <form
        aria-label="Make a policy"
        onSubmit={(event) => {
          event.preventDefault();
          void make();
        }}
      >
        <label>
          Name of the policy
          <input
            name="new-policy"
            required
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </label>
        <label>
          Its fields, as in wrangler.toml, in JSON
          <textarea
            name="new-fields"
            class="code"
            rows={Math.min(20, text.split("\n").length + 1)}
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <ProblemNote problem={problem} />
        <button type="submit">Make the policy</button>
      </form>
    </Part>
  );
}

export function TakeAway({
  policy,
  onDone,
}: {
  readonly policy: PolicyInForce;
  readonly onDone: () => Promise<void>;
}) {
  const { ask } = useSession();
  const [question, setQuestion] = useState<Question>();
  const { policy: name, version } = policy;
  const address = path("policies", name);
  const askFirst = () =>
    setQuestion({
      title: `Take away ${name}?`,
      says: "It is as wrangler.toml says again. If it is not in there, it is gone with its overrides, and calls on it are answered with 404.",
      yes: "Take away",
      act: async () => {
        const gone = await ask("DELETE", address, { ifMatch: `"${version}"` });
        if (gone.problem !== undefined) return gone.problem;
        const { problem } = await ask("GET", address);
        if (problem?.status === 404) location.hash = hashOf({ at: "overview" });
        else await onDone();
        return undefined;
      },
    });
  return (
    <>
      <button type="button" class="outline secondary" onClick={askFirst}>
        Take away
      </button>
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </>
  );
}

function thereAlready(name: string): Problem {
  const detail = `there is a policy ${JSON.stringify(name)} already: it is changed on its own page`;
  return { type: "", title: "There already", status: 0, detail };
}
