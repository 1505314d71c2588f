import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { OwnToken } from "./answers.ts";
import { askWith } from "./api.ts";
import { CatalogPage } from "./catalog.tsx";
import { keepToken, keptToken, rightsOf, type Session, SessionContext, useRights } from "./context.ts";
import { KeyPage } from "./key.tsx";
import { Overview } from "./overview.tsx";
import { To } from "./parts.tsx";
import { placeOf, type Place } from "./places.ts";
import { PolicyPage } from "./policy.tsx";
import { refresh } from "./poll.ts";
import { SignIn } from "./sign-in.tsx";
import { TryPage } from "./try.tsx";

const EXPIRED = "This token is no longer valid: sign in with another one.";

export function App() {
  const [secret, setSecret] = useState(keptToken);
  const [token, setToken] = useState<OwnToken>();
  const [says, setSays] = useState("");
  const session = useMemo<Session | undefined>(() => {
    if (secret === undefined || token === undefined) return undefined;
    const leave = () => signOut(EXPIRED);
    return { token, ask: askWith(secret, leave, refresh), readings: { current: [] } };
  }, [secret, token]);

  const signOut = (why: string) => {
    keepToken(undefined);
    setSecret(undefined);
    setToken(undefined);
    setSays(why);
  };
  const signIn = (entered: string, known: OwnToken) => {
    keepToken(entered);
    setSecret(entered);
    setToken(known);
    setSays("");
  };
  if (session === undefined)
    return <SignIn kept={secret} says={says} onSignedIn={signIn} onRefused={signOut} />;
  return (
    <SessionContext.Provider value={session}>
      <Frame onSignOut={() => signOut("")} />
    </SessionContext.Provider>
  );
}

function usePlace(): Place {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useLayoutEffect(() => {
    const onChange = () => setPlace(placeOf(location.hash));
    // It may have changed since this was drawn.
    onChange();
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return place;
}

function Frame({ onSignOut }: { readonly onSignOut: () => void }) {
  const place = usePlace();
  const rights = useRights();
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  const text = JSON.stringify(place);
  useLayoutEffect(() => {
    // Screen readers and keyboards continue at the new page. Later this would steal the focus.
    if (!isFirst.current) main.current?.focus();
    isFirst.current = false;
    scrollTo(0, 0);
  }, [text]);
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to content
      </a>
      <header class="container">
        <Menu at={place.at} onSignOut={onSignOut} rights={rights} />
      </header>
      <main id="main" class="container" ref={main} tabIndex={-1} key={text}>
        <Shown place={place} />
      </main>
    </>
  );
}

function Menu(props: {
  readonly at: Place["at"];
  readonly rights: ReturnType<typeof rightsOf>;
  readonly onSignOut: () => void;
}) {
  const { at, rights, onSignOut } = props;
  const item = (name: string, place: Place, isHere: boolean) => (
    <li aria-current={isHere ? "page" : undefined}>
      <To place={place}>{name}</To>
    </li>
  );
  return (
    <nav aria-label="Main">
      <ul>
        <li>
          <strong>Weir</strong>
        </li>
        {item("Overview", { at: "overview" }, at === "overview")}
        {rights.all && item("Catalog", { at: "catalog" }, at === "catalog")}
        {rights.calls && item("Try a call", { at: "try", policy: "", key: "" }, at === "try")}
      </ul>
      <ul>
        <li>
          <button type="button" class="small secondary outline" onClick={onSignOut}>
            Sign out
          </button>
        </li>
      </ul>
    </nav>
  );
}

/** A page that the token may not see is replaced by the overview. */
function Shown({ place }: { readonly place: Place }) {
  const rights = useRights();
  if (place.at === "policy" && rights.looks) return <PolicyPage policy={place.policy} />;
  if (place.at === "key" && rights.looks) return <KeyPage policy={place.policy} name={place.key} />;
  if (place.at === "catalog" && rights.all) return <CatalogPage />;
  if (place.at === "try" && rights.calls) return <TryPage policy={place.policy} name={place.key} />;
  return <Overview />;
}
