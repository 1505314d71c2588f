/** Calls of the middleware that the limiter refuses: mistakes of the application, and not of its users. */

/**
 * The limiter's answer. A status of a refusal is about the call of the middleware. In an error that reaches the framework,
 * it would be answered to the application's users, e.g. 401 to one who is signed in, for the application's own token.
 * @throws Error with status 500 and the refusal as its cause. A 429, for a bound, and an outage are thrown as they are
 */
export async function unlessRefused<Answer>(call: () => Promise<Answer>): Promise<Answer> {
  try {
    return await call();
  } catch (cause) {
    // Error classes differ by bundle: the status decides.
    const { status = 0, message } = Object(cause) as Partial<Error & { readonly status: number }>;
    if (status < 400 || status >= 500 || status === 429) throw cause;
    const text = `the limiter refused the call (${message}): correct its token, or the options of the middleware`;
    throw Object.assign(new Error(text, { cause }), { status: 500 });
  }
}
