/**
 * A worker with the service bindings of `callerProps` (served.ts): it makes the call of a request, and
 * answers with the result or error. Plain JavaScript, since workerd runs it directly.
 */

/** Values outside JSON, by the names that tests use. */
const unusual = {
  sparse: () => Array(50_000_000),
  map: () => new Map([["requests", 0]]),
};

export default {
  async fetch(request, env) {
    const { binding, method, argument, unusually = {} } = await request.json();
    for (const [field, name] of Object.entries(unusually)) argument[field] = unusual[name]();
    try {
      const answer = await env[binding][method](argument);
      // A lease that was not detached would end with this request.
      return Response.json({ status: 200, body: answer === undefined ? {} : { ...answer } });
    } catch (error) {
      const { name, message, status, code } = error;
      return Response.json({ status: status ?? 500, body: { name, message, code } });
    }
  },
};
