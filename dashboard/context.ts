/** What every part of the dashboard needs: the token, and the function that calls the limiter. */
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { OwnToken } from "./answers.ts";
import type { Ask } from "./api.ts";
import type { Reading } from "./rates.ts";

export interface Session {
  readonly token: OwnToken;
  readonly ask: Ask;
  /** Recent readings of /metrics, kept from page to page. */
  readonly readings: { current: readonly Reading[] };
}

export const SessionContext = createContext<Session | undefined>(undefined);

/** Who is signed in. */
export function useSession(): Session {
  const session = useContext(SessionContext);
  if (session === undefined) throw new Error("not signed in");
  return session;
}

/** What the token may do; parts that it may not use are not shown. */
export interface Rights {
  /** Looking at policies and keys. */
  readonly looks: boolean;
  /** Making calls. */
  readonly calls: boolean;
  /** Changing keys; top keys. */
  readonly changes: boolean;
  /** The history, which counts all keys. */
  readonly history: boolean;
  /** Changing policies, which concerns all of their keys. */
  readonly policies: boolean;
  /** Which keys: those that begin with this. */
  readonly keyPrefix: string;
  /** What concerns all policies and keys: tokens, the audit log, the document. */
  readonly all: boolean;
  /** Live rates, which count all keys. */
  readonly counts: boolean;
}

/** The rights of the token. */
export function rightsOf({ scopes, policies, keyPrefix = "" }: OwnToken): Rights {
  const has = (...any: readonly string[]) => any.some((scope) => scopes.includes(scope));
  const changes = has("admin");
  return {
    looks: has("limit", "admin"),
    calls: has("limit"),
    changes,
    policies: changes && keyPrefix === "",
    keyPrefix,
    all: changes && policies === undefined && keyPrefix === "",
    history: changes && keyPrefix === "",
    counts: has("metrics", "admin") && keyPrefix === "",
  };
}

export function useRights(): Rights {
  return rightsOf(useSession().token);
}

/** The token of this tab. It is kept nowhere else, and gone when the tab is closed. */
const NAME = "weir-token";

/** The token; `undefined`: not signed in. */
export function keptToken(): string | undefined {
  return sessionStorage.getItem(NAME) ?? undefined;
}

/** Keeps the token, or forgets it. */
export function keepToken(token: string | undefined): void {
  if (token === undefined) sessionStorage.removeItem(NAME);
  else sessionStorage.setItem(NAME, token);
}
