// Plain JavaScript, which Node 20 can run, with its types in end-with-npm.d.mts: with-packages.mjs imports it too.

/** Milliseconds between looks at the parent: nothing reports its end. */
const LOOK_EVERY_MS = 500;

/**
 * Ends this process, as by SIGTERM, when npm has gone. npm forwards a signal to the shell in which it runs a script, and
 * a shell that has not replaced itself by the script (dash, October 2026) ends without it.
 */
export function endWithNpm() {
  // Others may start a command in the background and end.
  if (process.env.npm_lifecycle_event === undefined) return;
  const shell = process.ppid;
  const watch = setInterval(() => {
    if (process.ppid === shell) return;
    clearInterval(watch);
    process.kill(process.pid, "SIGTERM");
  }, LOOK_EVERY_MS);
  watch.unref();
}
