/** The token of this tab. It is kept nowhere else, and gone when the tab is closed. */
const NAME = "weir-token";

/** The token; `undefined`: nobody is signed in. */
export function keptToken(): string | undefined {
  return sessionStorage.getItem(NAME) ?? undefined;
}

/** Keeps the token, or forgets it. */
export function keepToken(token: string | undefined): void {
  if (token === undefined) sessionStorage.removeItem(NAME);
  else sessionStorage.setItem(NAME, token);
}
