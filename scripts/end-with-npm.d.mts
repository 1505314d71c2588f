/** Ends this process, as by SIGTERM, when npm has gone. */
export function endWithNpm(): void;
