import { useState } from "preact/hooks";
import type { OwnToken, Problem } from "./answers.ts";
import { path } from "./api.ts";
import { useSession } from "./context.ts";
import { Confirm, Part, ProblemNote, Rows, type Question } from "./parts.tsx";
import { usePoll } from "./poll.ts";

const SCOPES = ["limit", "refund", "force", "reserve", "metrics", "admin"];

export function TokensPart() {
  const { ask } = useSession();
  const [question, setQuestion] = useState<Question>();
  const { value, problem } = usePoll("tokens", 0, () => ask<{ tokens: OwnToken[] }>("GET", "/v1/tokens"));
  const revoke = (name: string) =>
    setQuestion({
      title: `Revoke the token ${name}?`,
      says: "Its calls get 401 everywhere within 10 s. This cannot be undone.",
      yes: "Revoke",
      act: async () => (await ask("DELETE", path("tokens", name))).problem,
    });
  return (
    <Part title="Tokens">
      <ProblemNote problem={problem} />
      {value?.tokens.length === 0 && <p class="quiet">None was issued at run time.</p>}
      <Rows
        label="Tokens"
        heads={["name", "scopes", "policies", "keys", "change"]}
        rows={(value?.tokens ?? []).map(({ name, scopes, policies, keyPrefix }) => ({
          key: name,
          cells: [
            <span class="key">{name}</span>,
            scopes.join(", "),
            policies?.join(", ") ?? "all",
            keyPrefix === undefined ? "all" : `${keyPrefix}…`,
            <button type="button" class="small outline" onClick={() => revoke(name)}>
              Revoke
            </button>,
          ],
        }))}
      />
      <IssueToken />
      {question !== undefined && <Confirm question={question} onEnd={() => setQuestion(undefined)} />}
    </Part>
  );
}

function IssueToken() {
  const { ask } = useSession();
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<readonly string[]>(["limit"]);
  const [policies, setPolicies] = useState("");
  const [keyPrefix, setKeyPrefix] = useState("");
  const [issued, setIssued] = useState<string>();
  const [problem, setProblem] = useState<Problem>();
  const issue = async () => {
    const named = policies.split(",").map((each) => each.trim());
    const body = {
      name,
      scopes,
      ...(policies.trim() !== "" && { policies: named }),
      ...(keyPrefix !== "" && { keyPrefix }),
    };
    const answered = await ask<{ token: string }>("POST", "/v1/tokens", { body });
    setProblem(answered.problem);
    setIssued(answered.value?.token);
  };
  const toggle = (scope: string) =>
    setScopes(scopes.includes(scope) ? scopes.filter((each) => each !== scope) : [...scopes, scope]);
  const text = (label: string, value: string, set: (text: string) => void, isNeeded = false) => (
    <label>
      {label}
      <input required={isNeeded} value={value} onInput={(event) => set(event.currentTarget.value)} />
    </label>
  );
  return (
    <form
      class="box"
      aria-label="Issue a token"
      onSubmit={(event) => {
        event.preventDefault();
        void issue();
      }}
    >
      <div class="columns">
        {text("Name", name, setName, true)}
        {text("Policies (empty: all)", policies, setPolicies)}
        {text("Keys that begin with (empty: all)", keyPrefix, setKeyPrefix)}
      </div>
      <fieldset class="row">
        <legend>Scopes</legend>
        {SCOPES.map((scope) => (
          <label key={scope}>
            <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} /> {scope}
          </label>
        ))}
      </fieldset>
      <ProblemNote problem={problem} />
      <button type="submit">Issue</button>
      <div role="status">
        {issued !== undefined && (
          <p class="note good">
            <span>
              Copy it now, it is not shown again: <code>{issued}</code>
            </span>
          </p>
        )}
      </div>
    </form>
  );
}
