/** Installs programs that tests need besides npm's packages. */
import { spawnSync } from "node:child_process";

interface Tool {
  readonly command: string;
  readonly apt: string;
  readonly brew: string;
  readonly elsewhere: readonly string[];
}

/** Installs a missing tool. @throws Error with instructions, when this machine cannot do that by itself */
export function ensureTool(tool: Tool): void {
  if (isInstalled(tool.command)) return;
  const commands = installCommands(tool);
  if (commands === undefined) throw new Error(howToInstall(tool));
  console.log(`${tool.command} is not installed; installing it: ${commands.install.join(" ")}`);
  if (runs(commands.install)) return;
  // Without recent package lists the package is not found.
  if (commands.update !== undefined) {
    console.log(`That failed; trying again after: ${commands.update.join(" ")}`);
    if (runs(commands.update) && runs(commands.install)) return;
  }
  throw new Error(`"${commands.install.join(" ")}" failed; see above. ${howToInstall(tool)}`);
}

function howToInstall({ command, apt, brew, elsewhere }: Tool): string {
  return [
    `${command} is needed and not installed. Install it and run this again:`,
    `  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install ${apt}`,
    `  macOS:           brew install ${brew}`,
    ...elsewhere.map((line) => `  ${line}`),
  ].join("\n");
}

interface InstallCommands {
  readonly install: readonly string[];
  readonly update?: readonly string[];
}

/** The commands that install a tool without questions; `undefined`: there are none. */
function installCommands({ apt, brew }: Tool): InstallCommands | undefined {
  if (process.platform === "darwin")
    return isInstalled("brew") ? { install: ["brew", "install", brew] } : undefined;
  if (process.platform !== "linux" || !isInstalled("apt-get")) return undefined;
  const isRoot = process.getuid?.() === 0;
  if (!isRoot && !isSilent("sudo", ["--non-interactive", "true"])) return undefined;
  const aptGet = isRoot ? ["apt-get"] : ["sudo", "--non-interactive", "apt-get"];
  return { install: [...aptGet, "install", "--yes", apt], update: [...aptGet, "update"] };
}

function isInstalled(tool: string): boolean {
  return isSilent(tool, ["--version"]);
}

function isSilent(tool: string, args: readonly string[]): boolean {
  return spawnSync(tool, args, { stdio: "ignore" }).status === 0;
}

function runs([tool = "", ...args]: readonly string[]): boolean {
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
  return spawnSync(tool, args, { stdio: "inherit", env }).status === 0;
}
