/** Creates a policy at run time, and removes run-time changes of one. */
import { useState } from "preact/hooks";
import type { PolicyInForce, Problem } from "./answers.ts";
import { path } from "./api.ts";
import { useSession } from "./context.ts";
import { JsonField, jsonIn } from "./json-field.tsx";
import { Confirm, Part, type Question } from "./parts.tsx";
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
    const options = { body: read.value, ifNoneMatch: "*" } as const;
    const { problem: refused } = await ask("PUT", path("policies", name), options);
    setProblem(refused?.status === 412 ? thereAlready(name) : refused);
    if (refused === undefined) location.hash = hashOf({ at: "policy", policy: name });
  };
  return (
    <Part title="New policy">
      <form
        aria-label="Add a policy"
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
        <JsonField
          name="new-fields"
          label="Its fields, as in wrangler.toml, as JSON"
          text={text}
          problem={problem}
          onText={setText}
        />
        <button type="submit">Add policy</button>
      </form>
    </Part>
  );
}

/** The changes at run time are removed: the policy of the file is left, or none. */
export function RemoveChanges(props: { readonly policy: PolicyInForce; readonly onDone: () => void }) {
  const { policy, onDone } = props;
  const { ask } = useSession();
  const [question, setQuestion] = useState<Question>();
  const { policy: name, version } = policy;
  const address = path("policies", name);
  const askFirst = () =>
    setQuestion({
      title: `Remove the changes of ${name}?`,
      says: "The policy of wrangler.toml applies again. A policy that is not in there is deleted with its overrides: calls on it get 404.",
      yes: "Remove changes",
      act: async () => {
        const gone = await ask("DELETE", address, { ifMatch: `"${version}"` });
        if (gone.problem !== undefined) return gone.problem;
        const { problem } = await ask("GET", address);
        if (problem?.status === 404) location.hash = hashOf({ at: "overview" });
        else onDone();
        return undefined;
      },
    });
  return (
    <>
      <button type="button" class="outline secondary" onClick={askFirst}>
        Remove changes
      </button>
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </>
  );
}

function thereAlready(name: string): Problem {
  const detail = `there is a policy ${JSON.stringify(name)} already: change it on its own page`;
  return { type: "", title: "There already", status: 0, detail };
}
