import { createServer } from "node:net";

/** The port of the variable PORT; 8787 by default. @throws Error when it is not a port */
export function readPort({ PORT = "8787" }: NodeJS.Dict<string> = process.env): number {
  const port = /^\d{1,5}$/.test(PORT) ? Number(PORT) : 0;
  if (port < 1 || port > 65_535)
    throw new Error(`PORT is ${JSON.stringify(PORT)}: must be an integer from 1 to 65535`);
  return port;
}

/** Otherwise another process on the port would pass for the started server. @throws Error with the reason */
export async function requireFree(host: string, port: number): Promise<void> {
  const code = await listeningProblem(host, port);
  if (code === undefined) return;
  const where = `${host}:${port}`;
  if (code === "EADDRINUSE")
    throw new Error(
      `PORT is ${port}: another process listens on ${where}. Stop it, or set another port: PORT=${port === 65_535 ? port - 1 : port + 1}`,
    );
  if (code === "EACCES")
    throw new Error(`PORT is ${port}: this user may not listen on ${where}: must be above 1023`);
  throw new Error(`HOST is ${JSON.stringify(host)}: must be an address of this machine (${code})`);
}

/** The code of the error that a server would get there; `undefined`: it can listen. */
export function listeningProblem(host: string, port: number): Promise<string | undefined> {
  const server = createServer();
  return new Promise((done) => {
    server.once("error", (error: NodeJS.ErrnoException) => done(error.code ?? error.message));
    server.listen({ host, port, exclusive: true }, () => server.close(() => done(undefined)));
  });
}
