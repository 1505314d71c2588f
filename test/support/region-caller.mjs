/** A worker with the service binding LIMITER that forwards each request to `limit`. */
export default {
  async fetch(request, env) {
    try {
      return Response.json(await env.LIMITER.limit(await request.json()));
    } catch (error) {
      return Response.json({ error: error.message });
    }
  },
};
