/** The built bundle; `GET /herd` reads the whole catalog as new isolates do, and `/poll` as one that knows it. Workers KV is a map here. */
import * as weir from "weir.js";

const ANY = { id: "", page: 0 };
const entries = new Map();
const SNAPSHOTS = { put: async (key, text) => void entries.set(key, text) };

export class CatalogObject extends weir.CatalogObject {
  constructor(ctx, env) {
    super(ctx, { ...env, SNAPSHOTS });
  }
}

/** What an isolate does with the answers, but for what it makes of them. */
const READERS = {
  /** As isolates did before there were snapshots. */
  whole: async (changes) => void (await changes(0)),
  pages: async (changes) => {
    const texts = [];
    let { snapshot } = await changes(0, { id: "none", page: 0 });
    for (texts.push(snapshot.text); texts.length < snapshot.pages; texts.push(snapshot.text))
      ({ snapshot } = await changes(0, { id: snapshot.id, page: texts.length }));
    return texts.join("");
  },
  entry: async (changes) => entries.get((await changes(0, ANY)).snapshot.id),
};

export const { Limiter, LimiterObject, StatsObject } = weir;
export default {
  async fetch(request, env, ctx) {
    const { pathname, searchParams } = new URL(request.url);
    const changes = (...asked) => env.CATALOG.getByName("catalog").changes(...asked);
    if (pathname === "/poll")
      return Response.json((await changes(Number(searchParams.get("since")), ANY)).revision);
    if (pathname !== "/herd") return weir.default.fetch(request, env, ctx);
    let left = Number(searchParams.get("readers"));
    const read = READERS[searchParams.get("as")];
    const atOnce = Math.min(left, Number(searchParams.get("atOnce")));
    await Promise.all(
      Array.from({ length: atOnce }, async () => {
        while (left-- > 0) await read(changes);
      }),
    );
    return Response.json(searchParams.get("readers"));
  },
};
