import { readFileSync } from "node:fs";

/** The processor time that a process has had so far, in seconds, as Linux has it. */
export function processorSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.split(" ") ?? [];
  // Of the fields after the name, the 12th and 13th: user and system, in hundredths.
  return (Number(fields[11]) + Number(fields[12])) / 100;
}
