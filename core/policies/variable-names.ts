/** The names of the variables that a deployment reads, and those that were meant to be one of them. */
import { nearest } from "../validation.ts";

const READ = ["POLICIES", "REGIONS", "LOG"];

/**
 * Refuses a variable that is `POLICIES`, `REGIONS` or `LOG` with a wrong letter: nobody would read it. Other variables are not
 * the limiter's. So is a text that has a name like `REGION`: regions are a table.
 *
 * @throws Error that names the variable, and the one that was meant
 */
export function requireKnownNames(vars: object): void {
  const wrong = Object.entries(vars).flatMap(([name, value]: [string, unknown]) => {
    const meant = READ.includes(name) ? undefined : nearest(name, READ);
    const isTable = typeof value === "object" && value !== null;
    const isWrong = meant !== undefined && (isTable || meant === "POLICIES");
    return isWrong ? `${name} is not a variable that is read (did you mean ${meant}?)` : [];
  });
  if (wrong.length > 0) throw new Error(`bad configuration, not serving:\n${wrong.join("\n")}`);
}
