/** A worker that passes each request on to Weir over its service binding, and answers with Weir's answer. */
interface Env {
  readonly LIMITER: { limit(call: unknown): Promise<unknown> };
}

export default {
  async fetch(request: Request, { LIMITER }: Env): Promise<Response> {
    if (request.method !== "POST") return new Response("up");
    return Response.json(await LIMITER.limit(await request.json()));
  },
};
