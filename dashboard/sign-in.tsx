/** Signing in with a token. */
import { useEffect, useState } from "preact/hooks";
import type { OwnToken, Problem } from "./answers.ts";
import { askWith } from "./api.ts";
import { ProblemNote } from "./parts.tsx";

/** @param kept the token from before the page was reloaded @param says why to sign in again */
export function SignIn(props: {
  readonly kept: string | undefined;
  readonly says: string;
  readonly onSignedIn: (entered: string, token: OwnToken) => void;
  readonly onRefused: (why: string) => void;
}) {
  const { kept, says, onSignedIn } = props;
  const [entered, setEntered] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const [isBusy, setBusy] = useState(kept !== undefined);
  const enter = async (secret: string) => {
    setBusy(true);
    const { value, problem: refused } = await askWith(secret, () => undefined)<OwnToken>("GET", "/v1/token");
    setBusy(false);
    setProblem(refused);
    if (value !== undefined) onSignedIn(secret, value);
    else if (refused.status === 401 && secret === kept) props.onRefused(refused.detail);
  };
  useEffect(() => {
    if (kept !== undefined) void enter(kept);
  }, [kept]);
  return (
    <main class="container sign-in">
      <h1>Weir</h1>
      {says !== "" && (
        <p class="note bad" role="alert">
          {says}
        </p>
      )}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void enter(entered.trim());
        }}
      >
        <label>
          Token
          <input
            type="password"
            name="token"
            autocomplete="off"
            required
            autofocus
            value={entered}
            onInput={(event) => setEntered(event.currentTarget.value)}
          />
        </label>
        <ProblemNote problem={problem} />
        <button type="submit" aria-busy={isBusy} disabled={isBusy}>
          Sign in
        </button>
      </form>
      <p class="quiet">
        <code>npm start</code> prints a token, <code>npm run token</code> makes others. It stays in this tab
        until you close it or sign out.
      </p>
    </main>
  );
}
