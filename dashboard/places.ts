/** The pages of the dashboard, by the address after its #. */

export type Place =
  | { readonly at: "overview" }
  | { readonly at: "policy"; readonly policy: string }
  | { readonly at: "key"; readonly policy: string; readonly key: string }
  | { readonly at: "catalog" }
  | { readonly at: "try"; readonly policy: string; readonly key: string };

/** The page of a hash; the overview if it names none. */
export function placeOf(hash: string): Place {
  const [at = "", policy = "", key = ""] = hash.replace(/^#\/?/, "").split("/").map(decoded);
  if (at === "policy" && policy !== "") return { at, policy };
  if (at === "key" && policy !== "" && key !== "") return { at, policy, key };
  if (at === "try") return { at, policy, key };
  return at === "catalog" ? { at } : { at: "overview" };
}

export function hashOf(place: Place): string {
  const parts: readonly string[] = [
    place.at === "overview" ? "" : place.at,
    ...("policy" in place && place.policy !== "" ? [place.policy] : []),
    ...("key" in place && place.key !== "" ? [place.key] : []),
  ];
  return `#/${parts.map((part) => encodeURIComponent(part.toWellFormed())).join("/")}`;
}

/** A part that is not percent-encoded is used literally: it was typed by hand. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
