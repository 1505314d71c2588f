/** A form that makes a call, and shows the answer and the `curl` for it. */
import { useState } from "preact/hooks";
import type { PolicyDescription, Problem } from "./answers.ts";
import { curlOf, requestOf, type Call } from "./calls.ts";
import { useSession } from "./context.ts";
import { Part, ProblemNote } from "./parts.tsx";
import { usePoll } from "./poll.ts";

const LEASED: ReadonlySet<string> = new Set(["concurrency", "adaptive-concurrency"]);

export function TryPage(props: { readonly policy: string; readonly name: string }) {
  const { ask } = useSession();
  const { value, problem } = usePoll("policies", 0, () =>
    ask<{ policies: PolicyDescription[] }>("GET", "/v1/policies"),
  );
  return (
    <>
      <h1>Try a call</h1>
      <p class="quiet">This is a real call: it takes units of the key.</p>
      <ProblemNote problem={problem} />
      {value !== undefined && <Form policies={value.policies} begin={props} />}
    </>
  );
}

function Form(props: {
  readonly policies: readonly PolicyDescription[];
  readonly begin: { readonly policy: string; readonly name: string };
}) {
  const { policies, begin } = props;
  const { ask } = useSession();
  const [policy, setPolicy] = useState(begin.policy === "" ? (policies[0]?.name ?? "") : begin.policy);
  const [key, setKey] = useState(begin.name);
  const [cost, setCost] = useState("1");
  const [answer, setAnswer] = useState<object>();
  const [problem, setProblem] = useState<Problem>();
  const rules = policies.find(({ name }) => name === policy)?.rules ?? [];
  const isLeased = rules.some(({ algorithm }) => LEASED.has(algorithm));
  const call: Call = { kind: isLeased ? "acquire" : "limit", policy, key, cost: Number(cost) };
  const make = async () => {
    const { path, body } = requestOf(call);
    const answered = await ask<object>("POST", path, { body });
    setProblem(answered.problem);
    setAnswer(answered.value);
  };
  return (
    <>
      <form
        class="box"
        onSubmit={(event) => {
          event.preventDefault();
          void make();
        }}
      >
        <div class="columns">
          <label>
            Policy
            <select name="policy" value={policy} onChange={(event) => setPolicy(event.currentTarget.value)}>
              {policies.map(({ name }) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
          <label>
            Key
            <input name="key" required value={key} onInput={(event) => setKey(event.currentTarget.value)} />
          </label>
          <label>
            {isLeased ? "Units" : "Cost (0 takes nothing)"}
            <input
              name="cost"
              type="number"
              min="0"
              required
              value={cost}
              onInput={(event) => setCost(event.currentTarget.value)}
            />
          </label>
        </div>
        <button type="submit">{isLeased ? "Acquire a lease" : "Call"}</button>
      </form>
      <Part title="The same with curl">
        <pre>{curlOf(call, location.origin)}</pre>
      </Part>
      <Part title="Answer">
        <div role="status">
          <ProblemNote problem={problem} />
          {answer !== undefined && <pre data-answer>{JSON.stringify(answer, null, 2)}</pre>}
          {answer === undefined && problem === undefined && <p class="quiet">No call was made yet.</p>}
        </div>
      </Part>
    </>
  );
}
