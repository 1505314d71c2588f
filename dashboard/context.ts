/** The context of every part of the dashboard: the token, and the function that calls the limiter. */
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

export function useSession(): Session {
  const session = useContext(SessionContext);
  if (session === undefined) throw new Error("not signed in");
  return session;
}

/** The token's rights; parts without a right are not shown. */
export interface Rights {
  readonly looks: boolean;
  readonly calls: boolean;
  readonly changes: boolean;
  /** The history, which counts all keys. */
  readonly history: boolean;
  /** Changing policies, which concerns all of their keys. */
  readonly policies: boolean;
  /** Only keys that begin with this. */
  readonly keyPrefix: string;
  readonly all: boolean;
  /** Live rates, which count all keys. */
  readonly counts: boolean;
}

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

/** The token of this tab. It is kept nowhere else, and deleted with the tab. */
const NAME = "weir-token";

export function keptToken(): string | undefined {
  return sessionStorage.getItem(NAME) ?? undefined;
}

export function keepToken(token: string | undefined): void {
  if (token === undefined) sessionStorage.removeItem(NAME);
  else sessionStorage.setItem(NAME, token);
}
