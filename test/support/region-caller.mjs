/**
 * A worker with the service binding LIMITER that forwards each request to `limit`. Plain JavaScript, since
 * workerd runs it directly.
 */
export default {
  async fetch(request, env) {
    try {
      return Response.json(await env.LIMITER.limit(await request.json()));
    } catch (error) {
      return Response.json({ error: error.message });
    }
  },
};
