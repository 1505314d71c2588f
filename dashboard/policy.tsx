/** The page of a policy: its traffic, its keys, and its changes. */
import { useState } from "preact/hooks";
import type { PolicyDescription, PolicyInForce } from "./answers.ts";
import { path } from "./api.ts";
import { CandidatePart } from "./candidate.tsx";
import { useRights, useSession } from "./context.ts";
import { TopGroupsPart } from "./groups.tsx";
import { HistoryWithSpans } from "./history.tsx";
import { KeysPart, TopKeysPart } from "./keys.tsx";
import { useReadings } from "./live.ts";
import { OverridesPart } from "./overrides.tsx";
import { LiveFigures } from "./overview.tsx";
import { Part, ProblemNote } from "./parts.tsx";
import { hashOf } from "./places.ts";
import { PolicyEditor } from "./policy-editor.tsx";
import { usePoll } from "./poll.ts";
import { policyLine } from "./words.ts";

const EVERY_MS = 10_000;

export function PolicyPage({ policy }: { readonly policy: string }) {
  const { ask } = useSession();
  const rights = useRights();
  const readings = useReadings(rights.counts);
  const list = usePoll("policies", EVERY_MS, () =>
    ask<{ policies: PolicyDescription[] }>("GET", "/v1/policies"),
  );
  const inForce = usePoll(policy, EVERY_MS, () => ask<PolicyInForce>("GET", path("policies", policy)));
  const described = list.value?.policies.find(({ name }) => name === policy);
  return (
    <>
      <h1>{policy}</h1>
      {described !== undefined && <p>{policyLine(described)}</p>}
      {inForce.value !== undefined && (
        <p class="quiet">
          {inForce.value.source === "file" ? "As in wrangler.toml" : "Changed at run time"}, version{" "}
          {inForce.value.version}
        </p>
      )}
      <ProblemNote problem={list.problem} />
      <FindKey policy={policy} />
      {rights.counts && (
        <Part title="Now">
          <ProblemNote problem={readings.problem} />
          {readings.problem === undefined && <LiveFigures policy={policy} readings={readings.value ?? []} />}
        </Part>
      )}
      {rights.history && (
        <Part title="History">
          <HistoryWithSpans policy={policy} />
        </Part>
      )}
      {rights.changes && described !== undefined && (
        <>
          <TopKeysPart policy={described} />
          {described.fair === true && rights.keyPrefix === "" && <TopGroupsPart policy={policy} />}
          <KeysPart policy={described} />
        </>
      )}
      {rights.keyPrefix === "" && <OverridesPart policy={policy} />}
      {rights.policies && <CandidatePart policy={policy} />}
      {rights.policies && <PolicyEditor policy={policy} inForce={inForce} />}
    </>
  );
}

function FindKey({ policy }: { readonly policy: string }) {
  const [key, setKey] = useState("");
  return (
    <form
      class="line"
      onSubmit={(event) => {
        event.preventDefault();
        if (key !== "") location.hash = hashOf({ at: "key", policy, key });
      }}
    >
      <label>
        Find a key
        <input name="key" required value={key} onInput={(event) => setKey(event.currentTarget.value)} />
      </label>
      <button type="submit">Show</button>
    </form>
  );
}
